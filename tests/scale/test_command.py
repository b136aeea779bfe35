"""``python -m studies.scale``: docs/evidence/scale.md is filled from a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from studies.scale import __main__ as report
from tests.conftest import ROOT, run_python


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25 B"), (999.6, "1 KB"), (2.6e12, "2.6 TB"), (1.3e15, "1.3 PB"), (2.6e18, "2,600 PB")]
)
def test_bytes_are_shown_in_three_digits_of_the_unit_that_fits(value, text):
    assert report.shown(value, "bytes") == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "ten"], "'ten' is not a list of numbers"),
        (["--models", "50"], "the smallest atlas has 200 models"),
        (["--models", "900000000000"], "are needed: give another --work"),
        (["--doc", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_use_is_one_line(words, said, tmp_path):
    done = run_python("-m", "studies.scale", *words, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.study
def test_the_whole_command_and_its_document(tmp_path):
    done = _run(["--models", "300", "--json", "r.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert done.stdout == report.text(results) + "\n"
    figures = results["atlases"]["300"]
    assert figures["deltas_rows"] == 300 * 72
    assert figures["nothing_neighbours"] == 0
    assert set(figures) >= {name for name, _, _ in report.MEASURED if not name.startswith("publish_")}
    copy = tmp_path / "scale.md"
    original = report.DOCUMENT.read_text(encoding="utf-8")
    copy.write_text(original, encoding="utf-8")
    report.write_document(results, copy)
    filled = copy.read_text(encoding="utf-8")
    assert "| rows of deltas | 21,600 |" in filled
    text_between = r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)"
    assert re.sub(text_between, "", filled, flags=re.DOTALL) == re.sub(text_between, "", original, flags=re.DOTALL)
    copy.write_text("nothing\n")
    with pytest.raises(ValueError, match="has no part <!-- machine -->"):
        report.write_document(results, copy)


def _run(words: list[str], folder) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "studies.scale", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
