"""What `query` answers about odd models, and to odd questions."""

from __future__ import annotations

import io
import json
import shutil

import duckdb
import numpy as np
import pytest

import query.faces.cli
from indexer.errors import AtlasError
from query import Atlas
from query.faces.atlas import generations
from query.faces.browse.session import read_payload
from query.shared.wording import rarity
from tests.atlas_builder import BASE, Model, write_atlas
from tests.database import execute
from tests.hubs import add_repo, served
from tests.tiny_hub import BASE as TINY_BASE


@pytest.fixture(scope="module")
def small_atlas(tmp_path_factory):
    directions = np.random.default_rng(0).normal(size=(4, 8))
    names = ("ann/one", "bob/two", "cyd/three")
    models = [Model(name, vector, ("sst2",)) for name, vector in zip(names, directions, strict=False)]
    models.append(Model("dan/stranger", directions[3], is_unrelated=True))
    return write_atlas(tmp_path_factory.mktemp("small_atlas") / "atlas", models)


@pytest.fixture
def asked(small_atlas, capsys):
    """Runs `query` with these words; gives its exit status, stdout and stderr."""

    def ask(*words):
        with pytest.raises(SystemExit) as caught:
            query.faces.cli.main([*words, "--atlas", str(small_atlas)], prog_name="query")
        streams = capsys.readouterr()
        return caught.value.code or 0, streams.out, streams.err

    return ask


@pytest.mark.parametrize("condition", ["", "  "])
def test_an_empty_condition_is_refused(small_atlas, asked, condition):
    code, out, err = asked("similar", "ann/one", "--where", condition)
    assert (code, out) == (2, "")
    assert "--where is empty" in err
    with Atlas(small_atlas) as opened, pytest.raises(AtlasError, match="`where` is empty"):
        opened.similar("ann/one", where=condition)


def test_the_neighbours_of_a_model_of_another_origin_come_with_a_warning(asked):
    code, out, err = asked("similar", "dan/stranger")
    assert code == 0
    assert "ann/one" in out
    assert f"dan/stranger is not made from {BASE}" in err
    assert "not made from" not in asked("similar", "ann/one")[2]


@pytest.mark.slow
@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_notes_are_on_stderr_in_every_format(atlas, capsys, monkeypatch, output):
    """An answer about a model that is unrelated to its base says so; where the answer is an object, also in JSON."""
    with duckdb.connect(str(atlas.database)) as connection:
        connection.execute(
            "UPDATE records SET is_unrelated = true, base_cosine = -0.001 "
            "WHERE model_id = (SELECT model_id FROM fine_tunes WHERE model = 'ann/glue-0')"
        )
    warning = "ann/glue-0 is not made from org/tiny-base (cosine of the weights 0.00)"
    asked = [
        ["similar", "ann/glue-0"], ["similar", "ann/glue-0", "--explain"], ["show", "ann/glue-0"],
        ["layers", "ann/glue-0"], ["compare", "bob/glue-1", "ann/glue-0"], ["similar", "-"],
    ]  # fmt: skip
    for words in asked:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"bob/glue-1\nann/glue-0\n")))
        with pytest.raises(SystemExit) as caught:
            query.faces.cli.main([*words, "--atlas", str(atlas.root), "--format", output], prog_name="query")
        streams = capsys.readouterr()
        assert not caught.value.code, streams.err
        assert streams.err.count(warning) == 1, words
        if output == "json":
            answer = json.loads(streams.out)
            assert isinstance(answer, list) == (words[0] == "similar")
            assert isinstance(answer, list) or any(warning in note for note in answer["notes"])


def test_every_answer_has_notes_in_python(small_atlas):
    with Atlas(small_atlas) as opened:
        found = opened.similar("dan/stranger")
        assert any("is not made from" in note for note in found.notes)
        assert found.to_dict()["notes"] == list(found.notes)
        assert opened.similar("ann/one", where="model = 'bob/two'").notes == ()
        for answer in (
            opened.show("ann/one"),
            opened.sql("SELECT 1"),
            opened.map(method="pca"),
            opened.purity(draws=9),
        ):
            assert answer.to_dict()["notes"] == list(answer.notes)


