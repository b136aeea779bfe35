"""A build on a real Dask cluster of real processes, whole and with its parts killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress

import duckdb
import pytest

from scripts.loopback_hub import LoopbackHub
from tests.conftest import ROOT, Shell
from tests.world import BASE, make_world

pytest.importorskip("distributed", reason="needs the extra dask")

SLOW = 60_000  # bytes a second: a fine-tune takes seconds, so that there is a middle to kill it in


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world") / "store")


@pytest.fixture
def world(template, tmp_path):
    shutil.copytree(template, tmp_path / "store")
    with LoopbackHub(tmp_path / "store") as hub:
        shell = Shell(hub.endpoint, tmp_path)
        shell.environment["HF_HOME"] = str(tmp_path / "hf")
        shell.hub = hub
        yield shell


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, world, stack):
        self.world, self.stack = world, stack
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.scheduler = self.start("scheduler", "--host", self.address, "--no-dashboard")

    def start(self, *words, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            cwd=self.world.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HF_ENDPOINT": self.world.endpoint,
                "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
                **self.world.environment,
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.stack.callback(end, process)
        return process

    def worker(self, *words, **environment):
        return self.start(
            "worker", self.address, "--nthreads", "1", "--no-dashboard", "--local-directory",
            str(self.world.folder / "dask"), *words, **environment,
        )  # fmt: skip


@contextmanager
def cluster(world, workers, *words):
    with ExitStack() as stack:
        running = Cluster(world, stack)
        running.workers = [running.worker(*words) for _ in range(workers)]
        yield running


def end(process):
    """A worker's nanny and its process are one group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_build(world, address):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "indexer",
            "build",
            "--base",
            BASE,
            "--executor",
            "dask",
            "--scheduler",
            address,
            "--json",
        ],
        cwd=world.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": world.endpoint, **world.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(build, code=0):
    out, err = build.communicate(timeout=120)
    assert build.returncode == code, err
    return json.loads(out) if out else err


def records(world):
    return {path.name for path in world.folder.glob("atlas/records/*/*.safetensors")}


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.05)


def statuses(world):
    with duckdb.connect(str(world.folder / "atlas" / "atlas.duckdb"), read_only=True) as connection:
        return dict(connection.execute("SELECT model, coalesce(reason, status) FROM fine_tunes").fetchall())


def test_a_cluster_does_what_one_process_does(world):
    with cluster(world, 2) as running:
        report = finish(start_build(world, running.address))
    assert (report["indexed"], report["failed"], report["discovered"]) == (12, 0, 12)
    alone = world("index", "build", "--base", BASE, "--atlas", "alone", "--workers", "1", "--json").json
    assert alone["bytes_read"] == report["bytes_read"]
    for path in world.folder.glob("alone/records/*/*.safetensors"):
        assert (world.folder / "atlas" / path.relative_to(world.folder / "alone")).is_file()
    asked = [world("query", "similar", "ann/glue-0", "--atlas", atlas, "--json").json for atlas in ("atlas", "alone")]
    assert asked[0] == asked[1]


def test_a_worker_killed_in_the_middle_costs_nothing(world):
    world.hub.bandwidth = SLOW
    with cluster(world, 2) as running:
        build = start_build(world, running.address)
        wait_for(lambda: 1 <= len(records(world)) < 8)
        end(running.workers[0])
        world.hub.bandwidth = None
        report = finish(build)
    assert (report["indexed"], report["failed"]) == (12, 0)
    assert set(statuses(world).values()) == {"indexed"}


HUNGRY = """
import time
import indexer.running.worker
from indexer.unit import vectorise

def hungry(unit, *others, **more):
    if unit.model.id == "dan/squad-3":
        eaten = []
        while True:  # until somebody ends it
            eaten.append(bytearray(b"x" * (32 << 20)))
            time.sleep(0.05)
    return vectorise(unit, *others, **more)

indexer.running.worker.vectorise = hungry
"""


def test_a_model_that_takes_its_workers_down_is_a_failure_and_the_only_one(world):
    """Reading it eats memory until the nanny kills the worker; it is tried again elsewhere, then given up."""
    (world.folder / "hungry.py").write_text(HUNGRY)
    with cluster(world, 2, "--memory-limit", "900MB", "--preload", str(world.folder / "hungry.py")) as running:
        report = finish(start_build(world, running.address))
    assert (report["indexed"], report["failed"], report["discovered"]) == (11, 1, 12)
    found = statuses(world)
    assert found.pop("dan/squad-3") == "worker_died"
    assert set(found.values()) == {"indexed"}


@pytest.mark.slow
def test_a_client_that_is_killed_and_started_again_goes_on(world):
    world.hub.bandwidth = SLOW
    with cluster(world, 2) as running:
        build = start_build(world, running.address)
        wait_for(lambda: 1 <= len(records(world)) < 8)
        build.kill()
        build.communicate()
        world.hub.bandwidth = None
        done = len(records(world))
        report = finish(start_build(world, running.address))
    assert report["unchanged"] >= done
    assert report["unchanged"] + report["indexed"] == 12
    assert set(statuses(world).values()) == {"indexed"}


@pytest.mark.slow
def test_a_scheduler_that_dies_is_one_line_and_what_was_done_stays(world):
    world.hub.bandwidth = SLOW
    with cluster(world, 1) as running:
        build = start_build(world, running.address)
        wait_for(lambda: records(world))
        end(running.scheduler)
        err = finish(build, code=1)
    assert "went away" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "indexed" in statuses(world).values()  # published when it stopped


def test_what_is_wrong_with_a_cluster_is_said_before_any_work(world):
    ran = world("index", "build", "--base", BASE, "--executor", "dask", "--scheduler", f"tcp://127.0.0.1:{free_port()}")
    assert ran.code == 1
    assert "No Dask scheduler answers at tcp://127.0.0.1:" in ran.err
    assert world("index", "build", "--base", BASE, "--executor", "dask").code == 2
    with ExitStack() as stack:
        running = Cluster(world, stack)
        running.worker(HF_ENDPOINT="http://127.0.0.1:9")
        err = finish(start_build(world, running.address), code=1)
    assert "Start workers with the same HF_ENDPOINT." in err.splitlines()[-1]
