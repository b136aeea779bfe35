"""A build on a real Dask cluster of real processes, whole and with its parts killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.builds import dask_executor
from indexer.builds.dask_executor import DaskExecutor
from indexer.builds.report import Result
from tests.conftest import ROOT, run_python, start_python
from tests.fake_work import fake_worker, unit
from tests.hubs import FakeClock
from tests.patience import PATIENCE, wait_for
from tests.tiny_hub import BASE, served_shell

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("distributed") is None, reason="needs the extra dask")]

SLOW = 60_000  # bytes a second: a fine-tune takes seconds, so that there is a middle to kill it in


@pytest.fixture
def shell(tiny_store, tmp_path):
    with served_shell(tiny_store(4), tmp_path) as shell:
        yield shell


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, shell, stack, scheme="tcp"):
        self.shell, self.stack = shell, stack
        self.address = f"{scheme}://127.0.0.1:{free_port()}"
        self.scheduler = self.start("scheduler", "--host", self.address, "--no-dashboard")

    def start(self, *words, **environment):
        process = start_python(
            "-m", "dask", *words,
            cwd=self.shell.folder,
            env={
                "HF_ENDPOINT": self.shell.endpoint,
                "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
                # A worker is a fork of its nanny, which has the libraries; Dask's own default loads them again.
                "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "fork",
                **self.shell.environment,
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.stack.callback(end, process)
        return process

    def worker(self, *words, **environment):
        return self.start(
            "worker", self.address, "--nthreads", "1", "--no-dashboard", "--local-directory",
            str(self.shell.folder / "dask"), *words, **environment,
        )  # fmt: skip


@contextmanager
def cluster(shell, workers, *words):
    with ExitStack() as stack:
        running = Cluster(shell, stack)
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


def start_build(shell, address):
    return start_python(
        "-m", "indexer", "build", "--base", BASE, "--executor", "dask", "--scheduler", address, "--json",
        cwd=shell.folder, env={"HF_ENDPOINT": shell.endpoint, **shell.environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(build, code=0):
    out, err = build.communicate(timeout=PATIENCE)
    assert build.returncode == code, err
    return json.loads(out) if out else err


def records(shell):
    return {path.name for path in shell.folder.glob("atlas/records/*/*.safetensors")}


def statuses(shell):
    with duckdb.connect(str(shell.folder / "atlas" / "atlas.duckdb"), read_only=True) as connection:
        return dict(connection.execute("SELECT model, coalesce(reason, status) FROM fine_tunes").fetchall())


def test_a_cluster_does_what_one_process_does(shell, made_of_twelve):
    shell.environment["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "spawn"  # as users have it
    with cluster(shell, 2) as running:
        report = finish(start_build(shell, running.address))
    assert (report["indexed"], report["failed"], report["discovered"]) == (12, 0, 12)
    alone = made_of_twelve / "atlas"
    assert json.loads((made_of_twelve / "report.json").read_text())["bytes_read"] == report["bytes_read"]
    for path in alone.glob("records/*/*.safetensors"):
        assert (shell.folder / "atlas" / path.relative_to(alone)).is_file()
    asked = [shell("query", "similar", "ann/glue-0", "--atlas", str(one), "--json").json for one in ("atlas", alone)]
    assert asked[0] == asked[1]


def certificates(folder):
    """Made as in docs/guide/clusters.md; returns the folder of a Dask configuration."""

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "rsa:2048", "-nodes")
    ca = ("-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca-key.pem", "-out", "ca.pem")
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=atlas cluster", *ca)
    openssl("req", *new_key, "-subj", "/CN=host", "-keyout", "host-key.pem", "-out", "host.csr")
    (folder / "host.ext").write_text(
        "basicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    signed = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "host.ext", "-out", "host.pem")
    openssl("x509", "-req", "-in", "host.csr", "-days", "2", *signed)
    shown = re.search("```yaml\n(.*?)```", (ROOT / "docs" / "guide" / "clusters.md").read_text(), re.DOTALL)[1]
    (folder / "config").mkdir()
    (folder / "config" / "tls.yaml").write_text(shown.replace("/etc/dask", str(folder)))
    return folder / "config"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl to make certificates")
def test_a_cluster_that_speaks_tls_does_the_same(shell):
    (shell.folder / "keys").mkdir()
    shell.environment["DASK_CONFIG"] = str(certificates(shell.folder / "keys"))
    with ExitStack() as stack:
        running = Cluster(shell, stack, "tls")
        running.worker()
        report = finish(start_build(shell, running.address))
    assert (report["indexed"], report["failed"]) == (12, 0)


def test_a_worker_killed_in_the_middle_costs_nothing(shell):
    shell.hub.bandwidth = SLOW
    with cluster(shell, 2) as running:
        build = start_build(shell, running.address)
        wait_for(lambda: 1 <= len(records(shell)) < 8)
        end(running.workers[0])
        shell.hub.bandwidth = None
        report = finish(build)
    assert (report["indexed"], report["failed"]) == (12, 0)
    assert set(statuses(shell).values()) == {"indexed"}


HUNGRY = """
import mmap
import time
import indexer.builds.worker
from indexer.deltas.vectorise import vectorise