@pytest.mark.parametrize(
    ("share", "pairs", "words"),
    [
        (None, None, ""), (1 / 1405, 1404, "none of 1,404 pairs"), (2 / 1405, 1404, "1 in 700"), (0.00625, None, "1 in 160"),
        (0.72, 999, "7 in 10"), (0.97, 999, "nearly all"),
    ],
)  # fmt: skip
def test_the_least_share_of_pairs_is_not_a_count(share, pairs, words):
    assert rarity(share, pairs) == words


def test_a_similarity_above_all_unrelated_pairs_has_no_share(atlas, capsys):
    """The background's floor, 1/(1 + pairs), is no count: similarities of .4 and of .8 would both be "1 in 1,000"."""
    with duckdb.connect(str(atlas.database)) as connection:
        connection.execute("DELETE FROM null_similarity")
        connection.executemany(
            "INSERT INTO null_similarity VALUES ('org/tiny-base', 'input', 'full', 'full', 999, ?, ?, NULL)",
            [[-0.2, 0.002], [-0.5, 0.5], [-1.0, 1.0]],
        )

    def ran(*words):
        with pytest.raises(SystemExit):
            query.faces.cli.main([*words, "--atlas", str(atlas.root)], prog_name="query")
        return capsys.readouterr().out

    rows = json.loads(ran("similar", "ann/glue-0", "--json"))
    assert {row["background_pairs"] for row in rows} == {999}
    assert {row["background_floor"] for row in rows} == {0.001}
    beyond = [row["model"] for row in rows if row["similarity"] > -0.2]
    assert beyond
    lines = ran("similar", "ann/glue-0").splitlines()
    assert [line.split()[1] for line in lines if "none of 999 pairs" in line] == beyond
    assert "1 in 1,000" not in "".join(lines)
    assert "none of 999 pairs of unrelated models are at least as similar" in ran("compare", "ann/glue-0", beyond[0])
    compared = json.loads(ran("compare", "ann/glue-0", beyond[0], "--json"))
    assert (compared["background_pairs"], compared["background_floor"]) == (999, 0.001)


def test_a_wrong_revision_is_not_called_a_wrong_model(asked, tmp_path, monkeypatch):
    add_repo(tmp_path, "ann/one", {"config.json": {}})
    with served(tmp_path, monkeypatch):
        code, _, err = asked("similar", "ann/one@deadbeef")
        assert code == 1
        assert "ann/one has no revision deadbeef." in err
        assert "not in this atlas" not in err
        _, _, err = asked("similar", "ann/nothing@deadbeef")
        assert "ann/nothing@deadbeef is not in this atlas" in err
        _, _, err = asked("similar", f"{BASE}@deadbeef")
        assert f"{BASE} is the base itself" in err


def test_advice_fits_what_was_asked(asked):
    code, _, err = asked("show", BASE)
    assert code == 1
    assert f"{BASE} is the base itself, not a model tuned from it." in err
    assert "index add" not in err
    code, _, err = asked("show", "")
    assert code == 1
    assert "'' is neither a folder here nor a Hub id" in err
    _, _, err = asked("show", "ann/one@main")
    assert "This atlas holds ann/one at commit dddddddddddd, not at main. Leave @main out." in err
    _, _, err = asked("show", "ann/won")
    assert "ann/won is not in this atlas; closest ids: ann/one" in err
    assert f"index add ann/won --base {BASE}" in err


def test_only_representations_that_exist_are_advised(asked):
    _, _, err = asked("similar", "ann/one", "--representation", "nonsense")
    assert "Unknown representation 'nonsense'. Choose one of: input, " in err
    _, _, err = asked("similar", "ann/one", "--representation", "spectrum")
    assert "Publish it: index represent spectrum" in err


