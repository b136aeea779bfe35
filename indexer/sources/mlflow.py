"""MLflow: the models among the artifacts of its runs, with what the runs say of their training.

Three places hold runs: the folder of MLflow's file store (``mlruns``), its database in SQLite (``mlflow.db``), and a
tracking server (``mlflow+http://host:port``). Each becomes a tree of the folders ``EXPERIMENT/ID``, where the id is
that of a run or, since MLflow 3, of a logged model (``m-…``); below lie the artifacts. Runs and experiments that were
deleted are left out. Credentials for a server are MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
MLFLOW_TRACKING_PASSWORD.

Everything that a store says is untrusted. Artifacts are read where it says only if the address ends in
``/ID/artifacts``, as MLflow writes it, so that no store leads to other folders.
"""

from __future__ import annotations

import base64
import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from indexer.errors import AtlasError, Failed, ModelError
from indexer.network.byterange import ByteSource
from indexer.network.server import Server
from indexer.regular_files import open_regular, read_regular
from indexer.sources.cards.bounded_yaml import load_yaml
from indexer.sources.file_systems import FileFacts, FileSystem, FolderContent, LocalFiles, Problems, TrackedRun
from indexer.untrusted import Reader, is_count, printable, tidy

_MODELS = "models"
_RUN_ID = re.compile(r"(?!\.)[\w\-]{1,64}", re.ASCII)
_EXPERIMENT = re.compile(r"(?!\.)[\w\-]{1,64}", re.ASCII)
_IN_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_SERVER = re.compile(r"mlflow\+(https?://.+)", re.DOTALL)
_DATABASES = (".db", ".sqlite", ".sqlite3")
_SQLITE = b"SQLite format 3\0"
_TABLES = frozenset((
    "experiments", "runs", "params", "tags", "latest_metrics", "logged_models", "logged_model_params",
))  # fmt: skip
_DELETED = "deleted"
# Words of artifact paths that name no model.
_NO_NAMES = frozenset(("artifacts", "model", "models", "data", "components", "peft", "adapter", "weights"))

_LARGEST_META = 64 << 10
_LARGEST_VALUE = 8_000  # characters of a parameter or a tag, as MLflow allows
_METRIC_TAIL = 4 << 10
_MOST_KEYS = 2_000  # parameters, metrics and tags of a run, each
_MOST_RUNS = 1_000_000
_MOST_ROWS = 5_000_000  # of a table
_MOST_PAGES = 10_000
_MOST_LISTED = 500_000  # folders that a server is asked for
_AT_ONCE = 1_000  # runs on a page
_THREADS = 8
_EXPERIMENTS_AT_ONCE = 50
_SECONDS = 120.0  # that a query of a database may take
_LONGEST_NAME = 250

NOT_LISTED = "runs whose artifacts cannot be listed"
NOT_SERVED = "runs whose artifacts only a tracking server serves (give mlflow+http://HOST:PORT)"
ELSEWHERE = "runs whose artifacts are said to lie where MLflow does not put them, not read"
UNREADABLE = "runs that cannot be read"


