"""MLflow as a source: its file store, its database and a tracking server; what runs say, and what goes wrong."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from importlib.util import find_spec

import pytest

from indexer import build, status
from indexer.atlas import AtlasFolder
from indexer.builds.trees import places_in_trees
from indexer.errors import AtlasError, Failed
from indexer.network.session import install_session
from indexer.sources import mlflow
from indexer.sources.addresses import file_system
from indexer.sources.file_systems import Problems
from indexer.sources.tree import list_tree
from indexer.sources.tree_rows import base_among, described
from query import Atlas
from tests.hubs import QUICK
from tests.mlflow_store import RUN_ID, LoopbackMlflow, Planted, write_database, write_file_store
from tests.tiny_hub import BASE
from tests.trees import adapter

SECRET = "s3cret-token-of-the-team"


def planted():
    """Three runs with adapters and a logged model of the first; one of the runs was deleted."""
    return [
        Planted(1, "cats-lr3e-4", {"learning_rate": "0.0003", "model_name_or_path": BASE, "note": "a,b", "hub_token": "x1"},
                {"loss": [(3.0, 0), (1.5, 20)], "learning_rate": [(0.0, 20)]}, {"team": "felines", "mlflow.user": "ann"},
                ("model", "checkpoint-10", "checkpoint-20")),
        Planted(2, "dogs", {"model_name_or_path": BASE, "lr/head": "0.1"}, tags={"mlflow.note.content": "x"}),
        Planted(3, "gone", {"model_name_or_path": BASE}, stage="deleted"),
        Planted(4, model="ranker", source=1, params={"model_name_or_path": BASE, "k": "8"}, artifacts=("adapter",)),
    ]  # fmt: skip


@pytest.fixture(params=["folder", "database", "server"])
def place(request, tmp_path, monkeypatch):
    """The same runs in each kind of store."""
    install_session(QUICK)
    if request.param == "folder":
        yield str(write_file_store(tmp_path / "mlruns", planted()))
    elif request.param == "database":
        yield str(write_database(tmp_path / "mlflow.db", planted()))
    else:
        with LoopbackMlflow(tmp_path / "served", planted()) as server:
            yield server.place


def listed(place):
    files = file_system(str(place))
    listing = list_tree(files)
    return files, {model.path: model for model in listing.models}, listing.problems


def test_runs_are_models_with_what_the_runs_say(place):
    files, models, problems = listed(place)
    assert problems.counts == {}
    one, two, logged = f"1/{RUN_ID(1)}", f"1/{RUN_ID(2)}", f"1/m-{RUN_ID(4)}"
    assert set(models) == {
        f"{one}/model",
        f"{one}/checkpoint-10",
        f"{one}/checkpoint-20",
        f"{two}/model",
        f"{logged}/adapter",
    }
    assert models[f"{one}/model"].words == ("tuning", "cats-lr3e-4")
    assert models[f"{one}/checkpoint-20"].words == ("tuning", "cats-lr3e-4", "checkpoint-20")
    assert models[f"{logged}/adapter"].words == ("tuning", "cats-lr3e-4", "ranker")
    last = models[f"{one}/checkpoint-20"].checkpoint
    assert (last.run, last.number) == (RUN_ID(1), 20)
    facts, row = described(models[f"{one}/model"], files)
    stated = row["training"]
    assert base_among(facts, "local:x", {BASE: (BASE,)}) == (BASE, None)
    assert {key: stated[key] for key in ("run", "run_id", "step", "learning_rate", "train_loss")} == {
        "run": "cats-lr3e-4", "run_id": RUN_ID(1), "step": 20, "learning_rate": 0.0003, "train_loss": 1.5,
    }  # fmt: skip
    settings = stated["settings"]
    assert settings["tags.team"] == "felines"
    assert settings["note"] == "a,b"
    assert (settings["experiment"], settings["run_status"]) == ("tuning", "FINISHED")
    assert settings["started"].startswith("2026-11-28T08:57:57")
    assert "ann" not in json.dumps(stated)  # users, as in other files
    assert "x1" not in json.dumps(stated)  # tokens
    of_logged = described(models[f"{logged}/adapter"], files)[1]["training"]
    assert (of_logged["run"], of_logged["settings"]["k"], of_logged["train_loss"]) == ("cats-lr3e-4", "8", 1.5)
    assert described(models[f"{two}/model"], files)[1]["training"]["settings"]["lr/head"] == "0.1"


def test_all_stores_give_a_model_the_same_version(tmp_path):
    install_session(QUICK)
    places = [write_file_store(tmp_path / "mlruns", planted()), write_database(tmp_path / "db/mlflow.db", planted())]
    with LoopbackMlflow(tmp_path / "served", planted()) as server:
        versions = []
        for place in (*places, server.place):
            files, models, _ = listed(place)
            versions.append(sorted(described(model, files)[0].version[:20] for model in models.values()))
    assert versions[0] == versions[1]
    assert versions[2] == versions[0]


def test_a_model_is_read_by_ranges_in_another_process(place):
    """As a worker does, which has the address and lists nothing."""
    _, models, _ = listed(place)
    for path, model in models.items():
        files = file_system(file_system(place).address)
        for name, file in model.files.items():
            assert file.facts.agrees(files.facts(f"{path}/{name}"))
            with closing(files.open(f"{path}/{name}", name)) as opened:
                assert opened.size == file.facts.size
                assert bytes(opened.read(3, 40)) == bytes(opened.run(0, opened.size).read(40))[3:]


def changed_params(place, root, number, **params):
    (root / f"1/{RUN_ID(number)}/params").mkdir(exist_ok=True)
    for key, value in params.items():
        (root / f"1/{RUN_ID(number)}/params/{key}").write_text(value)


@pytest.mark.slow
def test_from_build_to_build(hub, tmp_path):
    said = []
    store = write_file_store(tmp_path / "team-secret/mlruns", planted())

    def built():
        return build(BASE, sources=store, workers=1, progress=lambda event: said.append(event.message))

    report = built()
    # Of the checkpoints of a run the last.
    assert (report.discovered, report.indexed, report.failed) == (4, 4, 0), report.problem
    with Atlas("atlas") as atlas:
        rows = atlas.rows(
            "SELECT model, run, train_loss, training->'settings'->>'tags.team' AS team FROM models ORDER BY id"
        )
        assert (
            atlas.rows("SELECT count(*) AS n FROM models WHERE (training->'settings'->>'experiment') = 'tuning'")[0][
                "n"
            ]
            == 4
        )
    assert [tuple(row.values()) for row in rows] == [
        ("local:cats-lr3e-4", "cats-lr3e-4", 1.5, "felines"), ("local:cats-lr3e-4-checkpoint-20", "cats-lr3e-4", 1.5, "felines"),
        ("local:dogs", "dogs", None, None), ("local:ranker", "cats-lr3e-4", 1.5, "felines"),
    ]  # fmt: skip
    assert (built().unchanged, built().bytes_read) == (4, 0)
    changed_params(store, store, 2, note="second thoughts", dataset_name="imdb")
    again = built()
    assert (again.unchanged, again.indexed, again.bytes_read) == (4, 0, 0)  # no weights are read for that
    with Atlas("atlas") as atlas:
        (row,) = atlas.rows(
            "SELECT training->'settings'->>'note' AS note, datasets FROM models WHERE id = 'local:dogs'"
        )
        assert row == {"note": "second thoughts", "datasets": ["imdb"]}
        assert len(atlas.vectors(BASE).models) == 4
    meta = store / f"1/{RUN_ID(2)}/meta.yaml"
    meta.write_text(meta.read_text().replace('"active"', '"deleted"'))
    assert built().unchanged == 3
    with Atlas("atlas") as atlas:
        assert atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub") == [{"model": "local:dogs"}]
    (source,) = status("atlas")["sources"]
    assert (source["address"], source["left"]) == (f"mlflow:{store}", 1)
    assert set(places_in_trees(AtlasFolder("atlas"), ["local:cats-lr3e-4", "local:dogs"])) == {"local:cats-lr3e-4"}
    for file in (tmp_path / "atlas").rglob("*"):
        assert not (file.is_file() and file.name != "trees.sqlite" and b"team-secret" in file.read_bytes()), file


@pytest.mark.slow
def test_a_server_from_build_to_build(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    adapter(tmp_path / "other/m", 50)
    with LoopbackMlflow(tmp_path / "served", planted(), token=f"Bearer {SECRET}") as server:
        report = build(BASE, sources=[server.place, tmp_path / "other"], workers=2)
        assert (report.indexed, report.failed) == (5, 0), report.problem
        server.runs[1].params["note"] = "new"
        server.runs[0].stage = "deleted"
        again = build(BASE, sources=[server.place, tmp_path / "other"], workers=1)
        assert (again.unchanged, again.indexed, again.bytes_read) == (3, 0, 0)
        assert set(places_in_trees(AtlasFolder("atlas"), ["local:dogs"])) == {"local:dogs"}
    with Atlas("atlas") as atlas:
        left = atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub ORDER BY model")
        assert [row["model"] for row in left] == [
            "local:cats-lr3e-4", "local:cats-lr3e-4-checkpoint-10", "local:cats-lr3e-4-checkpoint-20",
        ]  # fmt: skip
    stopped = build(BASE, sources=[server.place, tmp_path / "other"], workers=1)  # it does not run any more
    assert (stopped.unchanged, stopped.failed) == (1, 0)
    with Atlas("atlas") as atlas:
        assert len(atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub")) == 3
    for file in (tmp_path / "atlas").rglob("*"):
        assert not (file.is_file() and SECRET.encode() in file.read_bytes()), file


# ---- a server that is not what it should be


@pytest.fixture
def server(tmp_path):
    install_session(QUICK)
    with LoopbackMlflow(tmp_path / "served", planted()) as running:
        yield running


def redirected(handler, where):
    handler.send(302, b"", {"Location": where})


@pytest.mark.parametrize(("user", "password", "token", "header"), [
    ("", "", SECRET, f"Bearer {SECRET}"),
    ("ann", SECRET, "ignored", "Basic " + base64.b64encode(f"ann:{SECRET}".encode()).decode()),
])  # fmt: skip
def test_credentials_go_to_the_server_and_nowhere_else(server, tmp_path, monkeypatch, user, password, token, header):
    for name, value in {"USERNAME": user, "PASSWORD": password, "TOKEN": token}.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    monkeypatch.setenv("HF_TOKEN", "hf_ofTheHub")
    server.token = header
    with LoopbackMlflow(tmp_path / "elsewhere", planted()) as elsewhere:
        server.overrides["/get-artifact"] = lambda handler: redirected(handler, elsewhere.endpoint + handler.path)
        files, models, _ = listed(server.place)
        for model in models.values():
            described(model, files)
        assert {one for _, one in server.asked} == {header}
        assert {one for _, one in elsewhere.asked} == {None}
        assert elsewhere.asked
        everything = json.dumps([*server.headers, *elsewhere.headers])
        assert "hf_ofTheHub" not in everything
        assert "hf_hub" not in everything
        server.token = "another"
        with pytest.raises(AtlasError, match="the MLflow server answered HTTP 401") as refused:
            listed(server.place)
    assert SECRET not in f"{refused.value} {refused.value.hint}"
    assert "MLFLOW_TRACKING_TOKEN" in refused.value.hint


def test_an_address_with_a_password_is_refused_without_showing_it():
    with pytest.raises(
        AtlasError, match=r"The address 127\.0\.0\.1:1 of the MLflow server is not of the form"
    ) as error:
        file_system(f"mlflow+http://ann:{SECRET}@127.0.0.1:1")
    assert SECRET not in str(error.value)


def test_the_api_leads_to_no_other_host(server, tmp_path):
    with LoopbackMlflow(tmp_path / "elsewhere", []) as elsewhere:
        server.overrides["/api/2.0/mlflow/runs/search"] = lambda handler: redirected(handler, elsewhere.endpoint)
        with pytest.raises(AtlasError, match="points to another host"):
            listed(server.place)
        assert elsewhere.asked == []


def answers(value):
    return lambda handler: handler.send(200, json.dumps(value).encode())


@pytest.mark.parametrize(("question", "answer", "problem"), [
    ("runs/search", answers({"runs": [], "next_page_token": "same"}), "sends the same page again and again"),
    ("experiments/search", lambda handler: handler.send(200, b"<html>"), "is not JSON"),
    ("experiments/search", lambda handler: handler.send(404, b"{}"), "Check the address"),
    ("experiments/search", lambda handler: handler.send(500, b'{"message": "no disk"}'), "HTTP 500: no disk"),
])  # fmt: skip
def test_a_server_that_cannot_be_used_is_one_line(server, question, answer, problem):
    server.overrides[f"/api/2.0/mlflow/{question}"] = answer
    with pytest.raises(AtlasError) as error:
        listed(server.place)
    assert problem in f"{error.value} {error.value.hint}"


def test_a_server_that_is_not_there_is_one_line():
    install_session(QUICK)
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(AtlasError, match="cannot be listed: the MLflow server: the connection failed"):
            listed(f"mlflow+http://127.0.0.1:{unused.getsockname()[1]}")


def test_names_that_lead_elsewhere_are_left_out(server):
    odd = ["../x", "a/b", "/etc", "..", ".git", "", "x\\y", "bell\a", None, 5]
    files = [{"path": name, "is_dir": False, "file_size": 9} for name in odd]
    files += [{"path": "n.safetensors", "file_size": size} for size in (-1, "9e9", None, 1 << 70)]
    server.overrides["/api/2.0/mlflow/artifacts/list"] = answers(
        {"files": [*files, "text", {"path": "sub", "is_dir": 1}]}
    )
    files, models, _ = listed(server.place)
    assert [path for path in models if "m-" not in path] == []
    content = files.content(f"1/{RUN_ID(1)}", Problems())
    assert (content.files, content.folders) == ({}, [])


def test_a_run_that_cannot_be_listed_stays_as_it_was(server):
    def refuse(handler):
        if RUN_ID(1) in handler.path:
            handler.send(403, b"{}")
        else:
            handler.send(200, b'{"files": []}')

    server.overrides["/api/2.0/mlflow/artifacts/list"] = refuse
    _, models, problems = listed(server.place)
    assert len(models) == 1
    assert problems.counts == {"runs whose artifacts cannot be listed: the MLflow server answered HTTP 403": 1}
    assert problems.hides(f"1/{RUN_ID(1)}/model")
    assert not problems.hides(f"1/{RUN_ID(2)}/model")


@pytest.mark.parametrize(("status", "headers", "reason"), [
    (200, {}, "range_ignored"),
    (206, {"Content-Range": "bytes 0-7/9999"}, "file_changed"),
    (206, {"Content-Range": "bytes 8-15/{size}"}, "range_ignored"),
    (206, {"Content-Range": "bytes 0-7/{size}", "Content-Encoding": "gzip"}, "range_ignored"),
    (404, {}, "not_found"),
])  # fmt: skip
def test_ranges_that_are_not_those_asked_for_are_failures(server, status, headers, reason):
    files, models, _ = listed(server.place)
    path = f"1/{RUN_ID(2)}/model"
    size = str(models[path].files["adapter_model.safetensors"].facts.size)
    sent = {name: value.replace("{size}", size) for name, value in headers.items()}
    server.overrides["/get-artifact"] = lambda handler: handler.send(status, b"12345678", sent)
    with closing(files.open(f"{path}/adapter_model.safetensors", "w")) as file, pytest.raises(Failed) as error:
        file.read(0, 8)
    assert error.value.reason == reason


def test_a_hidden_folder_is_not_read_where_a_store_points_to_it(tmp_path):
    """Only folders that end as MLflow's do are read, wherever a store says that artifacts lie."""
    install_session(QUICK)
    adapter(tmp_path / "private/model", 1)
    adapter(tmp_path / f"elsewhere/1/{RUN_ID(6)}/artifacts/model", 6)
    runs = [
        Planted(5, uri=str(tmp_path / "private"), artifacts=()),
        Planted(6, uri=f"file://{tmp_path}/elsewhere/1/{RUN_ID(6)}/artifacts", artifacts=()),
        Planted(7, uri="s3://bucket/private", artifacts=()),
        Planted(8, uri="dbfs:/private", artifacts=()),
        Planted(9, uri=f"mlflow-artifacts:/1/{RUN_ID(9)}/artifacts", artifacts=()),
        Planted(10, uri=f"/{RUN_ID(10)}/artifacts/../../private", artifacts=()),
    ]
    _, models, problems = listed(write_database(tmp_path / "db/mlflow.db", runs))
    assert list(models) == [f"1/{RUN_ID(6)}/model"]
    assert problems.counts == {
        mlflow.ELSEWHERE: 3, mlflow.NOT_SERVED: 1, "runs whose artifacts lie at dbfs://, which is not read": 1,
    }  # fmt: skip
    with LoopbackMlflow(tmp_path / "served", [runs[0]]) as server:  # which may read what it says
        assert listed(server.place)[1] == {}
        assert ("/api/2.0/mlflow/artifacts/list", None) in server.asked