def test_a_neighbour_that_the_atlas_does_not_hold_is_passed_over(atlas):
    with Atlas(atlas.root) as opened:
        before = opened.similar("ann/glue-0", 3)
    with duckdb.connect(str(atlas.database)) as connection:
        (asked,) = connection.execute("SELECT model_id FROM fine_tunes WHERE model = 'ann/glue-0'").fetchone()
        connection.execute(
            "UPDATE neighbours SET neighbour_id = 1000000 WHERE model_id = ? AND rank = 1 AND representation = 'input'",
            [asked],
        )
    with Atlas(atlas.root) as opened:
        assert list(opened.similar("ann/glue-0", 3)) == list(before)[1:]


def test_a_failed_model_is_found_by_the_end_of_its_id(tmp_path, monkeypatch, capsys):
    models = [Model("ann/one", np.ones(4)), Model("bob/late", status="failed", reason="timeout", detail="no answer")]
    folder = write_atlas(tmp_path / "atlas", models)

    def ask(*words):
        with pytest.raises(SystemExit) as caught:
            query.faces.cli.main([*words, "--atlas", str(folder)], prog_name="query")
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    code, out, _ = ask("show", "late", "--json")
    assert (code, json.loads(out)["model"], json.loads(out)["detail"]) == (0, "bob/late", "no answer")
    add_repo(tmp_path / "store", "ann/one")
    with served(tmp_path / "store", monkeypatch):
        for question in ("similar", "lineage"):
            code, out, err = ask(question, "late")
            assert (code, out, len(err.splitlines())) == (1, "", 1)
            assert "bob/late" in err
            assert "The Hub does not have it either" in err
            assert "No file has this name either" in ask(question, "late.safetensors")[2]


def test_where_no_run_is_there_a_note_says_which_checkpoints_a_build_reads(small_atlas):
    with Atlas(small_atlas) as opened:
        assert not opened.runs().runs
        assert "--checkpoints all" in " ".join(opened.runs().notes)


def test_what_was_assumed_about_an_adapter_is_said_apart_from_what_was_not_read(small_atlas, tmp_path):
    copy = tmp_path / "atlas"
    shutil.copytree(small_atlas, copy)
    with duckdb.connect(str(copy / "atlas.duckdb")) as connection:
        held = ["factors of convolutions: 3", "factors of text encoders: 1", "Its alpha was not applied."]
        connection.execute("UPDATE records SET passed_over = ? WHERE model_id = 1", [held])
    with Atlas(copy) as opened:
        notes = opened.show("ann/one").notes
    assert f"Parts of the adapter were not read: {held[0]}; {held[1]}." in notes
    assert held[2] in notes


def test_a_models_name_is_also_found_as_modelscope_spells_it(atlas):
    execute(atlas.database, "UPDATE fine_tunes SET model = 'ann/Glue2.5-0' WHERE model = 'ann/glue-0'")
    with Atlas(atlas.root) as opened:
        for name in ("ann/Glue2___5-0", "Glue2___5-0", "ann/glue2___5-0"):
            assert opened.show(name)["model"] == "ann/Glue2.5-0"
            assert opened.compare(name, "bob/glue-1").a == "ann/Glue2.5-0"
        with pytest.raises(AtlasError, match="Glue3___5"):
            opened.show("ann/Glue3___5-0")
    execute(atlas.database, "UPDATE fine_tunes SET model = 'ann/Glue2___5-0' WHERE model = 'bob/glue-1'")
    with Atlas(atlas.root) as opened:  # a name that has three underscores
        assert opened.show("ann/Glue2___5-0")["model"] == "ann/Glue2___5-0"


def test_a_model_from_a_folder_has_no_page_on_the_hub(atlas):
    execute(atlas.database, "UPDATE fine_tunes SET claimed_by = 'folder' WHERE model = 'ann/glue-0'")
    with Atlas(atlas.root) as opened:
        page = opened.map(TINY_BASE, method="pca").page_data()
        browsed = generations(opened).asked(read_payload, TINY_BASE, None)
    for data in (page, browsed):
        assert [name for name, is_there in zip(data["models"], data["onHub"], strict=True) if not is_there] == [
            "ann/glue-0"
        ]
