"""The study on a planted Hub, its options, and (slow) from training to report."""

from __future__ import annotations

import importlib.util
import json

import pytest

from scripts.loopback_hub import LoopbackHub
from scripts.reproduce import __main__ as command
from scripts.reproduce import study
from scripts.terminal import Terminal
from tests.world import BASE, make_world


@pytest.fixture(scope="module")
def planted_hub(tmp_path_factory):
    with LoopbackHub(make_world(tmp_path_factory.mktemp("world"))) as hub:
        yield hub


@pytest.mark.slow
def test_a_study_from_crawl_to_answers_and_again(planted_hub, tmp_path, monkeypatch, capsys):
    subject = study.Subject(study.BASES[1], BASE)
    monkeypatch.setattr(study, "REPRESENTATIONS", ("seed", "input"))
    asked = (
        study.Question("purity-input", f"query purity --base {BASE}"),
        study.Question("purity-unpublished", f"query purity --base {BASE} --representation delta"),
    )
    monkeypatch.setattr(study, "questions", lambda *_: asked)
    run = Terminal.of_hub(tmp_path, planted_hub.endpoint)
    base = study.build(run, subject, limit=9)
    assert base == BASE
    assert list(study.represent(run, [base])) == ["seed"]
    made = study.study(run, subject, base, 9, ".png")
    # Twelve models are planted, four a data set; nine are asked for, and every group is perfectly pure.
    assert (made.counts.indexed, made.counts.not_tried, made.counts.skipped, made.counts.failed) == (9, 3, 0, 0)
    assert (made.counts.datasets, made.counts.authors) == (3, 4)
    assert made.check is None
    assert made.answer("purity-input")["purity"] == 1.0
    assert "not published" in made.replies["purity-unpublished"].error
    assert made.seconds["build"] > 0
    shown = capsys.readouterr().out
    assert f"$ index build --base {BASE} --spectra --limit 9" in shown
    assert f"$ query purity --base {BASE} --json" in shown

    study.build(run, subject, limit=9)
    assert list(study.represent(run, [base])) == ["seed"]
    again = study.study(run, subject, base, 9, ".png")
    shown = capsys.readouterr().out
    assert f"{BASE}: 2 questions, 1 of them answered before" in shown
    assert "index represent" not in shown
    assert f"$ query purity --base {BASE} --json" not in shown
    assert "--representation delta" in shown  # what failed is asked again
    assert again.replies["purity-input"] == made.replies["purity-input"]


# ---- the command line


def test_options():
    options = command.parse([])
    assert (options.live, options.limit, options.size) == (False, None, "full")
    assert options.bases == [base.id for base in study.BASES]
    assert command.parse(["--live"]).limit == command.LIVE_LIMIT
    assert command.parse(["--live", "--limit", "7", "--bases", "t5-base"]).limit == 7
    for wrong in (["--limit", "0"], ["--limit", "many"], ["--bases", "llama"], ["--figures", "gif"]):
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


def test_ctrl_c_says_that_it_goes_on(tmp_path, monkeypatch, capsys):
    def stop(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce", stop)
    assert command.main(["--live", "--out", str(tmp_path)]) == 130
    assert "goes on from here" in capsys.readouterr().err


# ---- slow: families, end to end


@pytest.mark.study
@pytest.mark.timeout(1200)
def test_two_miniature_families_from_training_to_report(tmp_path, capsys):
    words = ["--size", "mini", "--bases", "t5-base", "gpt2-medium", "--families", str(tmp_path)]
    words += ["--out", str(tmp_path / "out"), "--figures", "svg"]
    assert command.main(words) == 0
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [one["base"] for one in told["bases"]] == ["atlas-demo/tiny-t5", "atlas-demo/tiny-gpt2"]
    for one in told["bases"]:
        assert one["check"]["mismatches"] == []
        assert sum(kind["models"] for kind in one["check"]["kinds"]) == 10
        assert one["counts"]["indexed"] == 7
        for made in one["replies"].values():
            assert made["error"] is None, made
            assert made["file"] is None or (tmp_path / "out" / made["file"]).stat().st_size > 1000
    page = (tmp_path / "out" / "results.md").read_text()
    assert "| `decoder.cross_query` |" in page
    assert "(figures/purity.svg)" in page
    capsys.readouterr()
    assert command.main(words) == 0
    assert "$ query" not in capsys.readouterr().out


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
