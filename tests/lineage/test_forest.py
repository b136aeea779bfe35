"""The lineage of trained models whose family tree is known, over HTTP, from an atlas made by the commands."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.publish.stored_answers import LINEAGE, exported_answers, write_answers
from query import Atlas
from query.questions.lineage.thresholds import SURE
from tests.conftest import Shell
from tests.hubs import cleared, use_endpoint

pytestmark = pytest.mark.slow

KINDS = {
    "tuned": "tuned from the base", "continued": "continued", "merge": "merge", "lora": "LoRA merged",
    "plain": "copy", "bfloat16": "recast", "int8": "quantised copy", "nf4": "quantised copy",
}  # fmt: skip


def named(forest, rows):
    return {row["parent"] for row in rows if row["parent"] != forest.base}


def test_every_model_has_an_answer(forest, answers):
    assert set(answers) == {name for name, node in forest.nodes.items() if not node["hidden"]}


def test_models_without_a_parent_to_name_get_none(forest, answers):
    without = [name for name in answers if not forest.parents(name)]
    assert len(without) >= 9
    assert {name: named(forest, answers[name]) for name in without} == {name: set() for name in without}


def test_continued_models_name_their_parent_and_not_a_grandparent_or_sibling(forest, answers):
    continued = [name for name in answers if forest.nodes[name]["kind"] == "continued" and forest.parents(name)]
    assert len(continued) == 8
    wrong = {name: answers[name] for name in continued if named(forest, answers[name]) != forest.parents(name)}
    assert wrong == {}


@pytest.mark.parametrize("group", ["linear", "task_arithmetic"])
def test_merges_by_one_recipe_name_their_parents_with_their_weights(forest, answers, group):
    name = forest.first_of(group)
    node = forest.nodes[name]
    assert {row["parent"]: pytest.approx(row["coefficient"], abs=0.01) for row in answers[name]} == dict(
        zip(node["parents"], node["how"]["weights"], strict=True)
    )
    assert {row["method"] for row in answers[name]} == {group.replace("_", " ")}
    assert all(row["residual"] < 1e-4 for row in answers[name])


@pytest.mark.parametrize("group", ["slerp", "ties", "dare", "lora", "plain", "bfloat16", "int8", "nf4"])
def test_other_steps_name_their_parents_and_their_kind(forest, answers, group):
    for name, node in forest.nodes.items():
        if node["group"] == group:
            assert named(forest, answers[name]) == forest.parents(name), answers[name]
            expected = KINDS.get(group) or KINDS[node["kind"]]
            assert {row["kind"] for row in answers[name]} == {expected}


def test_the_card_confirms_contradicts_or_declares_nothing(forest, answers):
    for name, rows in answers.items():
        declared = set(forest.nodes[name]["declared"])
        in_atlas = {parent for parent in declared if parent in answers}
        for row in rows:
            if row["probability"] < SURE:
                assert row["card"] in ("confirmed", "unsure"), name
            elif row["parent"] in declared:
                assert row["card"] == "confirmed", name
            elif in_atlas:
                assert row["card"] == "contradicted", name
            elif declared:
                assert row["card"] == "not declared", name
            else:
                assert row["card"] == ("confirmed" if row["parent"] == forest.base else "not declared"), name


def test_without_dates_no_model_gets_a_wrong_parent(forest, trees, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    family = {}
    for name, node in forest.nodes.items():
        family[name] = set(node["parents"]).union(*(family[parent] for parent in node["parents"]))
    with Atlas(forest.atlas) as atlas:
        for answer in atlas.lineages(dates=False):
            copies = {name for name, node in forest.nodes.items() if family[answer.model] & set(node["parents"])
                      and node["kind"] == "copy"}  # fmt: skip
            named = {edge.parent for edge in answer.edges if edge.direction == "known"} - {forest.base}
            assert named <= family[answer.model] | copies, answer


def test_a_copy_without_dates_has_no_known_direction(forest, trees, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    copy = forest.first_of("plain")
    (original,) = forest.nodes[copy]["parents"]
    with Atlas(forest.atlas) as atlas:
        for first, second in ((copy, original), (original, copy)):
            rows = {row.parent: row for row in atlas.lineage(first, dates=False).edges}
            assert (rows[second].kind, rows[second].direction) == ("copy", "unknown")


def test_bytes_are_counted_and_little_is_read(forest, trees, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    name = forest.first_of("ties")
    with cleared(trees), Atlas(forest.atlas) as atlas:
        answer = atlas.lineage(name, fresh=True)
        # Bodies of redirects are not content of a file.
        served = [request for request in trees.requests if request.status in (200, 206)]
    files = ("model.safetensors", "config.json")
    assert answer.bytes_read == sum(request.body_bytes for request in served if request.filename in files)
    assert answer.models_read == 3
    assert answer.to_rows()[0]["bytes_read"] == answer.bytes_read


def test_a_folder_has_the_lineage_of_its_upload(forest, trees, monkeypatch):
    use_endpoint(monkeypatch, trees.endpoint)
    name = forest.first_of("grandchild")
    with Atlas(forest.atlas) as atlas:
        answer = atlas.lineage(forest.store / name)
    kind_of = {row.parent: row.kind for row in answer.edges}
    assert kind_of == {**dict.fromkeys(forest.parents(name), "continued"), name: "copy"}


def rows_of(atlas, statement):
    with duckdb.connect(str(atlas / "atlas.duckdb"), read_only=True) as connection:
        return connection.execute(statement).fetchall()


def test_edges_are_stored_as_they_are_printed(forest, answers):
    stored = rows_of(
        forest.atlas,
        "SELECT child.model, coalesce(parent.model, child.base), kind, round(coefficient, 4), card FROM lineage "
        "JOIN fine_tunes child USING (model_id) LEFT JOIN fine_tunes parent ON parent.model_id = parent_id",
    )
    assert set(stored) == {
        (row["model"], row["parent"], row["kind"], row["coefficient"], row["card"])
        for rows in answers.values()
        for row in rows
    }


def test_views_name_declared_parents_and_merged_loras(forest):
    declared = set(rows_of(forest.atlas, "SELECT model, parent FROM declared_lineage WHERE parent <> base"))
    assert declared == {
        (name, parent) for name, node in forest.nodes.items() if not node["hidden"] for parent in node["declared"]
    }
    on_base = {name for name, node in forest.nodes.items() if node["kind"] == "lora" and not node["parents"]}
    assert {model for (model,) in rows_of(forest.atlas, "SELECT model FROM merged_loras")} == on_base


def test_a_licence_other_than_the_parents_is_listed(forest, tmp_path):
    import shutil

    shutil.copytree(forest.atlas, tmp_path / "atlas")
    child = forest.first_of("child")
    (parent,) = forest.parents(child)
    with duckdb.connect(str(tmp_path / "atlas" / "atlas.duckdb")) as connection:
        connection.execute("UPDATE fine_tunes SET licence = 'cc-by-nc-4.0' WHERE model = ?", [parent])
    conflicts = rows_of(tmp_path / "atlas", "SELECT model, licence, parent, parent_licence FROM licence_conflicts")
    assert (child, "apache-2.0", parent, "cc-by-nc-4.0") in conflicts
    assert {row[2] for row in conflicts} | {row[0] for row in conflicts} >= {parent}
    assert all(parent in (row[0], row[2]) for row in conflicts)


def test_stored_edges_survive_a_publish_and_a_rebuild(forest, trees, tmp_path):
    import shutil

    shutil.copytree(forest.atlas, tmp_path / "atlas")
    shell = Shell(trees.endpoint, tmp_path)
    before = rows_of(tmp_path / "atlas", "SELECT * EXCLUDE answered_at FROM lineage ORDER BY ALL")
    for words in (["represent", "output"], ["rebuild"]):
        result = shell("index", *words)
        assert result.code == 0, result.err
        assert rows_of(tmp_path / "atlas", "SELECT * EXCLUDE answered_at FROM lineage ORDER BY ALL") == before


def test_a_model_that_changed_has_no_lineage_until_it_is_asked_again(forest, trees, tmp_path):
    """The same holds for a model with an edge from it."""
    import shutil

    shutil.copytree(forest.atlas, tmp_path / "atlas")
    folder, child = AtlasFolder(tmp_path / "atlas"), forest.first_of("child")
    lines, _ = exported_answers(LINEAGE, folder, forest.base)
    for line in lines:
        if line["model"] == child:
            line["record_key"] = "0" * 64
        if line["parent"] == child:
            line["parent_key"] = "0" * 64
    write_answers(LINEAGE, folder, forest.base, [*lines, {"model": 3}, {"model": child}])
    result = Shell(trees.endpoint, tmp_path)("index", "rebuild")
    assert result.code == 0, result.err
    edges = rows_of(
        tmp_path / "atlas",
        "SELECT c.model, p.model FROM lineage JOIN fine_tunes c USING (model_id) "
        "LEFT JOIN fine_tunes p ON p.model_id = parent_id",
    )
    assert len(edges) == sum(line["model"] != child and line["parent"] != child for line in lines)
    assert not [pair for pair in edges if child in pair]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_tree_is_drawn(forest, trees, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    shell = Shell(trees.endpoint, tmp_path)
    name = forest.first_of("grandchild")
    result = shell("query", "lineage", name, "--atlas", str(forest.atlas), "--fresh", "--out", f"tree{suffix}")
    assert result.code == 0, result.err
    payload = (tmp_path / f"tree{suffix}").read_bytes()
    if suffix == ".svg":
        texts = {
            "".join(element.itertext()).strip()
            for element in ElementTree.fromstring(payload).iter()
            if element.tag.endswith("text")
        }
        assert {name, forest.base, *forest.parents(name)} <= texts
    else:
        assert payload.startswith(b"\x89PNG")
