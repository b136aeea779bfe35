"""What is asked, once, and how a reply is kept and told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.reproduce import study
from scripts.reproduce.study import Reply
from scripts.terminal import CommandFailed, Terminal
from tests.loopback_hub.store import write
from tests.reproduce.made_up import purity_answer, reply


def test_a_reply_is_kept_while_its_state_command_and_file_are_the_same(tmp_path):
    question = study.Question("map", "query map --out figures/m.png", "figures/m.png")
    write(tmp_path / "figures" / "m.png", b"png")
    made = Reply(question.name, question.command, 2.0, {"models": 3}, question.file)
    kept = tmp_path / "map.json"
    assert study.read_reply(kept, question, "s1", tmp_path) is None
    study.write_reply(kept, made, "s1")
    assert study.read_reply(kept, question, "s1", tmp_path) == made
    assert study.read_reply(kept, question, "s2", tmp_path) is None
    assert study.read_reply(kept, replace(question, command="query map"), "s1", tmp_path) is None
    (tmp_path / "figures" / "m.png").unlink()
    assert study.read_reply(kept, question, "s1", tmp_path) is None
    kept.write_text("half of")
    assert study.read_reply(kept, question, "s1", tmp_path) is None


def test_a_reply_is_told_in_a_few_words():
    made = {
        "purity 0.50, chance 0.10": reply("purity-x", purity_answer(0.5, 0.5)),
        "No two models share a dataset.": reply("purity-x", purity_answer(None, None)),
        "2 clusters, adjusted Rand index with datasets 0.25": reply("clusters-x", {"ari": 0.25, "clusters": [1, 2]}),
        "0 clusters": reply("clusters-x", {"ari": None, "clusters": []}),
        "figures/m.png": reply("map-x", {"models": 3}, "figures/m.png"),
        "no answer": reply("report", None, error="Error: why"),
    }
    assert {study.gist(each) for each in made.values()} == set(made)


def test_every_base_of_the_seed_is_asked_the_same_and_fused_ones_both_ways():
    assert [base.id for base in study.BASES] == ["bert-base-uncased", "roberta-base", "t5-base", "gpt2-medium"]
    asked = {base.id: [q.name for q in study.questions(base, "org/x", ".png")] for base in study.BASES}
    assert asked["bert-base-uncased"] == asked["roberta-base"] == asked["t5-base"]
    assert set(asked["gpt2-medium"]) - set(asked["t5-base"]) == {"rank-weights-whole", "rank-delta-whole"}
    assert {"purity-seed", "purity-input", "clusters-seed", "map-seed", "rank-weights", "report"} <= set(
        asked["t5-base"]
    )
    files = [q.file for q in study.questions(study.BASES[3], "org/x", ".svg") if q.file]
    assert len(set(files)) == len(files)
    assert all(file.startswith(("figures/", "reports/")) and "org--x" in file for file in files)


def test_a_command_that_fails_says_its_last_line(tmp_path):
    run = Terminal(tmp_path)
    with pytest.raises(CommandFailed, match=r"no atlas\.duckdb there") as failure:
        run.ask("query sql 'SELECT 1' --json")
    assert failure.value.said.startswith("Error:")
    with pytest.raises(CommandFailed, match="exit code 2"):
        run("query nonsense", show=False)
