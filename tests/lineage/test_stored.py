"""Stored answers: returned with their date, and kept when the weights cannot be read."""

from __future__ import annotations

import json
import shutil

import duckdb
import pytest

from query import Atlas
from query.questions.lineage.thresholds import SURE
from tests.conftest import Shell
from tests.hubs import RawServer, use_endpoint
from tests.tiny_hub import served_shell

pytestmark = pytest.mark.slow

NO_HUB = "http://127.0.0.1:9"


@pytest.fixture
def changed_atlas(forest, tmp_path):
    """A copy of the atlas that a test may change."""
    shutil.copytree(forest.atlas, tmp_path / "atlas")
    return tmp_path / "atlas"


def edges(atlas):
    with duckdb.connect(str(atlas / "atlas.duckdb"), read_only=True) as connection:
        return connection.execute("SELECT * FROM lineage ORDER BY model_id, parent_id").fetchall()


def test_all_without_a_hub_keeps_every_edge_and_prints_one_reason(forest, changed_atlas, tmp_path):
    before = edges(changed_atlas)
    with RawServer(b"") as hub:  # it closes every connection
        result = Shell(hub.endpoint, tmp_path)("query", "lineage", "--all", "--json")
    assert result.code == 1
    # Five models were requested, and not the whole forest.
    assert len({"/".join(request.split("/")[1:3]) for request in hub.requests}) == 5 < len(before)
    assert edges(changed_atlas) == before
    assert len(result.err.strip().splitlines()) == 1
    assert "could not be read (the Hub does not answer" in result.err
    assert "their stored answers are kept" in result.err
    # Copies of the base need no Hub; for the others the stored answer is printed, with its date.
    assert len(json.loads(result.out)) == len(before)
    assert all(row["answered_at"] for row in json.loads(result.out))


def test_a_model_that_cannot_be_read_keeps_its_edge_and_the_status_is_1(made, atlas, tmp_path):
    gone = "bob/imdb-1"
    store = shutil.copytree(made.parent / "store", tmp_path / "store")
    with served_shell(store) as shell:
        first = shell("query", "lineage", "--all", "--json")
        assert first.code == 0, first.err
        before = edges(atlas.root)
        shutil.rmtree(store / gone)
        (store / f"{gone}.repo.json").unlink()
        result = shell("query", "lineage", "--all", "--json")
    assert result.code == 1
    assert f"{gone} cannot be read" in result.err
    after = edges(atlas.root)
    assert len(after) == len(before) == 9
    with duckdb.connect(str(atlas.database), read_only=True) as connection:
        ((model_id,),) = connection.execute("SELECT model_id FROM fine_tunes WHERE model = ?", [gone]).fetchall()
    assert [row for row in after if row[0] == model_id] == [row for row in before if row[0] == model_id]
    rows = json.loads(result.out)
    assert len(rows) == 9
    assert {row["model"] for row in rows if row["answered_at"]} == {gone}


def test_answers_are_printed_while_another_process_writes(made, atlas, tmp_path):
    with served_shell(made.parent / "store", tmp_path) as shell, atlas.locked("index build"):
        result = shell("query", "lineage", "--all", "--json")
    assert result.code == 1
    assert "is being written to by `index build`" in result.err
    assert len(json.loads(result.out)) == 9  # the answers are not lost


def test_a_stored_answer_needs_no_hub_and_fresh_reads_the_weights(forest, answers, changed_atlas, tmp_path):
    child = forest.first_of("grandchild")
    shell = Shell(NO_HUB, tmp_path)
    result = shell("query", "lineage", child, "--json")
    assert result.code == 0, result.err
    (row,) = json.loads(result.out)
    (expected,) = answers[child]
    assert {**row, "answered_at": None, "bytes_read": 0, "model": child} == {**expected, "bytes_read": 0}
    assert row["answered_at"][:10] in result.err
    assert "--fresh" in result.err
    result = shell("query", "lineage", child, "--json", "--fresh")
    assert result.code == 1
    assert f"{child} cannot be read" in result.err


def test_show_and_the_agents_tool_return_the_stored_answer(forest, answers, changed_atlas, monkeypatch):
    use_endpoint(monkeypatch, NO_HUB)
    from query.faces.serve.tools import Tools

    child = forest.first_of("child")
    (expected,) = answers[child]
    with Atlas(changed_atlas) as atlas:
        (row,) = atlas.show(child)["lineage"]
        assert (row["parent"], row["kind"], row["probability"]) == (
            expected["parent"],
            expected["kind"],
            expected["probability"],
        )
        assert row["answered_at"]
    answer = Tools(changed_atlas).all["lineage"](model=child)
    assert [(edge["parent"], edge["probability"]) for edge in answer["edges"]] == [
        (expected["parent"], expected["probability"])
    ]
    assert any("This answer was stored" in note for note in answer["notes"])


def test_every_edge_has_a_probability_and_below_nine_tenths_no_card_is_contradicted(forest, answers):
    rows = [row for rows in answers.values() for row in rows]
    assert all(0 < row["probability"] < 1 for row in rows)
    assert {row["card"] for row in rows if row["probability"] < SURE} <= {"confirmed", "unsure"}
    with duckdb.connect(str(forest.atlas / "atlas.duckdb"), read_only=True) as connection:
        probabilities = connection.execute("SELECT round(probability, 4) FROM lineage ORDER BY 1").fetchall()
    assert [probability for (probability,) in probabilities] == sorted(row["probability"] for row in rows)
