"""Commands that read samples: several workers share the connections, and Ctrl-C ends all of them at once."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time

import pytest

import indexer
from indexer.database.reading import Reading
from tests.checkpoints import claim, roberta
from tests.conftest import start_python
from tests.patience import PATIENCE
from tests.sampling import made
from tests.sampling.test_traffic import most_at_a_time
from tests.tiny_hub import served_shell

pytestmark = pytest.mark.slow

KIND = roberta(1, 256, 1024)
MODELS = 5


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    base = made.base_weights(KIND)
    made.save(root / made.BASE, KIND, base)
    claim(root, made.BASE, "nobody/nothing")
    for number in range(MODELS):
        model = f"ann/m{number}"
        made.save(root / model, KIND, made.tuned_of(KIND, base, seed=number))
        claim(root, model, made.BASE)
    return root


@pytest.fixture(scope="module")
def begun(store, tmp_path_factory):
    """Folders with an atlas of one model, and of all, by the number of models."""
    made = {}
    for count in (1, MODELS):
        with served_shell(store, tmp_path_factory.mktemp("begun")) as shell:
            build(shell, "--limit", str(count))
            made[count] = shell.folder
    return made


@pytest.fixture
def shell(store, tmp_path):
    with served_shell(store, tmp_path) as running:
        yield running


def build(shell, *words):
    ran = shell("index", "build", "--base", made.BASE, "--json", *words)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.mark.parametrize(
    ("workers", "connections", "read"), [("4", "1", "sample"), ("1", "3", "sample"), ("4", "1", "full")]
)
def test_workers_share_the_connections(begun, shell, workers, connections, read):
    shutil.copytree(begun[1] / "atlas", shell.folder / "atlas")  # the base is there
    shell.hub.latency = 0.1
    report = build(shell, "--workers", workers, "--connections", connections, "--read", read)
    assert report["indexed"] == (MODELS if read == "full" else MODELS - 1)
    of_weights = [one for one in shell.hub.requests if re.search("safetensors", one.path)]
    assert {one.role for one in of_weights} == {"hub", "cdn"}
    most = most_at_a_time(of_weights, 0.1)
    assert most <= int(connections)
    if workers == "1":
        assert most >= 2  # of several workers each may be the only one at work
    assert not indexer.verify(shell.folder / "atlas", strict=True)


@pytest.mark.parametrize(
    ("command", "workers", "stop"),
    [
        ("build", "1", signal.SIGINT),
        pytest.param("build", "2", signal.SIGTERM),
        pytest.param("deepen", "2", signal.SIGINT),
    ],
)
def test_a_stop_with_a_hanging_hub_ends_in_seconds_and_keeps_what_is_done(begun, shell, command, workers, stop):
    if command == "deepen":
        shutil.copytree(begun[MODELS] / "atlas", shell.folder / "atlas")
    shell.hub.faults.add("m[34].*safetensors", role="cdn", since=3, hang=600.0)
    process = start_python(
        "-m", "indexer", command, "--base", made.BASE, "--workers", workers,
        cwd=shell.folder, env={**shell.environment, "HF_ENDPOINT": shell.endpoint}, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    asked = re.compile(r"m[34]/.*safetensors")
    while sum(bool(asked.search(str(one.path) + str(one.filename))) for one in shell.hub.requests) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    began = time.monotonic()
    process.send_signal(stop)
    _, said = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 20
    assert process.returncode == 128 + stop
    assert "Traceback" not in said
    shell.hub.faults.clear()
    assert not indexer.verify(shell.folder / "atlas")
    if command == "build":
        assert build(shell)["indexed"] >= 1
    else:
        ran = shell("index", "deepen", "--base", made.BASE, "--workers", "1", "--json")
        assert ran.code == 0, ran.err
    with Reading(shell.folder / "atlas" / "atlas.duckdb") as connection:
        found = connection.rows('SELECT "read", count(*) AS n FROM models GROUP BY 1')
    assert found == [{"read": "full" if command == "deepen" else "sample", "n": MODELS}]


def test_commands_say_what_they_read(begun, shell):
    ran = shell("index", "build", "--base", made.BASE, "--dry-run")
    assert "with --read full" in ran.out + ran.err
    refused = shell("index", "build", "--base", made.BASE, "--read", "sample", "--spectra")
    assert refused.code != 0
    assert refused.err.strip().count("\n") <= 1
    assert "--spectra" in refused.err
    assert "--read" in refused.err
    atlas = str(begun[MODELS] / "atlas")
    ran = shell("index", "deepen", "ann/m0", "--dry-run", "--atlas", atlas)
    assert ran.code == 0, ran.err
    assert "1 model" in ran.out + ran.err
    for words in (["ann/m99"], [], ["ann/m0", "--limit", "1"]):
        wrong = shell("index", "deepen", *words, "--atlas", atlas)
        assert wrong.code != 0
        assert "Traceback" not in wrong.err
        assert wrong.err.strip().count("\n") <= 2
