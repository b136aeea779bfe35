"""Conversions in an atlas: found at indexing, shown, asked about through their source, and by file."""

from __future__ import annotations

import json

from tests.conversions.conftest import BASE, SOURCE


def rows(shell, statement):
    ran = shell("query", "sql", statement, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_build_finds_the_source_of_each(hub):
    found = {
        row["model"]: row
        for row in rows(hub, "SELECT model, conversions.* FROM conversions JOIN fine_tunes USING (model_id)")
    }
    verdicts = {name: (row["source"], row["verdict"], row["format"]) for name, row in found.items()}
    assert verdicts == {
        "dan/tuned-gguf": (SOURCE, "exactly", "GGUF"),
        "eve/again-gguf": (SOURCE, "exactly", "GGUF"),
        "dan/wrong-gguf": (SOURCE, "differs from what it claims", "GGUF"),
        "dan/tampered-gguf": (SOURCE, "differs from what it claims", "GGUF"),
        "dan/base-gguf": (BASE, "exactly", "GGUF"),
        "dan/tuned-gptq": (SOURCE, "consistent with", "GPTQ"),
    }
    faithful = found["dan/tuned-gguf"]
    assert faithful["types"] == "Q4_K, Q6_K"
    assert faithful["rows_equal"] == faithful["rows_compared"] > 0
    assert found["dan/tampered-gguf"]["differing"] == ["model.layers.0.mlp.up_proj.weight"]
    assert found["dan/base-gguf"]["source_id"] is None
    assert found["dan/tuned-gptq"]["log_odds"] > 6
    # No vector, no change.
    assert rows(hub, "SELECT count(*) AS n FROM fine_tunes WHERE status = 'indexed'") == [{"n": 3}]
    assert rows(hub, "SELECT DISTINCT status, reason FROM fine_tunes WHERE relation = 'quantized'") == [
        {"status": "skipped", "reason": "conversion"}
    ]


def test_another_build_asks_nothing_again_and_keeps_the_answers(hub):
    before = rows(hub, "FROM conversions ORDER BY model_id")
    ran = hub("index", "build", "--base", BASE, "--relation", "finetune,quantized", "--json")
    assert json.loads(ran.out)["bytes_read"] == 0
    assert rows(hub, "FROM conversions ORDER BY model_id") == before
    assert hub("index", "verify").code == 0