@dataclass(frozen=True)
class Run:
    """A run, or a logged model with what is known of the run that made it.

    ``artifacts``: the address of its artifacts; ``model``: the name of a logged model; ``changed``: milliseconds since
    1970 of the last change that is known.
    """

    id: str
    experiment: str
    artifacts: str
    name: str = ""
    experiment_name: str = ""
    status: str = ""
    start: int | None = None
    end: int | None = None
    changed: int = 0
    model: str = ""
    run_id: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What it says of a training, as the files beside weights do."""
        facts = {
            "run_name": self.name,
            "run_id": self.run_id or self.id,
            "experiment": self.experiment_name,
            "logged_model": self.model,
            "run_status": self.status,
            "started": _iso(self.start),
            "ended": _iso(self.end),
            "global_step": self.step,
        }
        tags = {f"tags.{key}": value for key, value in self.tags.items() if not key.startswith("mlflow.")}
        # A Trainer logs the learning rate as it decays, too; the parameter says how it was set.
        return {**tags, **self.metrics, **self.params} | {key: fact for key, fact in facts.items() if fact}

    def tracked(self, inner: str) -> TrackedRun:
        """The run of a model at a path among its artifacts."""
        parts = [part for part in inner.split("/") if part.lower() not in _NO_NAMES]
        words: dict[str, None] = dict.fromkeys((self.experiment_name or self.experiment, self.name, self.model, *parts))
        return TrackedRun(self.run_id or self.id, tuple(filter(None, words)), self.settings)


class Store(ABC):
    """Where runs are written down. ``address`` identifies it. Raises AtlasError if it cannot be read."""

    address: str

    @abstractmethod
    def experiments(self) -> list[str]:
        """The ids of the experiments that are not deleted, read anew."""

    @abstractmethod
    def ids(self, experiment: str) -> list[str]:
        """The ids of the runs and logged models of an experiment, of those deleted too if it takes a look to tell."""

    @abstractmethod
    def run(self, experiment: str, identifier: str) -> Run | None:
        """A run or a logged model; None if it was deleted. Raises ModelError."""

    def folder_of(self, run: Run) -> Path | None:
        """Where its artifacts lie on this machine, by its address; None if they do not."""
        folder = _local_folder(run.artifacts)
        is_usual = folder is not None and folder.as_posix().endswith(f"/{_ending(run)}")
        return folder if folder is not None and is_usual and folder.is_absolute() and folder.is_dir() else None

    def served(self, run: Run) -> FileSystem | None:
        """Its artifacts as a server gives them; None if none does."""
        return None


class MlflowFiles(FileSystem):
    """The artifacts of the runs of a store as a tree. ``options``: those of fsspec for buckets."""

    def __init__(self, store: Store, options: Mapping[str, Any]) -> None:
        self.address = store.address
        self._store = store
        self._options = dict(options)
        self._runs: dict[tuple[str, str], Run | None] = {}
        self._roots: dict[str, FileSystem] = {}
        self._has_remote = isinstance(store, TrackingServer)

    @property
    def is_remote(self) -> bool:  # type: ignore[override]
        """Whether artifacts that were met so far are read from a server."""
        return self._has_remote

    def content(self, path: str, problems: Problems) -> FolderContent:
        """Experiments, then runs, then what lies among the artifacts."""
        experiment, _, rest = path.partition("/")
        identifier, _, inner = rest.partition("/")
        if not path:
            self._runs.clear()
            return FolderContent(folders=self._store.experiments())
        if not identifier:
            return FolderContent(folders=self._store.ids(experiment))
        try:
            run = self._run(experiment, identifier)
        except ModelError as error:
            problems.note(f"{UNREADABLE}: {error.detail.rstrip('.')}", path, is_unseen=True)
            return FolderContent()
        if run is None:
            return FolderContent()
        try:
            files, below = self._artifacts(run)
        except AtlasError as error:
            problems.note(f"{NOT_LISTED}: {error.message.rstrip('.')}", path, is_unseen=True)
            return FolderContent()
        except ModelError as error:
            problems.note(error.detail, path, is_unseen=True)
            return FolderContent()
        if files is None:
            return FolderContent()
        inside = Problems()
        try:
            content = files.content(f"{below}/{inner}" if inner else below, inside)
        except (AtlasError, ModelError) as error:
            what = error.message if isinstance(error, AtlasError) else error.detail
            problems.note(f"{NOT_LISTED}: {what.rstrip('.')}", path, is_unseen=True)
            return FolderContent()
        for kind, count in inside.counts.items():
            problems.note(kind, path, is_unseen=bool(inside.unseen), count=count)
        return content

    def facts(self, path: str) -> FileFacts:
        """The facts of a file as it is now."""
        files, inner = self._file(path)
        return files.facts(inner)

    def open(self, path: str, name: str) -> ByteSource:
        """A file, for reading by ranges."""
        files, inner = self._file(path)
        return files.open(inner, name)

    def run_at(self, path: str) -> TrackedRun | None:
        """The run whose artifact lies at a path."""
        experiment, identifier, *inner = path.split("/")
        run = self._run(experiment, identifier)
        return None if run is None else run.tracked("/".join(inner))

    def _run(self, experiment: str, identifier: str) -> Run | None:
        key = experiment, identifier
        if key not in self._runs:
            self._runs[key] = self._store.run(*key)
        return self._runs[key]

    def _file(self, path: str) -> tuple[FileSystem, str]:
        experiment, identifier, *inner = path.split("/")
        run = self._run(experiment, identifier)
        if run is None:
            raise Failed("not_found", "its run was deleted")
        try:
            files, below = self._artifacts(run)
        except AtlasError as error:
            raise Failed("not_found", f"its artifacts cannot be read: {error.message}") from error
        if files is None:
            raise Failed("not_found", "its artifacts are not there any more")
        return files, "/".join((below, *inner)) if below else "/".join(inner)

    def _artifacts(self, run: Run) -> tuple[FileSystem | None, str]:
        """Where the artifacts of a run are read, and the path of their folder there; None if there are none."""
        ending, scheme = _ending(run), urlsplit(run.artifacts).scheme
        is_usual = run.artifacts.rstrip("/").endswith(f"/{ending}")
        if (folder := self._store.folder_of(run)) is not None:
            return self._root(str(folder.parents[ending.count("/")]), LocalFiles), ending
        if scheme in _IN_BUCKETS:
            if not is_usual:
                raise Failed("refused", ELSEWHERE)
            self._has_remote = True
            root = run.artifacts.rstrip("/").removesuffix(f"/{ending}")
            return self._root(root, self._bucket), ending
        if (served := self._store.served(run)) is not None:
            return served, ""
        if scheme in ("", "file"):
            if not is_usual:
                raise Failed("refused", ELSEWHERE)
            return None, ""  # a run has no folder until it logs something
        if scheme == "mlflow-artifacts":
            raise Failed("refused", NOT_SERVED)
        raise Failed("refused", f"runs whose artifacts lie at {printable(scheme, 30)}://, which is not read")

    def _root(self, address: str, opened: Callable[[str], FileSystem]) -> FileSystem:
        if address not in self._roots:
            self._roots[address] = opened(address)
        return self._roots[address]

    def _bucket(self, address: str) -> FileSystem:
        from indexer.sources.addresses import FsspecFiles

        return FsspecFiles(address, self._options)


def _ending(run: Run) -> str:
    """How the address of its artifacts ends."""
    return f"{_MODELS}/{run.id}/artifacts" if run.model else f"{run.id}/artifacts"


def _local_folder(address: str) -> Path | None:
    """The folder of an address of this machine, which may be relative; None for another address."""
    scheme = urlsplit(address).scheme
    if scheme == "file":
        parts = urlsplit(address)
        return Path(unquote(parts.path)) if parts.netloc in ("", "localhost") else None
    return Path(address) if not scheme and address else None


# ---- the folder of the file store


class FileStore(Store):
    """The folder in which MLflow keeps a file for each parameter, metric and tag."""

    def __init__(self, folder: Path) -> None:
        self._files = LocalFiles(folder)
        self._names: dict[str, str] = {}  # of experiments, by their ids
        self.address = f"mlflow:{self._files.address}"

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder is one: it has an experiment."""
        with suppress(OSError), os.scandir(folder) as entries:
            for _, entry in zip(range(200), entries, strict=False):
                meta = _meta(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else {}
                if "experiment_id" in meta and "artifact_location" in meta:
                    return True
        return False

    def experiments(self) -> list[str]:
        """The folders of experiments; those deleted lie in a hidden one."""
        self._names.clear()
        return [name for name in self._folders("") if _EXPERIMENT.fullmatch(name)
                and self._meta(name).get("lifecycle_stage", "active") != _DELETED]  # fmt: skip

    def ids(self, experiment: str) -> list[str]:
        """The folders of runs, and of logged models."""
        runs = [name for name in self._folders(experiment) if name not in (_MODELS, "traces", "datasets", "tags")]
        return [name for name in (*runs, *self._folders(f"{experiment}/{_MODELS}")) if _RUN_ID.fullmatch(name)]

    def run(self, experiment: str, identifier: str) -> Run | None:
        """By the files in its folder."""
        meta = self._meta(f"{experiment}/{identifier}")
        path = f"{experiment}/{identifier}"
        is_model = not meta
        if is_model:
            path = f"{experiment}/{_MODELS}/{identifier}"
            meta = self._meta(path)
        if not meta or meta.get("lifecycle_stage", "active") == _DELETED:
            return None
        reader = Reader()
        made_by = str(meta.get("source_run_id") or "") if is_model else ""
        parent = self.run(experiment, made_by) if _RUN_ID.fullmatch(made_by) and made_by != identifier else None
        metrics, step = self._metrics(f"{path}/metrics")
        status = meta.get("status")
        run = Run(
            id=identifier,
            experiment=experiment,
            artifacts=str(meta.get("artifact_location" if is_model else "artifact_uri") or ""),
            name=tidy(str(meta.get("run_name") or ""), _LONGEST_NAME),
            experiment_name=self._experiment_name(experiment),
            status=_STATUS.get(status, "") if isinstance(status, int) else tidy(str(status or ""), 20),
            start=reader.count(meta.get("start_time"), "start_time"),
            end=reader.count(meta.get("end_time"), "end_time"),
            params=self._values(f"{path}/params"),
            tags=self._values(f"{path}/tags"),
            metrics=metrics,
            step=step,
        )
        if not run.name and "mlflow.runName" in run.tags:
            run = replace(run, name=tidy(run.tags["mlflow.runName"], _LONGEST_NAME))
        return _logged_model(run, str(meta.get("name") or ""), parent) if is_model else run

    def folder_of(self, run: Run) -> Path | None:
        """Beside what is written of it: also where the folder was moved or copied."""
        folder = Path(self._files.address) / run.experiment / _ending(run)
        return folder if folder.is_dir() and not folder.is_symlink() else super().folder_of(run)

    def _experiment_name(self, experiment: str) -> str:
        if experiment not in self._names:
            self._names[experiment] = tidy(str(self._meta(experiment).get("name") or ""), _LONGEST_NAME)
        return self._names[experiment]

    def _folders(self, path: str) -> list[str]:
        return self._files.content(path, Problems()).folders

    def _meta(self, path: str) -> Mapping[str, Any]:
        return _meta(Path(self._files.address) / path)

    def _values(self, path: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, inner in self._keys(path):
            if (content := self._read(inner, _LARGEST_VALUE, is_end=False)) is not None:
                values[key] = content.decode("utf-8", errors="replace")
        return values

    def _metrics(self, path: str) -> tuple[dict[str, float], int | None]:
        """The last values, and the last step; a line of a file is "time value step"."""
        values: dict[str, float] = {}
        steps: list[int] = []
        for key, inner in self._keys(path):
            text = (self._read(inner, _METRIC_TAIL, is_end=True) or b"").decode("utf-8", errors="replace")
            lines = (line.split() for line in text.splitlines())
            entries = [entry for parts in lines if (entry := _metric(parts)) is not None]
            if entries:
                step, _, values[key] = max(entries)  # as MLflow chooses the last
                steps.append(step)
        return values, max(steps, default=None)

    def _keys(self, path: str) -> Iterator[tuple[str, str]]:
        """The names of parameters, and their paths: a name may have slashes."""
        waiting, seen = [""], 0
        while waiting and not Path(self._files.address, path).is_symlink():
            below = waiting.pop()
            content = self._files.content(f"{path}/{below}" if below else path, Problems())
            names = [f"{below}/{name}" if below else name for name in sorted(content.files)]
            waiting += [f"{below}/{name}" if below else name for name in content.folders if below.count("/") < 10]
            for name in names:
                seen += 1
                if seen > _MOST_KEYS:
                    return
                yield name, f"{path}/{name}"

    def _read(self, path: str, most: int, *, is_end: bool) -> bytes | None:
        try:
            with open_regular(Path(self._files.address, path)) as file:  # never through a link
                if is_end:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read(most)
        except OSError:
            return None


def _metric(parts: list[str]) -> tuple[int, int, float] | None:
    """Step, time and value of a line; None for what is none."""
    numbers = [Reader().number(part) for part in parts[:3]]
    if len(numbers) < 2 or numbers[0] is None or numbers[1] is None:
        return None
    step = numbers[2] if len(numbers) > 2 else None
    return int(step or 0), int(numbers[0]), numbers[1]


_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}


def _meta(folder: Path) -> Mapping[str, Any]:
    """The facts of an experiment, a run or a logged model; {} if its file cannot be read."""
    try:
        content = read_regular(folder / "meta.yaml", most=_LARGEST_META)
    except OSError:
        return {}
    facts = load_yaml(content.decode("utf-8", errors="replace"))
    return facts if isinstance(facts, dict) else {}


def _logged_model(own: Run, name: str, made_by: Run | None) -> Run:
    """A logged model with what the run that made it says: its own facts first."""
    named = replace(own, model=tidy(name, _LONGEST_NAME) or own.id)
    if made_by is None:
        return named
    return replace(
        named,
        name=made_by.name,
        run_id=made_by.id,
        status=made_by.status,
        start=made_by.start,
        end=made_by.end,
        changed=max(own.changed, made_by.changed),
        params={**made_by.params, **own.params},
        metrics=made_by.metrics or own.metrics,
        tags={**made_by.tags, **own.tags},
        step=made_by.step if made_by.step is not None else own.step,
    )


# ---- stores that are read as a whole


class _ReadStore(Store):
    """A store whose runs are read at once, by a few questions."""

    def __init__(self) -> None:
        self._experiments: dict[str, str] = {}  # names by ids
        self._runs: dict[str, dict[str, Run]] = {}

    @abstractmethod
    def _read(self) -> tuple[dict[str, str], Iterable[Run]]:
        """The names of experiments by their ids, and the runs; logged models come after the runs."""

    def experiments(self) -> list[str]:
        """The ids of those that have runs."""
        self._experiments, runs = self._read()
        self._runs = {}
        for number, run in enumerate(runs):
            if number >= _MOST_RUNS:
                raise AtlasError(f"{self.address} has more than {_MOST_RUNS:,} runs.", "Name a smaller store.")
            if run.experiment in self._experiments and _RUN_ID.fullmatch(run.id):
                runs_by_id = self._runs.setdefault(run.experiment, {})
                made_by = runs_by_id.get(run.run_id) if run.model else None
                named = replace(run, experiment_name=self._experiments[run.experiment])
                runs_by_id[run.id] = _logged_model(named, run.model, made_by) if run.model else named
        return sorted(self._runs)

    def ids(self, experiment: str) -> list[str]:
        """The ids, as they were read."""
        return sorted(self._runs.get(experiment, ()))

    def run(self, experiment: str, identifier: str) -> Run | None:
        """As it was read."""
        if not self._runs:
            self.experiments()  # a process that only reads models
        return self._runs.get(experiment, {}).get(identifier)


class Database(_ReadStore):
    """MLflow's database in SQLite, read and never written; nothing that it defines besides its tables is run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self._path = path.expanduser().resolve(strict=True)
            is_database = self._path.is_file()
            if is_database:
                with self._path.open("rb") as file:
                    is_database = file.read(16) == _SQLITE
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "that is not a path"
            message = f"{printable(str(path), 120)} cannot be read: {reason}."
            raise AtlasError(message, "Give the database of MLflow, mlflow.db.") from error
        self.address = f"sqlite:///{self._path}"
        if not is_database:
            raise AtlasError(f"{printable(str(path), 120)} is no database of SQLite.", "Give mlflow.db.")

    def folder_of(self, run: Run) -> Path | None:
        """Also beside the database: where its server put them, or where both were moved to."""
        if (stated := super().folder_of(run)) is not None:
            return stated
        ending = _ending(run)
        for name in ("mlruns", "mlartifacts"):
            folder = self._path.parent / name / run.experiment / ending
            if folder.is_dir() and not folder.is_symlink():
                return folder
        return None

    def _read(self) -> tuple[dict[str, str], list[Run]]:
        with self._tables() as rows:
            experiments = {
                str(number): tidy(str(name), _LONGEST_NAME)
                for number, name, stage in rows("experiments", "experiment_id", "name", "lifecycle_stage")
                if stage != _DELETED
            }
            params = _texts(rows("params", "run_uuid", "key", "value"))
            tags = _texts(rows("tags", "run_uuid", "key", "value"))
            metrics: dict[str, dict[str, float]] = {}
            steps: dict[str, int] = {}
            changes: dict[str, int] = {}
            columns: tuple[str, ...] = ("run_uuid", "key", "value", "step", "timestamp", "is_nan")
            for identifier, key, value, step, time, is_nan in rows("latest_metrics", *columns):
                number = None if is_nan else Reader().number(value)
                metrics_of_run = metrics.setdefault(str(identifier), {})
                if number is not None and len(metrics_of_run) < _MOST_KEYS:
                    metrics_of_run[str(key)] = number
                steps[str(identifier)] = max(steps.get(str(identifier), 0), step if is_count(step) else 0)
                changes[str(identifier)] = max(changes.get(str(identifier), 0), time if is_count(time) else 0)
            runs = []
            columns = ("run_uuid", "experiment_id", "name", "status", "start_time", "end_time", "lifecycle_stage",
                       "artifact_uri")  # fmt: skip
            for identifier, experiment, name, status, start, end, stage, artifacts in rows("runs", *columns):
                run_id = str(identifier)
                if stage != _DELETED:
                    runs.append(Run(
                        run_id, str(experiment), str(artifacts or ""), tidy(str(name or ""), _LONGEST_NAME),
                        status=tidy(str(status or ""), 20), start=_time(start), end=_time(end),
                        changed=max(changes.get(run_id, 0), _time(end) or 0), params=params.get(run_id, {}),
                        metrics=metrics.get(run_id, {}), tags=tags.get(run_id, {}), step=steps.get(run_id),
                    ))  # fmt: skip
            model_params = _texts(rows("logged_model_params", "model_id", "param_key", "param_value"))
            columns = ("model_id", "experiment_id", "name", "artifact_location", "last_updated_timestamp_ms",
                       "lifecycle_stage", "source_run_id")  # fmt: skip
            for identifier, experiment, name, artifacts, time, stage, made_by in rows("logged_models", *columns):
                if stage != _DELETED:
                    runs.append(Run(
                        str(identifier), str(experiment), str(artifacts or ""), model=str(name) or str(identifier),
                        changed=_time(time) or 0, run_id=str(made_by or ""),
                        params=model_params.get(str(identifier), {}),
                    ))  # fmt: skip
            return experiments, runs

    @contextmanager
    def _tables(self) -> Iterator[Callable[..., Iterator[tuple[Any, ...]]]]:
        """A function that reads columns of a table; of one that is not there it reads nothing. Raises AtlasError."""
        allowed: set[str] = set()
        deadline = monotonic() + _SECONDS

        def authorized(action: int, first: str | None, second: str | None, _: str | None, inside: str | None) -> int:
            is_read = action == sqlite3.SQLITE_READ and first in allowed and inside is None
            return sqlite3.SQLITE_OK if is_read or action == sqlite3.SQLITE_SELECT else sqlite3.SQLITE_DENY

        try:
            with closing(sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True)) as connection:
                connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                connection.set_progress_handler(lambda: monotonic() > deadline, 100_000)
                # Tables of its own: a virtual table would be of a module, a view of other tables, a generated column of
                # functions.
                names = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
                made = dict(connection.execute(names))
                for name in _TABLES & made.keys():
                    hidden = {kind for *_, kind in connection.execute(f"PRAGMA table_xinfo([{name}])")}
                    if hidden == {0} and re.match(r"CREATE\s+TABLE\b", str(made[name]), re.IGNORECASE):
                        allowed.add(name)
                connection.set_authorizer(authorized)

                def rows(table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
                    if table in allowed:
                        quoted = ", ".join(f"[{column}]" for column in columns)  # "…" could also be a text
                        yield from islice(connection.execute(f"SELECT {quoted} FROM [{table}]"), _MOST_ROWS)

                if "runs" not in allowed:
                    raise AtlasError(f"{self.address} has no table of runs: it is not MLflow's.", "Give mlflow.db.")
                yield rows
        except sqlite3.Error as error:
            what = tidy(str(error), 200).rstrip(".")
            raise AtlasError(
                f"{self.address} cannot be read: {what}.", "Check that it is MLflow's database."
            ) from error


def _texts(rows: Iterable[tuple[Any, ...]]) -> dict[str, dict[str, str]]:
    """By the id of a run, its parameters or tags."""
    texts: dict[str, dict[str, str]] = {}
    for identifier, key, value in rows:
        texts_of_run = texts.setdefault(str(identifier), {})
        if len(texts_of_run) < _MOST_KEYS:
            texts_of_run[str(key)[:_LONGEST_NAME]] = str(value)[:_LARGEST_VALUE]
    return texts


class TrackingServer(_ReadStore):
    """A tracking server, asked by its REST API 2.0."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.server = Server("the MLflow server", endpoint, _authorization())
        self.address = f"mlflow+{self.server.endpoint}"
        self._listed: dict[tuple[str, str], FolderContent | ModelError] = {}
        self._asked = 0
        self._stopped: ModelError | None = None

    def experiments(self) -> list[str]:
        """Asked anew; then the artifacts of all runs are listed, several at a time."""
        self._listed.clear()
        self._asked = 0
        experiments = super().experiments()
        runs = [run for runs_by_id in self._runs.values() for run in runs_by_id.values() if self._is_served(run)]
        self._stopped = None
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._list_all, runs))
        if self._stopped is not None:
            detail = self._stopped.detail.rstrip(".")
            raise AtlasError(f"{self.address} cannot be listed: {detail}.", "Run it again later: nothing is lost.")
        return experiments

    def run(self, experiment: str, identifier: str) -> Run | None:
        """As it was listed; a process that only reads models asks for the one."""
        if self._runs:
            return self._runs.get(experiment, {}).get(identifier)
        if identifier.startswith("m-"):
            model = _mapping(self._ask(f"logged-models/{quote(identifier, safe='')}")).get("model")
            return next(self._models([model]), None)
        run = _mapping(self._ask("runs/get", [("run_id", identifier)])).get("run")
        return next(self._parsed([run]), None)

    def served(self, run: Run) -> FileSystem:
        """Through the server, which has what it takes to read them."""
        return _ServedArtifacts(self, run)

    def folder_content(self, run: Run, path: str) -> FolderContent:
        """What lies in a folder of artifacts; from the last listing if it is there. Raises ModelError."""
        listed = self._listed.pop((run.id, path), None)
        if isinstance(listed, ModelError):
            raise listed
        return listed or self.listed_now(run, path)

    def listed_now(self, run: Run, path: str) -> FolderContent:
        """The same, asked now."""
        self._asked += 1
        if self._asked > _MOST_LISTED:
            raise Failed("server_error", f"{self.server.title} lists more than {_MOST_LISTED:,} folders")
        content = FolderContent()
        mark = f"time:{_iso(run.changed) or ''}"
        if run.model:
            question, parameters = f"logged-models/{quote(run.id, safe='')}/artifacts/directories", []
            parameters += [("artifact_directory_path", path)] if path else []
        else:
            question, parameters = "artifacts/list", [("run_id", run.id), *([("path", path)] if path else [])]
        below = f"{path}/" if path else ""
        for page in self._pages(question, parameters):
            for entry in _listed(page.get("files")):
                full = entry.get("path")
                name = full.removeprefix(below) if isinstance(full, str) and full.startswith(below) else ""
                if not name or "/" in name or "\\" in name or name.startswith(".") or not name.isprintable():
                    continue
                size = Reader().count(entry.get("file_size"), "file_size")
                if entry.get("is_dir") is True:
                    content.folders.append(name)
                elif size is not None:
                    content.files[name] = FileFacts(size, mark)
        content.folders.sort()
        return content

    def open(self, run: Run, path: str, name: str, size: int) -> ByteSource:
        """An artifact, for reading by ranges."""
        if run.model:
            where = f"/ajax-api/2.0/mlflow/logged-models/{quote(run.id, safe='')}/artifacts/files"
            return self.server.file(where, [("artifact_file_path", path)], name, size)
        return self.server.file("/get-artifact", [("path", path), ("run_uuid", run.id)], name, size)

    def _is_served(self, run: Run) -> bool:
        return self.folder_of(run) is None and urlsplit(run.artifacts).scheme not in _IN_BUCKETS

    def _list_all(self, run: Run) -> None:
        waiting = [""]
        while waiting and self._stopped is None:
            path = waiting.pop()
            try:
                content = self.listed_now(run, path)
            except ModelError as error:
                self._listed[run.id, path] = error
                if error.reason in ("network", "timeout", "rate_limited"):
                    self._stopped = error  # it would be the same for the other runs
                continue
            self._listed[run.id, path] = content
            if path.count("/") < 20:
                waiting += [f"{path}/{name}" if path else name for name in content.folders]

    def _read(self) -> tuple[dict[str, str], Iterator[Run]]:
        try:
            experiments: dict[str, str] = {}
            for page in self._pages("experiments/search", {"view_type": "ACTIVE_ONLY"}):
                for experiment in _listed(page.get("experiments")):
                    identifier = experiment.get("experiment_id")
                    if isinstance(identifier, str) and _EXPERIMENT.fullmatch(identifier):
                        experiments[identifier] = tidy(str(experiment.get("name") or ""), _LONGEST_NAME)
            runs: list[Run] = []
            ids = sorted(experiments)
            for start in range(0, len(ids), _EXPERIMENTS_AT_ONCE):
                some = ids[start : start + _EXPERIMENTS_AT_ONCE]
                asked = {"experiment_ids": some, "run_view_type": "ACTIVE_ONLY"}
                for page in self._pages("runs/search", asked):
                    runs += self._parsed(page.get("runs"))
                    self._check(len(runs))
                try:
                    for page in self._pages("logged-models/search", {"experiment_ids": some}):
                        runs += self._models(page.get("models"))
                        self._check(len(runs))
                except Failed as error:
                    if error.reason != "not_found":  # before MLflow 3 there are none
                        raise
        except ModelError as error:
            hint = "Run it again later: nothing is lost."
            if error.reason == "refused":
                hint = "Set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
            elif error.reason == "not_found":
                hint = "Check the address: it is that of `mlflow server`."
            raise AtlasError(f"{self.address} cannot be listed: {error.detail.rstrip('.')}.", hint) from error
        return experiments, iter(runs)

    def _check(self, count: int) -> None:
        if count > _MOST_RUNS:
            raise AtlasError(f"{self.address} has more than {_MOST_RUNS:,} runs.", "Name a smaller store.")

    def _pages(self, question: str, asked: Mapping[str, Any] | list[tuple[str, str]]) -> Iterator[Mapping[str, Any]]:
        """The pages of an answer: to a POST of an object, or to a GET with parameters."""
        token, seen = "", set()
        for _ in range(_MOST_PAGES):
            if isinstance(asked, list):
                page = _mapping(self._ask(question, [*asked, *([("page_token", token)] if token else [])]))
            else:
                body = {**asked, "max_results": _AT_ONCE if "models" not in question else 50}
                page = _mapping(self._ask(question, body=body | ({"page_token": token} if token else {})))
            yield page
            following = page.get("next_page_token")
            if not isinstance(following, str) or not following:
                return
            if following in seen:
                raise Failed("server_error", f"{self.server.title} sends the same page again and again")
            seen.add(token := following)
        raise Failed("server_error", f"{self.server.title} has no last page")

    def _ask(self, question: str, parameters: list[tuple[str, str]] | None = None, body: Any = None) -> Any:
        return self.server.ask(f"/api/2.0/mlflow/{question}", parameters or (), body=body)

    def _parsed(self, runs: Any) -> Iterator[Run]:
        for answer in _listed(runs):
            info, data = _mapping(answer.get("info")), _mapping(answer.get("data"))
            identifier = info.get("run_id") or info.get("run_uuid")
            if info.get("lifecycle_stage") == _DELETED or not isinstance(identifier, str):
                continue
            metrics, step, changed = _numbers(data.get("metrics"))
            tags = _pairs(data.get("tags"))
            end = _time(info.get("end_time"))
            yield Run(
                identifier, str(info.get("experiment_id") or ""), str(info.get("artifact_uri") or ""),
                tidy(str(info.get("run_name") or tags.get("mlflow.runName") or ""), _LONGEST_NAME),
                self._experiments.get(str(info.get("experiment_id")), ""), tidy(str(info.get("status") or ""), 20),
                _time(info.get("start_time")), end, max(changed, end or 0), params=_pairs(data.get("params")),
                metrics=metrics, tags=tags, step=step,
            )  # fmt: skip

    def _models(self, models: Any) -> Iterator[Run]:
        for answer in _listed(models):
            info, data = _mapping(answer.get("info")), _mapping(answer.get("data"))
            identifier = info.get("model_id")
            if not isinstance(identifier, str):
                continue
            yield Run(
                identifier, str(info.get("experiment_id") or ""), str(info.get("artifact_uri") or ""),
                model=tidy(str(info.get("name") or identifier), _LONGEST_NAME),
                run_id=str(info.get("source_run_id") or ""),
                changed=_time(info.get("last_updated_timestamp_ms")) or 0, params=_pairs(data.get("params")),
            )  # fmt: skip