def test_a_store_that_was_moved_is_read_where_it_is(tmp_path):
    write_file_store(tmp_path / "old/mlruns", planted())
    write_database(tmp_path / "before/mlflow.db", planted())
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "before").rename(tmp_path / "after")
    assert len(listed(tmp_path / "new/mlruns")[1]) == 5
    assert len(listed(f"sqlite:///{tmp_path}/after/mlflow.db")[1]) == 5
    assert len(listed(tmp_path / "after/mlruns")[1]) == 5  # the folder that people name; its runs are in the database


# ---- a database that is not what it should be


@pytest.mark.parametrize(("script", "problem"), [
    ("ALTER TABLE params RENAME TO hidden; CREATE VIEW params AS SELECT 'k' AS key, 'v' AS value, run_uuid FROM runs", None),
    ("ALTER TABLE params RENAME TO hidden; CREATE VIRTUAL TABLE params USING fts5(key, value, run_uuid)", None),
    ("ALTER TABLE params ADD COLUMN more AS (hex(zeroblob(100000000)))", None),
    ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM params; END", None),
    ("ALTER TABLE runs RENAME TO hidden; CREATE VIEW runs AS SELECT * FROM hidden", "no table of runs"),
    ("DROP TABLE runs; CREATE TABLE runs (x)", "no such column"),
    ("DROP TABLE runs; CREATE TABLE runs (run_uuid, experiment_id, name AS (hex(zeroblob(9))), status, start_time, end_time, "
     "lifecycle_stage, artifact_uri); INSERT INTO runs (run_uuid) VALUES ('x')", "no table of runs"),
    ("UPDATE params SET value = hex(zeroblob(1000000))", "string or blob too big"),
    ("UPDATE runs SET run_uuid = '../../' || run_uuid", None),
    ("UPDATE runs SET status = x'00ff', start_time = 'soon', end_time = 9e300, name = x'ff' || char(7)", None),
])  # fmt: skip
def test_what_a_database_defines_is_not_run(tmp_path, script, problem):
    path = write_database(tmp_path / "mlflow.db", planted()[:2])
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    before = path.read_bytes()
    if problem is None:
        files, models, _ = listed(path)
        for model in models.values():
            training = described(model, files)[1].get("training", {})
            assert "v" not in training.get("settings", {}).values()
    else:
        with pytest.raises(AtlasError, match=problem):
            listed(path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mlflow.db", "mlruns"]


def test_a_query_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow, "_SECONDS", -1.0)
    runs = [Planted(1, params={f"k{number}": "v" for number in range(30_000)})]
    with pytest.raises(AtlasError, match="cannot be read: interrupted"):
        listed(write_database(tmp_path / "mlflow.db", runs))


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 5_000, b"hello" * 100])
def test_a_file_that_is_no_database_is_one_line(tmp_path, content):
    (tmp_path / "mlflow.db").write_bytes(content)
    with pytest.raises(AtlasError, match=r"mlflow\.db (cannot be read|is no database of SQLite)"):
        listed(tmp_path / "mlflow.db")
    with pytest.raises(AtlasError, match=r"none\.db cannot be read: No such file"):
        listed(f"sqlite:///{tmp_path}/none.db")


