"""`index rebuild` where something of the atlas is gone: it takes what else is known, and never leaves less unasked."""

from __future__ import annotations

import shutil
from datetime import datetime

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.publish.stored_answers import LINEAGE, exported_answers, store_answers, write_answers
from indexer.storage.checksummed_jsonl import write_lines
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.database import read_rows
from tests.flips import flip
from tests.once import made_once
from tests.tiny_hub import BASE, SIZES, add_model, describe, make_store, served_shell, shift_weights

SECOND = "org/second-base"


def add_second_base(store):
    """With two fine-tunes, and one that can be none."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    torch.manual_seed(1)
    config = RobertaConfig(**SIZES)
    base = RobertaModel(config)
    base.save_pretrained(store / SECOND)
    describe(store, SECOND, tags=["transformers", "roberta"])
    model = RobertaForSequenceClassification(config)
    for member in range(2):
        model.roberta.load_state_dict(base.state_dict(), strict=False)
        shift_weights(model.roberta, 7, seed=member)
        add_model(store, f"eve/wnli-{member}", model, dataset="wnli", base=SECOND, downloads=5 + member, likes=3)
    add_model(store, "eve/broken", model, dataset="wnli", base=SECOND)
    (store / "eve/broken" / "model.safetensors").write_bytes(b"nothing" * 100)


@pytest.fixture(scope="module")
def indexed_store(tmp_path_factory):
    """A Hub's store, and an atlas of its two bases."""

    def make(folder):
        store = make_store(folder / "store", per_dataset=2)
        add_second_base(store)
        with served_shell(store) as shell:
            ran = shell("index", "build", "--base", BASE, "--base", SECOND)
        assert ran.code == 0, ran.err

    return made_once(tmp_path_factory, "rebuilt", make)


