"""Conversions in an atlas: found at indexing, shown, asked about through their source, and by file."""

from __future__ import annotations

import hashlib
import json

from studies.conversions import families, writers
from tests.conversions.conftest import BASE, CONFIG, OTHER, SOURCE, TUNED, WEIGHTS


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


def answer(shell, *words, code=0):
    ran = shell("query", *words, "--json")
    assert ran.code == code, ran.err
    return json.loads(ran.out)


def test_show_says_of_which_model_it_is_a_copy(hub):
    shown = answer(hub, "show", "dan/tuned-gguf")
    assert (shown["conversion"]["source"], shown["conversion"]["verdict"]) == (SOURCE, "exactly")
    assert any(f"a GGUF conversion (Q4_K, Q6_K) of exactly {SOURCE}" in note for note in shown["notes"])
    assert answer(hub, "show", SOURCE)["conversion"] is None
    assert "GGUF (Q4_K, Q6_K): exactly" in hub("query", "show", "dan/tuned-gguf").out


def test_a_conversion_is_answered_for_by_its_source(hub):
    ran = hub("query", "similar", "dan/tuned-gguf", "--json")
    assert json.loads(ran.out) == answer(hub, "similar", SOURCE)
    assert f"The answer is that of {SOURCE}" in ran.err
    assert answer(hub, "predict", "dan/tuned-gguf") == answer(hub, "predict", SOURCE)
    ran = hub("query", "similar", "dan/base-gguf")
    assert ran.code == 1
    assert f"of exactly {BASE}" in ran.err


def test_two_uploads_of_one_conversion_are_duplicates(hub):
    (row,) = answer(hub, "duplicates")["models"]
    assert (row["model"], row["of"], row["kind"]) == ("eve/again-gguf", "dan/tuned-gguf", "same conversion")


def test_lineage_of_an_indexed_conversion(hub):
    (edge,) = answer(hub, "lineage", "dan/tuned-gguf")
    assert (edge["parent"], edge["kind"], edge["card"], edge["residual"]) == (SOURCE, "conversion", "confirmed", 0)
    (edge,) = answer(hub, "lineage", "dan/wrong-gguf")
    assert (edge["parent"], edge["card"]) == (SOURCE, "contradicted")
    assert f"not of {OTHER} as it claims" in edge["evidence"]
    (edge,) = answer(hub, "lineage", "dan/wrong-gguf", "--fresh")
    assert (edge["parent"], edge["card"]) == (SOURCE, "contradicted")


def test_files_that_are_not_indexed(hub, tmp_path):
    path = writers.write_gguf(tmp_path / "file.gguf", CONFIG, TUNED["cyd/tuned"], "Q5_0")
    (edge,) = answer(hub, "lineage", str(path))
    assert (edge["parent"], edge["kind"]) == ("cyd/tuned", "conversion")
    (row,) = answer(hub, "identify", str(path))
    assert (row["base"], row["relation"]) == (BASE, "conversion")
    assert "of exactly cyd/tuned" in row["evidence"][0]
    ran = hub("query", "similar", str(path), "--json")
    assert json.loads(ran.out)[0]["model"] != "cyd/tuned"
    assert "The answer is that of cyd/tuned" in ran.err
    unknown = families.fine_tune(WEIGHTS, 0.01, seed=99)
    path = writers.write_gguf(tmp_path / "unknown.gguf", CONFIG, unknown, "Q8_0")
    (edge,) = answer(hub, "lineage", str(path))
    assert (edge["parent"], edge["probability"]) == (None, None)
    assert "of none that was compared" in edge["evidence"]


def test_a_bill_of_materials_leads_from_the_conversion_to_the_base(hub, tmp_path):
    def model_of(*words):
        ran = hub("query", "bom", *words)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)["metadata"]["component"]

    (ancestor,) = model_of("dan/tuned-gguf")["pedigree"]["ancestors"]
    assert f"{ancestor['group']}/{ancestor['name']}" == SOURCE
    assert [row["name"] for row in ancestor["pedigree"]["ancestors"]] == ["small-llama"]
    path = writers.write_gguf(tmp_path / "file.gguf", CONFIG, TUNED["cyd/tuned"], "Q5_0")
    own = model_of(str(path), "--name", "acme")
    assert (own["name"], own["pedigree"]["ancestors"][0]["group"]) == ("acme", "cyd")
    assert own["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_claims_of_a_conversion(hub, tmp_path):
    def verdicts(model, code):
        return {row["claim"]: row["verdict"] for row in answer(hub, "check", model, code=code)["claims"]}

    agreeing = verdicts("dan/tuned-gguf", code=0)
    assert {agreeing[name] for name in ("base", "parent", "relation", "quantisation")} == {"agrees"}
    assert verdicts("dan/wrong-gguf", code=1)["parent"] == "contradicted"
    path = writers.write_gguf(tmp_path / "file.gguf", CONFIG, TUNED["cyd/tuned"], "Q5_0")
    assert "contradicted" not in verdicts(str(path), code=0).values()