def test_files_of_a_store_are_data(tmp_path):
    store = write_file_store(tmp_path / "mlruns", planted())
    run = store / f"1/{RUN_ID(1)}"
    (run / "params/deep").mkdir()
    (run / "params/deep/link").symlink_to("/etc/hostname")
    (run / "params/binary").write_bytes(b"\xff\0\x1b[31m")
    (run / "params/long").write_text("y" * 100_000)
    (run / "metrics/odd").write_text("not a line\n1 nan 2\n1 inf x\n")
    (store / f"1/{RUN_ID(2)}/meta.yaml").write_text("!!python/object/apply:os.system [true]")
    os.mkfifo(store / f"1/{RUN_ID(1)}/params/pipe")
    files, models, _ = listed(store)
    stated = described(models[f"1/{RUN_ID(1)}/model"], files)[1]["training"]
    assert len(stated["settings"]["long"]) <= 200
    assert "\x1b" not in str(stated["settings"]["binary"])
    assert not {"deep/link", "pipe", "odd"} & stated["settings"].keys()
    assert not any(RUN_ID(2) in path for path in models)


# ---- MLflow itself


def mlflow_python():
    """A Python that has MLflow: this one, or that which ATLAS_MLFLOW_PYTHON names."""
    found = os.environ.get("ATLAS_MLFLOW_PYTHON") or (sys.executable if find_spec("mlflow") else "")
    return found or pytest.skip("needs MLflow here, or ATLAS_MLFLOW_PYTHON: a Python that has it")


QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true", "GIT_PYTHON_REFRESH": "quiet"}
LOGS_RUNS = """
import sys
import mlflow
from mlflow import MlflowClient
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("tuning")
for name, folder in zip(("cats", "dogs", "gone"), sys.argv[2:]):
    with mlflow.start_run(run_name=name) as run:
        mlflow.log_params({"learning_rate": 0.0003, "model_name_or_path": sys.argv[-1], "a/b": "x"})
        for step in range(3):
            mlflow.log_metric("loss", 3.0 - step, step=step)
        mlflow.set_tag("team", name)
        mlflow.log_artifacts(folder, "model")
        if name == "cats":
            model = mlflow.initialize_logged_model(name="ranker")
            MlflowClient().log_model_artifacts(model.model_id, folder)
            mlflow.finalize_logged_model(model.model_id, "READY")
    if name == "gone":
        MlflowClient().delete_run(run.info.run_id)
"""


def log_runs(tmp_path, uri):
    folders = [adapter(tmp_path / f"adapters/{number}", number, None) for number in range(3)]
    environment = {**os.environ, **QUIET}
    subprocess.run([mlflow_python(), "-c", LOGS_RUNS, uri, *map(str, folders), BASE], cwd=tmp_path, env=environment,
                   check=True, capture_output=True, timeout=250)  # fmt: skip
    shutil.rmtree(tmp_path / "adapters")