@pytest.fixture
def atlas(indexed_store, tmp_path):
    shutil.copytree(indexed_store / "atlas", tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")


@pytest.fixture
def shell(indexed_store, tmp_path):
    with served_shell(indexed_store / "store", tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")) as shell:
        yield shell


def rows(atlas, statement):
    return read_rows(atlas.database, statement)


TOLD = (
    "SELECT f.base, f.model, f.model_id, f.status, f.reason, f.relation, f.parent, f.created, f.modified, f.downloads, "
    "f.likes, f.licence, m.datasets, (SELECT list(tag ORDER BY tag) FROM tags t WHERE t.model_id = f.model_id) "
    "FROM fine_tunes f LEFT JOIN models m USING (model_id) ORDER BY ALL"
)
NEAR = "SELECT model, neighbour, round(similarity, 4) FROM similar_models ORDER BY ALL"


def remove(atlas, *names):
    for name in names:
        path = atlas.root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def snapshot(atlas):
    return {path: path.read_bytes() for path in atlas.root.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["listing", f"listing/{SECOND.replace('/', '--')}.sqlite"])
def test_what_the_database_knows_takes_the_place_of_a_listing(atlas, shell, gone):
    answer, near = rows(atlas, TOLD), rows(atlas, NEAR)
    assert len(answer) == 9
    remove(atlas, gone)
    found = verify(atlas)
    assert {one.what for one in found} == ({BASE, SECOND} if gone == "listing" else {SECOND})
    assert all("its listing" in one.problem and "`index rebuild`" in one.problem for one in found)
    said = []
    report = rebuild(atlas, say=said.append)
    assert report["restored"] == (9 if gone == "listing" else 3)
    assert any(f"`index build --base {SECOND}`" in one for one in said)
    assert verify(atlas) == []
    assert rows(atlas, TOLD) == answer
    assert rows(atlas, NEAR) == near
    # A crawl puts its own rows in their place, and what it does not show has gone.
    shutil.rmtree(shell.folder / "hf", ignore_errors=True)
    assert shell("index", "build", "--base", SECOND, "--json").json["unchanged"] == 2
    listed = {one.id: one for one in Listing(atlas.listing(SECOND)).models()}
    assert {tuple(one.claims) for one in listed.values()} == {tuple(listed["eve/wnli-0"].claims)}
    assert "restored" not in listed["eve/wnli-0"].claims
    assert not any(one.deleted_at_hub for one in listed.values())
    assert rows(atlas, TOLD) == answer


@pytest.mark.slow
def test_what_the_records_know_takes_the_place_of_listing_and_database(atlas):
    near = rows(atlas, NEAR)
    remove(atlas, "listing", "atlas.duckdb", "checksums.json")
    report = rebuild(atlas)
    assert (report["models"], report["restored"], report["records"]) == (9, 9, 8)
    assert verify(atlas) == []
    assert sorted(rows(atlas, NEAR)) == sorted(near)
    assert rows(atlas, "SELECT model, status, relation, claimed_by FROM fine_tunes WHERE base = 'org/second-base' ORDER BY 1") == [
        ("eve/broken", "skipped", "finetune", "record"),
        ("eve/wnli-0", "indexed", "finetune", "record"),
        ("eve/wnli-1", "indexed", "finetune", "record"),
    ]  # fmt: skip


def test_an_atlas_of_another_schema_is_rebuilt_with_its_stored_answers(atlas):
    """Tables that have no longer, or not yet, all columns of today count as unreadable: files hold the rest."""
    write_answers(LINEAGE, atlas, SECOND, [an_answer(atlas)])
    with duckdb.connect(str(atlas.database)) as connection:
        connection.execute("UPDATE atlas_info SET schema_version = 6")
        connection.execute("ALTER TABLE fine_tunes RENAME deleted_at_hub TO gone")
        connection.execute("ALTER TABLE representations RENAME budget TO width")
        connection.execute("ALTER TABLE fused_matrices RENAME TO wholes")
    with pytest.raises(AtlasError, match="has schema 6"):
        Atlas(atlas.root)
    rebuild(atlas)
    assert verify(atlas) == []
    assert rows(atlas, "SELECT evidence, answered_at FROM lineage") == [("an answer", datetime(2026, 1, 1))]
    assert rows(atlas, "SELECT count(*) FROM models") == [(8,)]


def an_answer(atlas):
    """A stored answer about two models of the second base."""
    (child, key), (parent, parent_key) = rows(
        atlas, f"SELECT model, record_key FROM models WHERE base = '{SECOND}' ORDER BY model LIMIT 2"
    )
    return {
        "model": child, "record_key": key, "parent": parent, "parent_key": parent_key, "kind": "continued",
        "method": None, "coefficient": 1.0, "left": 0.25, "card": "confirmed", "direction": "known",
        "evidence": "an answer", "same": [], "bytes_read": 1000, "answered_at": "2026-01-01T00:00:00",
        "probability": 0.9,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "noise"])
def test_published_answers_outlive_the_database_of_their_base(atlas, damage):
    answer = an_answer(atlas)
    store_answers(atlas, LINEAGE, SECOND, [answer["model"]], [answer])
    if damage == "missing":
        atlas.listing(SECOND).unlink()
    else:
        atlas.listing(SECOND).write_bytes(b"x" * 9000)
    rebuild(atlas)
    assert verify(atlas) == []
    assert rows(atlas, "SELECT evidence, answered_at FROM lineage") == [("an answer", datetime(2026, 1, 1))]
    assert exported_answers(LINEAGE, atlas, SECOND) == ([answer], [])


@pytest.mark.slow
def test_a_damaged_listing_stops_commands_in_one_line_and_costs_no_published_answer(atlas, shell):
    answer = an_answer(atlas)
    store_answers(atlas, LINEAGE, SECOND, [answer["model"]], [answer])
    atlas.listing(SECOND).write_bytes(b"x" * 9000)
    commands = (
        ["build", "--base", SECOND],
        ["remove", answer["model"]],
        ["listing", "--base", SECOND],
        ["represent", "output"],
    )
    for words in commands:
        for offline in ("0", "1"):
            ran = Shell(shell.endpoint, shell.folder, {**shell.environment, "HF_HUB_OFFLINE": offline})("index", *words)
            assert (ran.code, ran.out) == (1, "")
            assert f"The listing {atlas.listing(SECOND)} is damaged" in ran.err
            assert "index rebuild" in ran.err
    assert rows(atlas, "SELECT evidence FROM lineage") == [("an answer",)]
    assert shell("index", "rebuild").code == 0
    assert verify(atlas) == []
    assert rows(atlas, "SELECT evidence FROM lineage") == [("an answer",)]


@pytest.mark.slow
def test_listings_and_answers_in_json_lines_are_read_by_a_rebuild(atlas):
    answer, before = an_answer(atlas), Listing(atlas.listing(SECOND)).as_lines()
    write_lines(atlas.exported("listing", SECOND), before)
    write_lines(atlas.exported("lineage", SECOND), [answer])
    atlas.listing(SECOND).unlink()
    rebuild(atlas)
    assert verify(atlas) == []
    assert Listing(atlas.listing(SECOND)).as_lines() == before
    assert rows(atlas, "SELECT evidence FROM lineage") == [("an answer",)]
    assert not list(atlas.root.rglob("*.jsonl"))
    assert not (atlas.root / "lineage").exists()


@pytest.mark.slow
def test_a_restored_model_that_the_hub_no_longer_shows_has_gone(atlas, shell, indexed_store):
    remove(atlas, "listing")
    rebuild(atlas)
    store = shell.folder / "store"
    shutil.copytree(indexed_store / "store", store)
    shutil.rmtree(store / "eve" / "wnli-0")
    (store / "eve" / "wnli-0.repo.json").unlink()
    with LoopbackHub(store) as hub:
        assert Shell(hub.endpoint, shell.folder, shell.environment)("index", "build", "--base", SECOND).code == 0
    gone = {one.id for one in Listing(atlas.listing(SECOND)).models() if one.deleted_at_hub}
    assert gone == {"eve/wnli-0"}
    assert rows(atlas, "SELECT status, deleted_at_hub FROM fine_tunes WHERE model = 'eve/wnli-0'") == [
        ("indexed", True)
    ]


@pytest.mark.slow
def test_a_listing_of_which_half_is_damaged_is_whole_again(atlas):
    answer = rows(atlas, TOLD)
    path = atlas.listing(BASE)
    content, position = path.read_bytes(), 0
    while (position := content.find(b'"id":"', position + 1)) > 0:
        if position % 2:
            flip(path, position, 2)
    damaged = path.read_bytes()
    assert len(Listing(path).models()) < 6
    assert "`index rebuild`" in verify(atlas)[0].problem
    rebuild(atlas)
    assert verify(atlas) == []
    assert rows(atlas, TOLD) == answer
    assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged


def refused(atlas, **more):
    before = snapshot(atlas)
    with pytest.raises(AtlasError) as caught:
        rebuild(atlas, **more)
    assert snapshot(atlas) == before
    return caught.value


def test_without_records_it_is_refused_and_names_the_models_that_would_be_lost(atlas, shell):
    remove(atlas, "records")
    error = refused(atlas)
    assert "would lose 8 models" in error.message
    assert "bob/squad-1" in error.message
    assert "and 3 more" in error.message
    assert f"`index build --base {SECOND}`" in error.hint
    ran = shell("index", "rebuild")
    assert (ran.code, "Nothing was changed" in ran.err) == (1, True)
    assert shell("index", "rebuild", "--force").code == 0
    assert rows(atlas, "SELECT status, count(*) FROM fine_tunes GROUP BY 1") == [("listed", 9)]


@pytest.mark.slow
def test_half_of_the_records_gone_is_refused_too(atlas):
    kept = sorted(atlas.records.glob("*/*.safetensors"))
    for path in kept[::2]:
        path.unlink()
    assert "would lose 4 models" in refused(atlas).message
    assert rebuild(atlas, force=True)["records"] == 4


def test_a_base_of_which_no_record_is_whole_is_refused(atlas):
    """One damaged record is forgotten and read again; all of them are a disk that fails."""
    paths = sorted(atlas.records.glob("*/*.safetensors"))
    flip(paths[0], -1 + paths[0].stat().st_size, 1)
    for path in paths[1:]:
        flip(path, path.stat().st_size - 1, 1)
    assert "would lose 8 models" in refused(atlas).message


@pytest.mark.slow
@pytest.mark.parametrize("database", [True, False])
def test_a_base_whose_matrices_are_missing_is_not_dropped_unasked(atlas, shell, database):
    (path,) = atlas.bases.glob(f"{SECOND.replace('/', '--')}@*")
    path.unlink()
    if not database:
        remove(atlas, "atlas.duckdb", "checksums.json")
    error = refused(atlas)
    assert f"the block matrices of {SECOND} are missing, damaged or of another version" in error.message
    assert f"`index build --base {SECOND}`" in error.hint
    assert f"--base {BASE}" not in error.hint
    assert shell("index", "build", "--base", SECOND).code == 0
    assert shell("index", "rebuild").code == 0
    assert len(rows(atlas, TOLD)) == 9
    assert verify(atlas) == []


def test_without_any_base_the_error_names_one_to_fetch(atlas):
    remove(atlas, "bases", "atlas.duckdb", "checksums.json")
    error = refused(atlas)
    assert f"`index build --base {BASE}`" in error.hint
    assert f"`index build --base {SECOND}`" in error.hint
    assert refused(atlas, force=True).message.endswith("holds no bases to rebuild from.")


def test_a_base_of_which_only_one_is_forced_out_leaves_the_other(atlas):
    (path,) = atlas.bases.glob(f"{SECOND.replace('/', '--')}@*")
    path.unlink()
    rebuild(atlas, force=True)
    assert {base for (base,) in rows(atlas, "SELECT DISTINCT base FROM fine_tunes")} == {BASE}


def test_a_listing_without_a_base_is_reported(atlas):
    shutil.copy(atlas.listing(BASE), atlas.listings / "org--third.sqlite")
    (found,) = verify(atlas)
    assert "does not belong to a base" in found.problem
    assert "`index build --base org/third`" in found.problem


def test_a_listing_that_lacks_what_is_published_is_reported(atlas):
    listing = Listing(atlas.listing(BASE))
    listing.write([line for line in listing.as_lines() if "imdb-1" not in line.get("id", "")])
    (found,) = verify(atlas)
    assert "lacks 1 models that are published (bob/imdb-1" in found.problem
    rebuild(atlas)
    assert verify(atlas) == []
