"""``python -m studies.sampling``: plans of rows, what is counted, and docs/evidence/reading.md is filled from a run."""

from __future__ import annotations

import json
import os
import re

import pytest

from indexer.console.messages import verbosity
from indexer.records import row_plan
from scripts.terminal import hub_environment
from studies.sampling import __main__ as report
from studies.sampling import study
from tests.conftest import run_python
from tests.hubs import served
from tests.test_package import modules_after


def test_a_plan_is_in_force_only_inside_the_block():
    before = row_plan.lines_to_read((128, 128), False, 4), row_plan.coordinates((128, 512), True)
    with study.in_force(study.Plan(16)):
        assert row_plan.lines_to_read((128, 128), False, 4) == 16
        assert len(row_plan.coordinates((128, 512), True)) == 16
    with study.in_force(study.SHIPPED):
        assert row_plan.lines_to_read((128, 128), False, 4) == before[0]
    assert row_plan.lines_to_read((128, 128), False, 4) == before[0]
    assert (row_plan.coordinates((128, 512), True) == before[1]).all()


def test_calibration_by_hand():
    found = study.calibration([(1.1, 0.06, 1.0), (0.8, 0.06, 1.0), (1.0, 0.0, 1.0), (0.0, 0.1, 0.0)])
    assert (found["count"], found["inside"]) == (2, 1)
    assert (found["bias"], found["off"]) == pytest.approx((-0.05, 0.025**0.5))
    assert study.calibration([]) == {"count": 0}


@pytest.mark.slow
def test_the_whole_command_and_its_document(mini_family, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "LoopbackHub", lambda folder: served(folder, monkeypatch))  # its client is loaded here
    monkeypatch.setattr(verbosity, "quiet", True)
    for name in hub_environment("", tmp_path):  # what the command sets is to be undone
        monkeypatch.setenv(name, os.environ.get(name, ""))
    words = [str(mini_family), "--plans", "shipped,16", "--lineage", "--json", str(tmp_path / "r.json")]
    status = report.main([*words, "--work", str(tmp_path / "work")])
    results = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    said = capsys.readouterr()
    assert status == bool(list(report.losses(results))), said.err
    assert said.out == report.text(results) + "\n"
    ((_, found),) = results["families"].items()
    full, sample = found["plans"]["full"], found["plans"]["16"]
    assert set(found["plans"]) == {"full", "shipped", "16"}
    assert sample["cost"]["bytes"] < 0.4 * full["cost"]["bytes"]
    assert sample["correlation"] > 0.9
    assert sample["matrices"]["inside"] > 0.8 * sample["matrices"]["count"] > 0
    assert full["permuted"] == pytest.approx(full["chance"], abs=0.1)
    assert found["lineage"]["16"]["models"] == found["lineage"]["shipped"]["models"] > 0

    copy = tmp_path / "reading.md"
    original = report.DOCUMENT.read_text(encoding="utf-8")
    copy.write_text(original, encoding="utf-8")
    report.write_document(results, copy)
    text_between = r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)"
    filled = copy.read_text(encoding="utf-8")
    assert filled != original
    assert re.sub(text_between, "", filled, flags=re.DOTALL) == re.sub(text_between, "", original, flags=re.DOTALL)


def test_the_hub_can_be_named_before_its_client_is_loaded():
    assert "huggingface_hub" not in modules_after("import studies.sampling.__main__")


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "name the folder of a family"), (["--doc", "nowhere.json"], "nowhere.json"), (["nowhere"], "nowhere")],
)
def test_wrong_use_is_one_line(words, said, tmp_path):
    done = run_python("-m", "studies.sampling", *words, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