class _ServedArtifacts(FileSystem):
    """The artifacts of one run as a server lists and sends them."""

    is_remote = True

    def __init__(self, store: TrackingServer, run: Run) -> None:
        self.address, self._store, self._run = store.address, store, run

    def content(self, path: str, problems: Problems) -> FolderContent:
        """What lies in a folder. Raises ModelError."""
        return self._store.folder_content(self._run, path.strip("/"))

    def facts(self, path: str) -> FileFacts:
        """By a listing of its folder."""
        folder, _, name = path.strip("/").rpartition("/")
        facts = self._store.listed_now(self._run, folder).files.get(name)
        if facts is None:
            raise Failed("not_found", f"{printable(name, 100)} is not there any more")
        return facts

    def open(self, path: str, name: str) -> ByteSource:
        """A file, for reading by ranges."""
        return self._store.open(self._run, path.strip("/"), name, self.facts(path).size)


def _authorization() -> dict[str, str]:
    """The header that the variables of MLflow's client stand for."""
    token, user, password = (
        os.environ.get(f"MLFLOW_TRACKING_{name}", "").strip() for name in ("TOKEN", "USERNAME", "PASSWORD")
    )
    if user and password:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    if not token:
        return {}
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise AtlasError("MLFLOW_TRACKING_TOKEN is none: it holds a character other than letters and digits.", "")
    return {"Authorization": f"Bearer {token}"}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _pairs(value: Any) -> dict[str, str]:
    """A list of keys and values as an object of texts."""
    texts = {}
    for pair in _listed(value)[:_MOST_KEYS]:
        key, text = pair.get("key"), pair.get("value")
        if isinstance(key, str) and isinstance(text, str):
            texts[key[:_LONGEST_NAME]] = text[:_LARGEST_VALUE]
    return texts


