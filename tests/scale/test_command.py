"""python -m scripts.scale: wrong use, and all of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from scripts.scale.results import read_results
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "ten"], "'ten' is not a list of numbers"),
        (["--models", "50"], "fewer than 200 models"),
        (["--models", "0", "--vectors", "900000000000"], "are needed: give another --work"),
        (["--doc", "nowhere.json"], "nowhere.json"),
        pytest.param(["--models", "0", "--vectors", "0", "--real", "."], "is not an atlas", marks=pytest.mark.slow),
    ],
)
def test_wrong_use_is_one_line(words, said, tmp_path):
    command = [sys.executable, "-m", "scripts.scale", *words]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.study
def test_the_whole_command(tmp_path):
    command = [sys.executable, "-m", "scripts.scale", "--models", "300", "--vectors", "400", "--json", "r.json"]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "r.json")
    assert done.stdout == results.text() + "\n"
    assert results.atlases[300].values["deltas_rows"] == 300 * 72
    assert results.atlases[300].values["recall_at_10"] == 1.0
    assert results.vectors[400].values["recall_at_10"] == 1.0
    assert results.atlases[300].values["nothing_neighbours"] == 0


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
