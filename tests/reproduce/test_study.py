"""The study on a small Hub, its options, and (slow) from training to report."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from types import SimpleNamespace

import pytest

from scripts.loopback_hub import LoopbackHub
from scripts.reproduce import __main__ as command
from scripts.reproduce import study
from scripts.terminal import Terminal
from tests.conftest import start_python
from tests.tiny_hub import BASE


@pytest.mark.slow
def test_a_study_from_crawl_to_answers(tiny_store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "REPRESENTATIONS", ("seed", "input"))
    asked = {
        "purity-input": (f"query purity --base {BASE}", None),
        "purity-unpublished": (f"query purity --base {BASE} --representation delta", None),
    }
    monkeypatch.setattr(study, "questions", lambda *_: asked)

    def started(words, *, cwd, env, text, **streams):
        return start_python(*words[1:], cwd=cwd, env=env, **streams)

    monkeypatch.setattr("scripts.terminal.subprocess", SimpleNamespace(Popen=started, PIPE=subprocess.PIPE))
    with LoopbackHub(tiny_store(4)) as hub:
        run = Terminal.of_hub(tmp_path, hub.endpoint)
        base = study.build(run, BASE, 9, is_family=False)
        assert base == BASE
        assert study.represent(run, [base]) == ["seed"]
        made = study.study_base(run, study.BASES[1], base, None, 9)
        assert study.represent(run, [base]) == []
    # Twelve models are planted, four a data set; nine are asked for, and every group is perfectly pure.
    counts = made["counts"]
    assert [counts[name] for name in ("indexed", "not_tried", "skipped", "failed")] == [9, 3, 0, 0]
    assert (counts["datasets"], counts["authors"]) == (3, 4)
    assert made["check"] is None
    assert made["replies"]["purity-input"]["answer"]["purity"] == 1.0
    assert "not published" in made["replies"]["purity-unpublished"]["error"]
    assert f"$ index build --base {BASE} --spectra --limit 9" in capsys.readouterr().out


def test_all_bases_are_asked_the_same_and_fused_ones_both_ways():
    asked = {base.id: study.questions("org/x", base.is_fused) for base in study.BASES}
    assert set(asked["gpt2-medium"]) - set(asked["t5-base"]) == {"rank-weights-whole", "rank-delta-whole"}
    assert asked["t5-base"]["map-seed"] == (
        "query map --representation seed --base org/x --out figures/map-org--x-seed.png", "figures/map-org--x-seed.png"
    )  # fmt: skip
    files = [file for _, file in asked["gpt2-medium"].values() if file]
    assert len(set(files)) == len(files)


def planted(outcome="indexed", reason=None, flag=None):
    return {"outcome": outcome, "reason": reason, "flag": flag, "why": f"{outcome} for a reason."}


@pytest.mark.parametrize(
    ("expected", "found", "is_right"),
    [
        (planted(), {"status": "indexed"}, True),
        (planted(), {"status": "indexed", "copy": True}, False),
        (planted(), {"status": "failed", "reason": "timeout"}, False),
        (planted(flag="copy"), {"status": "indexed", "copy": True, "duplicate": True}, True),
        (planted(flag="duplicate"), {"status": "indexed"}, False),
        (planted("skipped", "gated"), {"status": "skipped", "reason": "gated"}, True),
        (planted("skipped", "gated"), {"status": "skipped", "reason": "disabled"}, False),
        (planted("not listed"), None, True),
        (planted("not listed"), {"status": "indexed"}, False),
    ],
)
def test_an_outcome_is_as_expected_or_not(expected, found, is_right):
    rows = {"a/b": {"reason": None, **found}} if found else {}
    made = study.check({"a/b": expected}, rows, is_partial=False)
    assert [(kind["models"], kind["as_expected"]) for kind in made["kinds"]] == [(1, int(is_right))]
    assert [row["model"] for row in made["mismatches"]] == ([] if is_right else ["a/b"])


def test_with_a_limit_only_models_that_were_tried_are_judged():
    expected = {"a/1": planted(), "a/2": planted(), "a/3": planted("skipped", "gated"), "a/4": planted("not listed")}
    found = {name: {"status": status, "reason": None} for name, status in
             {"a/1": "indexed", "a/2": "listed", "a/4": "indexed"}.items()}  # fmt: skip
    made = study.check(expected, found, is_partial=True)
    assert made["not_tried"] == 2
    assert [row["model"] for row in made["mismatches"]] == ["a/4"]
    whole = study.check(expected, found, is_partial=False)
    assert [row["model"] for row in whole["mismatches"]] == ["a/2", "a/3", "a/4"]


def test_options():
    options = command.parse([])
    assert (options.live, options.limit, options.size) == (False, None, "full")
    assert options.bases == [base.id for base in study.BASES]
    assert command.parse(["--live"]).limit == command.LIVE_LIMIT
    assert command.parse(["--live", "--limit", "7", "--bases", "t5-base"]).limit == 7
    for wrong in (["--limit", "0"], ["--limit", "many"], ["--bases", "llama"]):
        with pytest.raises(SystemExit) as end:
            command.parse(wrong)
        assert end.value.code == 2


@pytest.mark.parametrize(("missing", "extra"), [("peft", "demo"), ("umap", "studies")])
def test_a_missing_extra_is_named_before_anything_is_done(missing, extra, tmp_path, monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert command.main(["--out", str(tmp_path / "out")]) == 1
    assert f".[{extra}]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ctrl_c_says_how_to_continue(tmp_path, monkeypatch, capsys):
    def stop(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce", stop)
    assert command.main(["--live", "--out", str(tmp_path)]) == 130
    assert "to continue" in capsys.readouterr().err


@pytest.mark.study
@pytest.mark.timeout(1200)
def test_two_miniature_families_from_training_to_report(tmp_path):
    words = ["--size", "mini", "--bases", "t5-base", "gpt2-medium", "--families", str(tmp_path)]
    assert command.main([*words, "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [one["base"] for one in results["bases"]] == ["atlas-demo/tiny-t5", "atlas-demo/tiny-gpt2"]
    for one in results["bases"]:
        assert one["check"]["mismatches"] == []
        assert sum(kind["models"] for kind in one["check"]["kinds"]) == 10
        assert one["counts"]["indexed"] == 7
        for made in one["replies"].values():
            assert made["error"] is None, made
            assert made["file"] is None or (tmp_path / "out" / made["file"]).stat().st_size > 1000
    page = (tmp_path / "out" / "results.md").read_text()
    assert "| `decoder.cross_query` |" in page
    assert "(figures/purity.png)" in page


@pytest.mark.study
@pytest.mark.timeout(3000)
def test_families_of_every_architecture_end_as_expected_and_know_their_data(tmp_path):
    words = ["--size", "small", "--bases", "bert-base-uncased", "t5-base", "gpt2-medium"]
    assert command.main([*words, "--families", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    for one in json.loads((tmp_path / "out" / "results.json").read_text())["bases"]:
        assert one["check"]["mismatches"] == [], one["base"]
        purity = one["replies"]["purity-input"]["answer"]
        assert purity["purity"] > 2 * purity["chance"], one["base"]
        assert purity["p_value"] < 0.01, one["base"]
