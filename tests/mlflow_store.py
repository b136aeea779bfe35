"""Stores of MLflow as its documentation describes them, and a server that answers for one; without MLflow."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.loopback_site import Handler, LoopbackSite
from tests.trees import adapter

START, END = 1_795_856_277_701, 1_795_856_281_522
RUN_ID = "{:032x}".format


@dataclass
class Planted:
    """A run, or the logged model (``model``: its name) of the run ``source``, with an adapter among its artifacts."""

    number: int
    name: str = ""
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # value and step
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ("model",)
    base: str | None = None
    stage: str = "active"
    model: str = ""
    source: int | None = None
    uri: str = ""
    experiment: str = "1"

    @property
    def id(self) -> str:
        return f"m-{RUN_ID(self.number)}" if self.model else RUN_ID(self.number)

    @property
    def path(self) -> str:
        """Of its artifacts in the folder of all of them."""
        return f"{self.experiment}/{'models/' if self.model else ''}{self.id}/artifacts"

    def write_artifacts(self, root: Path) -> None:
        for place, name in enumerate(self.artifacts):
            adapter(root / self.path / name, 100 * place + self.number, self.base)


def write_file_store(root: Path, runs: list[Planted], experiment: str = "tuning") -> Path:
    """A folder ``mlruns``."""

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    write(
        "1/meta.yaml", f"artifact_location: {root}/1\nexperiment_id: '1'\nlifecycle_stage: active\nname: {experiment}\n"
    )
    for run in runs:
        run.write_artifacts(root)
        folder = run.path.removesuffix("/artifacts")
        uri = run.uri or f"file://{root}/{run.path}"
        meta: dict[str, Any] = {"experiment_id": "1", "lifecycle_stage": run.stage}
        if run.model:
            source = RUN_ID(run.source) if run.source is not None else None
            meta |= {"artifact_location": uri, "model_id": run.id, "name": run.model, "source_run_id": source}
        else:
            meta |= {"artifact_uri": uri, "run_id": run.id, "run_name": run.name, "status": 3,
                     "start_time": START, "end_time": END}  # fmt: skip
        write(f"{folder}/meta.yaml", "".join(f"{key}: {json.dumps(value)}\n" for key, value in meta.items()))
        for kind, values in (("params", run.params), ("tags", run.tags)):
            for key, value in values.items():
                write(f"{folder}/{kind}/{key}", value)
        for key, points in run.metrics.items():
            write(f"{folder}/metrics/{key}", "".join(f"{START + step} {value} {step}\n" for value, step in points))
    return root


TABLES = """
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256), lifecycle_stage VARCHAR(32));
CREATE TABLE "runs" (run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), user_id VARCHAR(256), status VARCHAR(9),
  start_time BIGINT, end_time BIGINT, lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200), experiment_id INTEGER);