def check_built(place):
    report = build(BASE, sources=place, workers=1)
    assert report.failed == 0
    assert report.indexed == 3
    with Atlas("atlas") as atlas:
        rows = atlas.rows(
            "SELECT model, run, train_loss, learning_rate, step, training->'settings'->>'tags.team' AS team, "
            "training->'settings'->>'a/b' AS ab FROM models ORDER BY id"
        )
    assert [tuple(row.values()) for row in rows] == [
        ("local:cats", "cats", 1.0, 0.0003, 2, "cats", "x"), ("local:dogs", "dogs", 1.0, 0.0003, 2, "dogs", "x"),
        ("local:ranker", "cats", 1.0, 0.0003, 2, "cats", "x"),
    ]  # fmt: skip
    again = build(BASE, sources=place, workers=1)
    assert (again.unchanged, again.bytes_read) == (report.indexed, 0)


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["file://{}/mlruns", "sqlite:///{}/mlflow.db"])
def test_a_store_that_mlflow_has_written(hub, tmp_path, uri):
    log_runs(tmp_path, uri.format(tmp_path))
    check_built(tmp_path / "mlruns" if uri.startswith("file") else uri.format(tmp_path))


@pytest.mark.slow
def test_a_server_of_mlflow(hub, tmp_path):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [mlflow_python(), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", str(tmp_path / "kept")]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **QUIET}, stdout=log, stderr=log,
                                   start_new_session=True)  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-2000:]
                assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.5)
        log_runs(tmp_path, address)
        check_built(f"mlflow+{address}")
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
