"""`query layers` and `query compare`, against what the records say."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.records.store import RecordStore
from query import Atlas
from tests.database import execute


def record_of(atlas, model):
    with Atlas(atlas.root) as opened:
        (row,) = opened.rows("SELECT record_key FROM models WHERE model = ?", [model])
    return RecordStore(atlas).read(row["record_key"])


def test_layers_are_those_of_the_record(atlas, run, tmp_path):
    record = record_of(atlas, "ann/glue-0")
    picture = tmp_path / "layers.png"
    code, out, err = run("query", "layers", "glue-0", "--atlas", atlas.root, "--json", "--out", picture)
    assert code == 0, err
    answer = json.loads(out)
    square = {(delta.key.layer, delta.key.family): float(delta.norm) ** 2 for delta in record.deltas}
    assert answer["norm"] == pytest.approx(np.sqrt(sum(square.values())), rel=1e-5)
    for one in answer["deltas"]:
        assert one["share"] == pytest.approx(square[one["layer"], one["family"]] / sum(square.values()), rel=1e-4)
    for part in answer["layers"]:
        mine = [value for (layer, _), value in square.items() if str(layer) == part["name"]]
        assert part["norm"] == pytest.approx(np.sqrt(sum(mine)), rel=1e-5)
    assert sum(part["share"] for part in answer["families"]) == pytest.approx(1)
    assert picture.read_bytes().startswith(b"\x89PNG")
    _, out, err = run("query", "layers", "glue-0", "--atlas", atlas.root)
    assert out.startswith("Most of the change")
    assert out.splitlines()[2].split()[:3] == ["layer", "query", "key"]


def test_a_comparison_is_that_of_the_vectors(atlas, run):
    with Atlas(atlas.root) as opened:
        vectors = opened.vectors("org/tiny-base")
        names = ("ann/glue-0", "bob/glue-1")
        one, other = (vectors.matrix[vectors.models.index(name)].astype(float) for name in names)
        found = opened.compare("glue-0", "bob/glue-1")
        listed = opened.similar("glue-0", 50)
        again = opened.compare("bob/glue-1", "ann/glue-0")
        deltas = opened.rows("SELECT deltas FROM bases")[0]["deltas"]
    assert found.similarity == pytest.approx(one @ other / len(deltas), abs=1e-4)
    near = next(near for near in listed if near.model == "bob/glue-1")
    assert found.similarity == pytest.approx(near.similarity, abs=1e-6)
    assert (found.background, found.matrices) == (near.background, near.matrices)
    blocks = [left @ right / np.linalg.norm(left) / np.linalg.norm(right)
              for left, right in zip(one.reshape(len(deltas), -1), other.reshape(len(deltas), -1), strict=True)]  # fmt: skip
    first = [cosine for name, cosine in zip(deltas, blocks, strict=True) if name.startswith("0.")]
    assert found.layers[0].similarity == pytest.approx(np.mean(first), abs=1e-4)
    assert again.similarity == found.similarity
    whole = found.to_rows()[0]  # the headline, which CSV would lose
    assert (whole["part"], whole["similarity"], whole["background"]) == ("all", found.similarity, found.background)
    assert whole["a_norm"] == pytest.approx(sum(part.a_norm**2 for part in found.families) ** 0.5)
    assert [part.a_norm for part in again.layers] == [part.b_norm for part in found.layers]
    authors = next(fact for fact in found.facts if fact.fact == "author")
    assert (authors.a, authors.b, authors.differs) == ("ann", "bob", True)
    code, out, _ = run("query", "compare", "ann/glue-0", "ann/imdb-0", "--atlas", atlas.root)
    assert code == 0
    assert "similarity" in out
    assert "datasets" in out
    assert run("query", "compare", "ann/glue-0", "ann/nobody", "--atlas", atlas.root)[0] == 1


@pytest.mark.parametrize("deltas", ["NULL", "[]", "['0.query', NULL]", "['0.nothing']"])
def test_matrices_that_the_atlas_does_not_name_are_a_line(atlas, deltas):
    execute(atlas.database, f"UPDATE bases SET deltas = {deltas}")
    with Atlas(atlas.root) as opened:
        for ask in (
            lambda: opened.compare("glue-0", "bob/glue-1"),
            lambda: opened.similar("glue-0", explain=True),
            lambda: opened.rank(),
        ):
            with pytest.raises(AtlasError, match="does not say which matrices org/tiny-base has") as raised:
                ask()
            assert "index rebuild" in str(raised.value)


def test_vectors_without_a_block_for_each_matrix_are_a_line(atlas):
    execute(atlas.database, "UPDATE bases SET deltas = deltas[:-2]")
    with Atlas(atlas.root) as opened, pytest.raises(AtlasError, match="do not have a block for each of its"):
        opened.compare("glue-0", "bob/glue-1")


def test_a_similarity_that_more_models_may_move_far_says_so(atlas):
    with Atlas(atlas.root) as opened:
        centre = opened.centre("org/tiny-base")
        found = opened.compare("glue-0", "bob/glue-1")
        (near, *_) = opened.similar("glue-0", 1)
        notes = opened.similar("glue-0", 1).notes
    assert centre is not None
    full = centre.groups["full"]
    expected = float(np.mean(1.5 / np.maximum(np.minimum(full.votes, full.datasets), 2)))
    assert found.similarity_error == pytest.approx(expected)
    assert near.similarity_error == pytest.approx(expected)
    (note,) = found.notes
    assert note.startswith(f"The similarity of full fine-tunes may move by up to {expected:.2f} as models are added")
    assert note in notes


def test_what_is_shown_of_a_model_is_a_sentence_and_a_few_facts(atlas, run):
    """The stored prediction and lineage are among them; the rest follows with --details, and JSON has every key."""
    with duckdb.connect(str(atlas.database)) as connection:
        ids = dict(connection.execute("SELECT model, model_id FROM fine_tunes").fetchall())
        connection.execute("DELETE FROM model_datasets WHERE model_id = ?", [ids["ann/glue-0"]])
        connection.execute(
            "INSERT INTO predictions SELECT $1, record_key, 1, 'org/guess', 0.925, 2, 0.9, 2, 0.9, 0.9, false, true, "
            "[], 'input', 10, TIMESTAMP '2026-01-02' FROM records WHERE model_id = $1",
            [ids["ann/glue-0"]],
        )
        connection.execute(
            "INSERT INTO lineage BY NAME SELECT $1 AS model_id, record_key, $2 AS parent_id, 'continued' AS kind, 1 AS "
            "coefficient, 0.2 AS \"left\", 'contradicted' AS card, 'known' AS direction, [] AS same, 0 AS bytes_read, "
            "TIMESTAMP '2026-01-02' AS answered_at, 0.97 AS probability FROM records WHERE model_id = $1",
            [ids["ann/glue-0"], ids["bob/glue-1"]],
        )
    code, out, err = run("query", "show", "ann/glue-0", "--atlas", atlas.root)
    assert (code, err) == (0, "")  # nothing odd is known of it
    sentence, blank, *facts = out.split("\n")
    assert sentence == (
        "ann/glue-0 is a fine-tune of org/tiny-base; it names no dataset, and was probably tuned on org/guess (92 %)."
    )
    assert blank == ""
    answer = dict(line.split(maxsplit=1) for line in facts[: facts.index("")])
    assert answer["made_from"] == "bob/glue-1 (continued, card: contradicted)"
    assert answer["page"].endswith("/ann/glue-0")
    assert len(answer) <= 18
    assert "signature" not in out
    _, whole, _ = run("query", "show", "ann/glue-0", "--atlas", atlas.root, "--details")
    assert "base_cosine" in whole
    assert "signature" not in whole
    _, out, _ = run("query", "show", "ann/glue-0", "--atlas", atlas.root, "--json")
    answer = json.loads(out)
    assert {"signature", "base_cosine", "families", "weight_files"} <= set(answer)
    assert answer["predictions"][0]["dataset"] == "org/guess"
    assert [row["parent"] for row in answer["lineage"]] == ["bob/glue-1"]