def _numbers(value: Any) -> tuple[dict[str, float], int | None, int]:
    """The last values of metrics, the last step, and the time of the last change."""
    values, steps, times = {}, [], [0]
    for metric in _listed(value)[:_MOST_KEYS]:
        key, number = metric.get("key"), Reader().number(metric.get("value"))
        if isinstance(key, str) and number is not None:
            values[key[:_LONGEST_NAME]] = number
            steps += [step for step in (_time(metric.get("step")),) if step is not None]
            times += [time for time in (_time(metric.get("timestamp")),) if time is not None]
    return values, max(steps, default=None), max(times)


def _time(value: Any) -> int | None:
    """Milliseconds since 1970, or a number of steps: in JSON of protobuf long numbers may be texts."""
    return Reader().count(int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else value, "")


def _iso(milliseconds: int | None) -> str | None:
    try:
        return None if not milliseconds else datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


# ---- what a person types


def opened(address: str, options: Mapping[str, Any]) -> FileSystem | None:
    """The tree of a store that a person names; None if it is none of MLflow's. Raises AtlasError."""
    store = _store_at(address)
    return None if store is None else MlflowFiles(store, options)


def _store_at(address: str) -> Store | None:
    if server := _SERVER.fullmatch(address):
        return TrackingServer(server[1])
    if address.startswith("sqlite:"):
        return Database(Path(unquote(re.sub("^sqlite:(///)?", "", address)) or "."))
    if address.startswith("mlflow:"):
        return FileStore(Path(address.removeprefix("mlflow:")))
    if "://" in address:
        return None
    path = Path(address).expanduser()
    if path.suffix in _DATABASES and path.is_file():
        return Database(path)
    if not path.is_dir():
        return None
    if FileStore.is_at(path):
        return FileStore(path)
    beside = path.resolve().parent / "mlflow.db"  # since MLflow 3.7 a folder mlruns holds only artifacts
    return Database(beside) if path.resolve().name == "mlruns" and beside.is_file() else None
