"""``build`` from a program that Python cannot or must not run twice: its workers know nothing of it."""

from __future__ import annotations

import multiprocessing.spawn
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from indexer import processes
from tests.conftest import ROOT, run_python
from tests.tiny_hub import BASE, served_shell

# No main guard, and what it does when it is run again would be seen.
PROGRAM = """
import sys
from pathlib import Path
with Path("runs").open("a") as file:
    file.write("run\\n")
from indexer import build
report = build({base!r}, "atlas", workers=2)
print(report.indexed, report.failed)
"""


def test_only_processes_of_ours_leave_the_main_module_out(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/a/program.py", raising=False)
    complete = multiprocessing.spawn.get_preparation_data("a")
    assert complete["init_main_from_path"] == "/a/program.py"
    with processes._main_left_out():
        ours = multiprocessing.spawn.get_preparation_data("a")
        with ThreadPoolExecutor(1) as other:
            assert other.submit(multiprocessing.spawn.get_preparation_data, "a").result() == complete
    assert complete.keys() - ours.keys() == {"init_main_from_path"}
    assert multiprocessing.spawn.get_preparation_data("a") == complete


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file", "stdin"])
def test_a_program_without_a_main_guard_builds_with_several_workers(tiny_store, tmp_path, how):
    code = PROGRAM.format(base=BASE)
    (tmp_path / "program.py").write_text(code)
    words = {"file": ["program.py"], "stdin": ["-"]}[how]
    with served_shell(tiny_store(1), tmp_path) as shell:
        environment = {"HF_ENDPOINT": shell.endpoint, **shell.environment, "PYTHONNOUSERSITE": "1"}
        ran = run_python(*words, stdin=code if how == "stdin" else None, cwd=tmp_path, env=environment)
    assert ran.code == 0, ran.err
    assert ran.out == "3 0\n"
    assert "Traceback" not in ran.err
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.slow
def test_a_build_whose_workers_all_die_at_their_start_fails(tiny_store, tmp_path):
    start = "import os, sys\nif '--multiprocessing-fork' in sys.orig_argv:\n    os._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(start)
    with served_shell(tiny_store(1), tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}") as shell:
        ran = shell("index", "--quiet", "build", "--base", BASE, "--workers", "2")
        assert ran.code == 1
        assert ran.err == (
            "Error: A new process ends before it can read a model (exit status 3). "
            "--workers 1 reads in the process that is there.\n"
        )
        report = shell("index", "--quiet", "build", "--base", BASE, "--workers", "1", "--json").json
    assert (report["indexed"], report["failed"]) == (3, 0)
