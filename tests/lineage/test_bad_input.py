"""Errors and notes in one line: no base, no records, a parent that is gone, claims that contradict each other."""

from __future__ import annotations

import os
import shutil

import duckdb
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.questions.lineage.result import Edge
from tests.checkpoints import gpt2, save
from tests.conftest import Shell
from tests.hubs import use_endpoint

pytestmark = pytest.mark.slow


@pytest.fixture
def damaged_atlas(forest, tmp_path):
    """A copy of the atlas that a test may damage."""
    shutil.copytree(forest.atlas, tmp_path / "atlas")
    return tmp_path / "atlas"


def changed(atlas, *statements):
    with duckdb.connect(str(atlas / "atlas.duckdb")) as connection:
        for statement, parameters in statements:
            connection.execute(statement, parameters)


def declares(model, parent):
    return (
        "INSERT INTO tags SELECT model_id, ? FROM fine_tunes WHERE model = ?",
        [f"base_model:finetune:{parent}", model],
    )


def undeclared(*models):
    return [
        ("DELETE FROM tags WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE model = ?) AND tag LIKE 'base_model:%'",
         [model])
        for model in models
    ]  # fmt: skip


def test_a_model_of_another_architecture_is_refused_in_a_line(forest, trees, damaged_atlas, tmp_path):
    kind = gpt2(1, 32)
    save(tmp_path / "gpt", kind, kind.random(0))
    result = Shell(trees.endpoint, tmp_path)("query", "lineage", "./gpt")
    assert result.code == 1
    assert "its architecture is gpt2" in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_base_that_is_not_in_the_atlas_is_an_error(forest, trees, damaged_atlas, tmp_path):
    result = Shell(trees.endpoint, tmp_path)("query", "lineage", forest.first_of("root"), "--base", "nobody/nothing")
    assert result.code == 1
    assert "is not a base of this atlas" in result.err


def test_a_model_with_an_unknown_base_is_an_error_that_lists_the_bases(
    damaged_atlas, forest, trees, monkeypatch, tmp_path
):
    use_endpoint(monkeypatch, trees.endpoint)
    changed(damaged_atlas, ("INSERT INTO bases (base, \"commit\", aliases) VALUES ('other/base', 'c', [])", []))
    shutil.copytree(forest.store / forest.first_of("root"), tmp_path / "folder")
    with Atlas(damaged_atlas) as atlas, pytest.raises(AtlasError, match="claims no base; the bases of this atlas are"):
        atlas.lineage(tmp_path / "folder")


@pytest.mark.parametrize("records", ["gone", "without factors", "damaged"])
def test_an_atlas_without_records_is_an_error_with_advice(forest, trees, damaged_atlas, tmp_path, records):
    if records == "gone":
        shutil.rmtree(damaged_atlas / "records")
    for path in (damaged_atlas / "records").glob("*/*.safetensors"):
        if records == "damaged":
            path.write_bytes(path.read_bytes()[:1000])
        else:
            from dataclasses import replace

            from indexer.records.record import read_record, write_record

            record = read_record(path)
            write_record(replace(record, deltas=tuple(replace(delta, u=None, v=None) for delta in record.deltas)), path)
    result = Shell(trees.endpoint, tmp_path)("query", "lineage", forest.first_of("child"), "--fresh")
    assert result.code == 1
    assert "Lineage needs the records" in result.err
    assert "--no-keep-factors" in result.err
    assert "--with-records" in result.err