CREATE TABLE params ("key" VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
CREATE TABLE tags ("key" VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
CREATE TABLE latest_metrics ("key" VARCHAR(250), value FLOAT, timestamp BIGINT, step BIGINT, is_nan BOOLEAN, run_uuid VARCHAR(32));
CREATE TABLE logged_models (model_id VARCHAR(36) PRIMARY KEY, experiment_id INTEGER, name VARCHAR(500),
  artifact_location VARCHAR(1000), last_updated_timestamp_ms BIGINT, lifecycle_stage VARCHAR(32), source_run_id VARCHAR(32));
CREATE TABLE logged_model_params (model_id VARCHAR(36), param_key VARCHAR(255), param_value TEXT);
"""


def write_database(path: Path, runs: list[Planted], experiment: str = "tuning") -> Path:
    """A database, with the artifacts in the folder ``mlruns`` beside it."""
    root = path.parent / "mlruns"
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.executescript(TABLES)
        database.execute("INSERT INTO experiments VALUES (1, ?, 'active')", [experiment])
        for run in runs:
            run.write_artifacts(root)
            uri = run.uri or f"{root}/{run.path}"
            if run.model:
                source = RUN_ID(run.source) if run.source is not None else None
                row = [run.id, 1, run.model, uri, END, run.stage, source]
                database.execute("INSERT INTO logged_models VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                rows = [(run.id, *one) for one in run.params.items()]
                database.executemany("INSERT INTO logged_model_params VALUES (?, ?, ?)", rows)
                continue
            row = [run.id, run.name, "somebody", "FINISHED", START, END, run.stage, uri, 1]
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            for table, values in (("params", run.params), ("tags", run.tags)):
                database.executemany(
                    f"INSERT INTO {table} VALUES (?, ?, ?)", [(*one, run.id) for one in values.items()]
                )
            for key, points in run.metrics.items():
                value, step = max(points, key=lambda point: point[1])
                database.execute(
                    "INSERT INTO latest_metrics VALUES (?, ?, ?, ?, 0, ?)", [key, value, START + step, step, run.id]
                )
    database.close()
    return path


class LoopbackMlflow(LoopbackSite):
    """The questions of the REST API that are asked, answered for planted runs.

    ``token``: what the requests must carry. ``asked``: (path, the header Authorization) of every request.
    """

    def __init__(self, root: Path, runs: list[Planted], *, token: str = "", page: int = 2) -> None:
        super().__init__()
        self.root, self.runs, self.token, self.page = root, runs, token, page
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[dict[str, str]] = []
        self.place = f"mlflow+{self.endpoint}"
        for run in runs:
            run.write_artifacts(root)

    def note(self, request: Handler, path: str) -> None:
        self.asked.append((path, request.headers.get("Authorization")))
        self.headers.append(dict(request.headers))

    def answer(self, request: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        if self.token and request.headers.get("Authorization") != self.token:
            request.send(401, b"You said " + str(request.headers.get("Authorization")).encode())
            return
        reply = self.reply(path, query, body)
        if reply is None:
            request.send(404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "nothing there"}')
        elif isinstance(reply, bytes):
            request.send_part(reply)
        else:
            request.send(200, json.dumps(reply).encode())

    def reply(self, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        """The JSON or the bytes of an answer; None for 404."""
        question = path.partition("/api/2.0/mlflow/")[2]
        if path == "/get-artifact":
            return self._file(query["run_uuid"], query["path"])
        if path.startswith("/ajax-api/2.0/mlflow/logged-models/"):
            return self._file(path.split("/")[5], query["artifact_file_path"])
        if question == "experiments/search":
            return {"experiments": [{"experiment_id": "1", "name": "tuning", "lifecycle_stage": "active"}]}
        if question in ("runs/search", "logged-models/search"):
            is_model = question.startswith("logged")
            found = [run for run in self.runs if bool(run.model) == is_model and run.stage == "active"]
            start = int(body.get("page_token", 0))
            described = [self._model(run) if is_model else self._run(run) for run in found[start : start + self.page]]
            more = {"next_page_token": str(start + self.page)} if start + self.page < len(found) else {}
            return {"models" if is_model else "runs": described} | more
        if question == "runs/get":
            return next(({"run": self._run(run)} for run in self.runs if run.id == query["run_id"]), None)
        if question == "artifacts/list":
            return self._folder(query["run_id"], query.get("path", ""))
        if question.startswith("logged-models/"):
            _, identifier, *rest = question.split("/")
            if rest:
                return self._folder(identifier, query.get("artifact_directory_path", ""))
            return next(({"model": self._model(run)} for run in self.runs if run.id == identifier), None)
        return None

    def _run(self, run: Planted) -> dict[str, Any]:
        def pairs(values: dict[str, str]) -> list[dict[str, str]]:
            return [{"key": key, "value": value} for key, value in values.items()]

        metrics = [
            {"key": key, "value": points[-1][0], "timestamp": START + points[-1][1], "step": points[-1][1]}
            for key, points in run.metrics.items()
        ]
        info = {"run_id": run.id, "experiment_id": "1", "run_name": run.name, "status": "FINISHED", "start_time": START,
                "end_time": END, "artifact_uri": run.uri or f"mlflow-artifacts:/{run.path}",
                "lifecycle_stage": run.stage}  # fmt: skip
        return {"info": info, "data": {"params": pairs(run.params), "metrics": metrics, "tags": pairs(run.tags)}}

    def _model(self, run: Planted) -> dict[str, Any]:
        source = {"source_run_id": RUN_ID(run.source)} if run.source is not None else {}
        info = {"model_id": run.id, "experiment_id": "1", "name": run.model, "last_updated_timestamp_ms": END,
                "artifact_uri": f"mlflow-artifacts:/{run.path}", **source}  # fmt: skip
        return {"info": info, "data": {"params": [{"key": key, "value": value} for key, value in run.params.items()]}}

    def _artifacts(self, identifier: str) -> Path | None:
        return next((self.root / run.path for run in self.runs if run.id == identifier), None)

    def _folder(self, identifier: str, path: str) -> dict[str, Any] | None:
        root = self._artifacts(identifier)
        if root is None:
            return None
        files = [
            {"path": str(one.relative_to(root)), "is_dir": one.is_dir()}
            | ({} if one.is_dir() else {"file_size": one.stat().st_size})
            for one in sorted((root / path).glob("*"))
        ]
        return {"root_uri": "mlflow-artifacts:/", "files": files}

    def _file(self, identifier: str, path: str) -> bytes | None:
        root = self._artifacts(identifier)
        return None if root is None or not (root / path).is_file() else (root / path).read_bytes()
