"""A pool whose processes are killed or stopped: each unit has exactly one result, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from multiprocessing import active_children, current_process

import pytest

from indexer.builds import executor
from indexer.builds.executor import in_processes, run_units
from indexer.builds.report import Result
from indexer.builds.resources import workers_for
from indexer.errors import AtlasError
from tests import fake_work
from tests.conftest import start_python
from tests.fake_work import FakeWorker, fake_worker, unit
from tests.patience import PATIENCE, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def worker(tmp_path) -> FakeWorker:
    return fake_worker(tmp_path)


def reasons(results: list[Result]) -> dict[str, str | None]:
    """The failure of each model, which must have exactly one result."""
    counts = Counter(result.unit.model.id for result in results)
    assert set(counts.values()) == {1}, counts
    return {result.unit.model.id.removeprefix("org/"): result.error and result.error.reason for result in results}


def test_a_process_killed_in_the_middle_of_a_unit_costs_only_that_attempt(worker):
    names = ["a", "unlucky", "deadly", "b"]
    found = reasons(list(in_processes([unit(name) for name in names], worker, 2)))
    assert found == {name: "worker_died" if name == "deadly" else None for name in names}


def test_a_process_killed_while_the_results_are_looked_at_costs_nothing(worker):
    """The consumer publishes for minutes, and the processes are idle."""
    names = [str(number) for number in range(10)]
    results = []
    for result in in_processes([unit(name) for name in names], worker, 2):
        results.append(result)
        if len(results) == 3:
            active_children()[0].kill()
            wait_for(lambda: not active_children())  # the pool ends the other one itself
    assert reasons(results) == dict.fromkeys(names)


def test_processes_that_die_at_their_start_are_no_fault_of_a_unit(worker, monkeypatch):
    monkeypatch.setattr(executor, "_initialise", fake_work.die)
    with pytest.raises(AtlasError, match=r"ends before it can read a model \(exit status 3\)"):
        list(in_processes([unit("a"), unit("b"), unit("c")], worker, 2))
    assert not list(worker.atlas.rglob("*.json"))
    assert not active_children()


@pytest.mark.parametrize("how", ["together", "alone"])
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_pool_that_is_stopped_leaves_no_process(tmp_path, how, stop):
    process = start_python(
        "-m", "tests.fake_work", tmp_path, how, "slow-1", "slow-2", stderr=subprocess.PIPE
    )  # fmt: skip
    wait_for(lambda: len(list(tmp_path.glob("slow-*.met"))) == (2 if how == "together" else 1))
    if stop == signal.SIGINT:
        os.killpg(process.pid, stop)  # as a terminal does it
    else:
        process.kill()
    _, said = process.communicate(timeout=PATIENCE)  # stderr is closed when all are gone
    assert process.returncode == (130 if stop == signal.SIGINT else -stop)
    assert "Traceback" not in said
    if stop == signal.SIGINT:
        assert said == ""  # after a kill, multiprocessing tells of what it tidied up


def test_few_units_take_fewer_workers():
    assert [workers_for(32, units) for units in (0, 1, 2, 3, 50, 63, 64, 1000)] == [1, 1, 1, 2, 25, 32, 32, 32]
    assert workers_for(1, 1000) == 1


def test_a_process_that_may_not_start_others_computes_itself(worker, monkeypatch):
    """As one of a ``multiprocessing.Pool`` of the user's."""
    monkeypatch.setitem(current_process()._config, "daemon", True)
    assert reasons(list(run_units([unit("a"), unit("b")], worker, 2))) == dict.fromkeys("ab")


def test_one_worker_is_this_process(worker):
    results = list(run_units([unit("a")], worker, 1))
    assert reasons(results) == {"a": None}
    assert not active_children()