def hungry(unit, *others, **more):
    if unit.model.id == "dan/squad-3":
        eaten = []
        while True:  # until the nanny kills it; the limit protects the machine if that takes long
            if len(eaten) < 12:
                eaten.append(bytearray(128 << 20))
                eaten[-1][:: mmap.PAGESIZE] = bytes(len(eaten[-1]) // mmap.PAGESIZE)  # each page is used
            time.sleep(0.05)
    return vectorise(unit, *others, **more)

indexer.builds.worker.vectorise = hungry
"""


def test_a_model_that_kills_its_workers_is_the_only_failure(shell):
    """Reading it allocates memory until the nanny kills the worker; it is tried again elsewhere, then given up."""
    (shell.folder / "hungry.py").write_text(HUNGRY)
    with cluster(shell, 2, "--memory-limit", "900MB", "--preload", str(shell.folder / "hungry.py")) as running:
        report = finish(start_build(shell, running.address))
    assert (report["indexed"], report["failed"], report["discovered"]) == (11, 1, 12)
    found = statuses(shell)
    assert found.pop("dan/squad-3") == "worker_died"
    assert set(found.values()) == {"indexed"}


def test_units_that_wait_for_a_worker_that_dies_are_not_blamed(tmp_path):
    """Dask blames every unit that the worker held; a single worker holds nearly all of them."""
    import dask
    from distributed import LocalCluster

    names = ["a", "deadly", "b", "c"]
    worker = fake_worker(tmp_path)
    folder = str(tmp_path / "dask")
    with (
        dask.config.set(
            {"distributed.scheduler.allowed-failures": 0, "distributed.deploy.lost-worker-timeout": "300s"}
        ),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", local_directory=folder) as local,
        closing(DaskExecutor(local.scheduler_address).run([unit(name) for name in names], worker)) as results,
    ):
        found = [(result.unit.model.id[4:], result.error and result.error.reason) for result in results]
    assert sorted(found) == [("a", None), ("b", None), ("c", None), ("deadly", "worker_died")]


def test_a_client_that_is_killed_and_started_again_goes_on(shell):
    shell.hub.bandwidth = SLOW
    with cluster(shell, 2) as running:
        build = start_build(shell, running.address)
        wait_for(lambda: 1 <= len(records(shell)) < 8)
        build.kill()
        build.communicate()
        shell.hub.bandwidth = None
        done = len(records(shell))
        report = finish(start_build(shell, running.address))
    assert report["unchanged"] >= done
    assert report["unchanged"] + report["indexed"] == 12
    assert set(statuses(shell).values()) == {"indexed"}


def test_a_scheduler_that_dies_is_one_line_and_what_was_done_stays(shell):
    shell.hub.bandwidth = SLOW
    with cluster(shell, 1) as running:
        build = start_build(shell, running.address)
        wait_for(lambda: records(shell))
        end(running.scheduler)
        err = finish(build, code=1)
    assert "went away" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert "indexed" in statuses(shell).values()  # published when it stopped


def test_a_worker_that_comes_later_and_does_not_fit_ends_the_build_before_its_first_unit(shell):
    shell.hub.bandwidth = SLOW
    with cluster(shell, 1) as running:
        build = start_build(shell, running.address)
        wait_for(lambda: records(shell))
        running.worker(HF_ENDPOINT="http://127.0.0.1:9")
        err = finish(build, code=1)
    assert "Start workers with the same HF_ENDPOINT." in err.splitlines()[-1]
    assert "indexed" in (found := set(statuses(shell).values()))
    assert "network" not in found
    assert not list(shell.folder.glob("atlas/.seen-*"))


def test_a_record_that_is_not_visible_here_is_a_failure_of_one_model(tmp_path, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(dask_executor, "time", clock)
    worker = fake_worker(tmp_path)
    lost, late = Result(unit("lost"), None), Result(unit("late"), None)
    assert dask_executor.visible_result(lost, worker).error.reason == "worker_error"
    assert clock.now - 1000.0 == pytest.approx(dask_executor.VISIBLE_SECONDS, abs=0.5)
    path = AtlasFolder(tmp_path).record(late.unit.identity.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    clock.meanwhile = lambda seconds: path.touch()
    assert dask_executor.visible_result(late, worker) is late


CONNECT = """
import sys
from pathlib import Path
from indexer.errors import AtlasError
from indexer.builds.dask_executor import DaskExecutor
try:
    DaskExecutor(sys.argv[1]).connect()
except AtlasError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("scheme", "setting", "said"),
    [
        ("tls", {}, "TLS"),
        ("tcp", {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"}, "encryption required"),
    ],
)
def test_a_client_without_tls_settings_fails_with_one_line(scheme, setting, said):
    done = run_python("-c", CONNECT, f"{scheme}://127.0.0.1:{free_port()}", env=setting, timeout=PATIENCE)
    assert done.code == 1
    assert done.err.count("\n") == 1, done.err
    assert said in done.err


def test_problems_of_a_cluster_are_reported_before_any_work(shell):
    ran = shell("index", "build", "--base", BASE, "--executor", "dask", "--scheduler", f"tcp://127.0.0.1:{free_port()}")
    assert ran.code == 1
    assert "No Dask scheduler answers at tcp://127.0.0.1:" in ran.err
    assert not list((shell.folder / "atlas").glob("listing/*"))  # nor before the crawl
    assert shell("index", "build", "--base", BASE, "--executor", "dask").code == 2
    with ExitStack() as stack:
        running = Cluster(shell, stack)
        running.worker(HF_ENDPOINT="http://127.0.0.1:9")
        err = finish(start_build(shell, running.address), code=1)
    assert "Start workers with the same HF_ENDPOINT." in err.splitlines()[-1]