def test_one_damaged_record_leaves_its_model_out_with_a_note(forest, trees, damaged_atlas, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    sweep = forest.first_of("sweep")
    with Atlas(damaged_atlas) as atlas:
        (row,) = atlas.rows("SELECT record_key FROM fine_tunes WHERE model = ?", [sweep])
        path = atlas.folder.record(row["record_key"])
        path.write_bytes(path.read_bytes()[:500])
        child = forest.first_of("grandchild")
        answer = atlas.lineage(child, dates=False)
    assert {edge.parent for edge in answer.edges} == forest.parents(child)
    assert any(note.startswith("left out") and note.endswith(": 1 model") for note in answer.notes)


def test_a_parent_that_left_the_hub_is_named_by_its_record(forest, damaged_atlas, monkeypatch, tmp_path):
    from scripts.loopback_hub import LoopbackHub

    child = next(
        name
        for name, node in forest.nodes.items()
        if node["group"] == "grandchild" and not any(
            other["kind"] == "copy" and set(other["parents"]) == set(node["parents"]) for other in forest.nodes.values()
        )
    )  # fmt: skip
    (parent,) = forest.parents(child)
    store = shutil.copytree(forest.store, tmp_path / "store", copy_function=os.link)
    shutil.rmtree(store / parent)
    (store / f"{parent}.repo.json").unlink()
    with LoopbackHub(store) as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        with Atlas(damaged_atlas) as atlas:
            answer = atlas.lineage(child, fresh=True)
    assert any(f"{parent} cannot be read any more" in note for note in answer.notes)
    named = {edge.parent for edge in answer.edges}
    ancestors = {parent, *forest.parents(parent)}
    assert named <= ancestors
    assert named


def test_claims_in_a_circle_are_noted_and_the_weights_decide(forest, trees, damaged_atlas, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    child = forest.first_of("child")
    (parent,) = forest.parents(child)
    changed(damaged_atlas, *undeclared(child, parent), declares(child, parent), declares(parent, child))
    with Atlas(damaged_atlas) as atlas:
        forth = atlas.lineage(child, fresh=True)
        back = atlas.lineage(parent, fresh=True)
    assert [(row.parent, row.card) for row in forth.edges] == [(parent, "confirmed")]
    assert [(row.parent, row.card) for row in back.edges] == [(forest.base, "contradicted")]
    assert any("name each other as parents" in note for note in forth.notes)
    assert any("name each other as parents" in note for note in back.notes)


def test_a_declared_parent_of_another_width_is_contradicted_with_the_reason(forest, trees, damaged_atlas, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    model = forest.first_of("root")
    changed(
        damaged_atlas,
        *undeclared(model),
        (
            "INSERT INTO fine_tunes (model_id, model, base, author, status, reason, detail, relation) "
            "VALUES (9999, 'wide/one', ?, 'wide', 'skipped', 'shape_mismatch', '96 wide, the base is 64', 'finetune')",
            [forest.base],
        ),
        declares(model, "wide/one"),
    )
    with Atlas(damaged_atlas) as atlas:
        answer = atlas.lineage(model, fresh=True)
    assert [(row.parent, row.card) for row in answer.edges] == [(forest.base, "contradicted")]
    assert any("wide/one" in note and "96 wide" in note for note in answer.notes)


def test_a_declared_parent_outside_the_atlas_is_neither_confirmed_nor_contradicted(
    forest, trees, damaged_atlas, monkeypatch
):
    use_endpoint(monkeypatch, trees.endpoint)
    model = forest.first_of("orphan")
    changed(damaged_atlas, *undeclared(model), declares(model, "gone/for-good"))
    with Atlas(damaged_atlas) as atlas:
        answer = atlas.lineage(model, fresh=True)
    assert [(row.parent, row.card) for row in answer.edges] == [(forest.base, "not declared")]
    assert any("gone/for-good, which this atlas does not contain" in note for note in answer.notes)


def test_without_the_base_embeddings_blocks_decide_with_a_note(forest, damaged_atlas, monkeypatch, tmp_path):
    from scripts.loopback_hub import LoopbackHub

    store = shutil.copytree(forest.store, tmp_path / "store", copy_function=os.link)
    shutil.rmtree(store / forest.base)
    with LoopbackHub(store) as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        with Atlas(damaged_atlas) as atlas:
            answer = atlas.lineage(forest.first_of("linear"), fresh=True)
    assert {row.parent for row in answer.edges} == forest.parents(forest.first_of("linear"))
    assert any("does not use embeddings" in note for note in answer.notes)


def test_a_note_counts_the_candidates_without_records_of_its_own_model(forest, trees, damaged_atlas, monkeypatch):
    from query.questions.lineage.lineage import Tracer

    use_endpoint(monkeypatch, trees.endpoint)
    with Atlas(damaged_atlas) as atlas:
        rows = atlas.rows("SELECT model_id, record_key FROM models WHERE NOT is_copy AND NOT is_unrelated ORDER BY ALL")
        without, other = rows[0], rows[1]
        atlas.folder.record(without["record_key"]).unlink()
        tracer = Tracer(atlas, forest.base, dates=False)
        answers = [tracer.of_indexed(row["model_id"]) for row in (other, without)]
    notes = [[note for note in answer.notes if note.startswith("left out")] for answer in answers]
    assert notes == [["left out, because their records are missing or contain no factors: 1 model"], []]


def test_a_small_budget_is_kept(forest, trees, monkeypatch):
    from query.questions.lineage.lineage import lineage
    from query.questions.lineage.thresholds import Thresholds

    use_endpoint(monkeypatch, trees.endpoint)
    name = forest.first_of("dare")
    with Atlas(forest.atlas) as atlas:
        answer = lineage(atlas, name, fresh=True)
        budget = answer.bytes_read // 2
        assert lineage(atlas, name, thresholds=Thresholds(max_bytes=budget)).bytes_read <= budget


def test_a_tree_with_a_circle_is_drawn():
    pytest.importorskip("matplotlib")
    from query.questions.lineage.result import edges_around, positions, tree_figure

    edges = [
        Edge("a", "b", "continued", 1.0, 0.1),
        Edge("b", "a", "continued", 1.0, 0.1),
        Edge("a", "a", "copy", 1.0, 0.0, direction="unknown"),
        Edge("c", "base", "tuned from the base", 1.0, 1.0),
        Edge("d", None, "unrelated", 0.0, 1.0),
    ]
    assert set(positions(edges, "base")) == {"base", "a", "b", "c", "d"}
    tree_figure(edges, "base")
    assert {edge.child for edge in edges_around(edges, "a")} == {"a", "b"}


def test_a_model_and_all_do_not_go_together(forest, trees, tmp_path):
    shell = Shell(trees.endpoint, tmp_path)
    for words in (["--all", "some/model"], []):
        result = shell("query", "lineage", *words, "--atlas", str(forest.atlas))
        assert result.code == 2
