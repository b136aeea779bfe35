"""An id is whatever the Hub accepts as one, and a model under an old name is indexed once, under its new one."""

from __future__ import annotations

import json
import shutil

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.hub_ids import is_hub_id
from indexer.listing.listing import Listing
from indexer.records.store import RecordStore
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from tests.tiny_hub import BASE, describe, served_shell


def is_valid(text: str) -> bool:
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


LONG = st.builds(lambda first, count, last: first + "x" * count + last, st.sampled_from("_-x"), st.integers(90, 97),
                 st.sampled_from("_.x"))  # fmt: skip


@pytest.mark.slow
@given(st.text("aZ0_.-/é\n", max_size=12) | LONG | st.builds("{}/{}".format, LONG, LONG))
@settings(max_examples=1000, deadline=None)
def test_ids_are_what_the_library_takes_for_one(text: str):
    assert is_hub_id(text) == is_valid(text)


@pytest.mark.parametrize("text", ["_a/b", "_", "a/_b_", "a" * 96 + "/" + "b" * 96, "a.git", "a/b.git", "a-/b", "a/b."])
def test_ids_at_the_edge(text):
    assert is_hub_id(text) == is_valid(text)


@pytest.fixture
def shell(tiny_store, tmp_path):
    with served_shell(tiny_store(1, tmp_path / "store")) as shell:
        yield shell


def build(shell, *words) -> dict:
    ran = shell("index", "build", "--base", BASE, "--workers", "1", "--json", *words)
    assert ran.code == 0, ran.err
    return {**ran.json, "said": ran.err}


def models(shell) -> dict[str, str]:
    with Reading(AtlasFolder(shell.folder / "atlas").database) as connection:
        return {row["model"]: row["status"] for row in connection.rows("SELECT model, status FROM fine_tunes")}


def settings_of(shell, identifier: str) -> dict:
    return json.loads((shell.folder / f"store/{identifier}.repo.json").read_text())


def rename(shell, old: str, new: str) -> None:
    store = shell.folder / "store"
    facts = settings_of(shell, old)
    (store / new).parent.mkdir(exist_ok=True)
    shutil.move(store / old, store / new)
    (store / f"{old}.repo.json").unlink()
    sha = shell.hub.store.repository(new).revision().sha
    describe(store, new, **{**facts, "old_ids": [old], "sha": facts.get("sha", sha)})


def pin(shell, identifier: str) -> str:
    """A commit that stays the same when the repository is renamed."""
    sha = shell.hub.store.repository(identifier).revision().sha
    describe(shell.folder / "store", identifier, **{**settings_of(shell, identifier), "sha": sha})
    return sha


ALL = {"ann/glue-0": "indexed", "new/name": "indexed", "ann/squad-0": "indexed"}


def list_under_old_name(shell, sha: str, *, is_tagged: bool = False, **facts) -> None:
    """Rename a model, and have the listing give its row under the old name, at the commit ``sha``.

    ``is_tagged``: whether the row under the new name says, too, that it is a fine-tune of the base.
    """
    rename(shell, "ann/imdb-0", "new/name")
    settings = settings_of(shell, "new/name")
    row = {"id": "ann/imdb-0", "sha": sha, "tags": settings["tags"], **facts}
    if not is_tagged:
        describe(shell.folder / "store", "new/name", **{**settings, "tags": [], "card_data": {}})
    shell.hub.faults.add("/api/models.filter", splice_row=row)


def checked(shell) -> None:
    folder = AtlasFolder(shell.folder / "atlas")
    assert verify(folder) == []
    # Readers of the former generation may ask for the record under the old name: it goes with the next publish.
    assert shell("index", "publish").code == 0
    assert {one.identity.model for one in RecordStore(folder).headers()} == {
        m for m, s in models(shell).items() if s == "indexed"
    }


@pytest.mark.slow
def test_an_owner_may_begin_with_an_underscore(shell):
    rename(shell, "ann/imdb-0", "_ann/_imdb_")
    build(shell)
    assert models(shell) == {"ann/glue-0": "indexed", "_ann/_imdb_": "indexed", "ann/squad-0": "indexed"}
    for words in (("similar", "_ann/_imdb_"), ("show", "_ann/_imdb_"), ("predict", "_ann/_imdb_")):
        assert shell("query", *words).code == 0
    assert shell("query", "map", "--base", BASE, "--method", "pca", "--out", "map.html").code == 0
    assert shell("index", "work", "--base", BASE, "--shard", "0/2").code == 0
    checked(shell)


@pytest.mark.slow
def test_a_base_may_begin_with_an_underscore(shell):
    store = shell.folder / "store"
    (store / "_org").mkdir()
    shutil.move(store / BASE, store / "_org/_base")
    describe(store, "_org/_base")
    (store / f"{BASE}.repo.json").unlink()
    for name in ("glue", "imdb", "squad"):
        facts = settings_of(shell, f"ann/{name}-0")
        facts["tags"] = ["base_model:_org/_base", "base_model:finetune:_org/_base"]
        describe(store, f"ann/{name}-0", **{**facts, "card_data": {"base_model": "_org/_base"}})
    ran = shell("index", "build", "--base", "_org/_base", "--workers", "1", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["indexed"] == 3
    checked(shell)
    assert shell("index", "rebuild").code == 0
    assert shell("query", "similar", "ann/glue-0", "--base", "_org/_base").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_row_under_an_old_name_is_the_model_under_its_new_one(shell, workers):
    """The listing has it under its old name only."""
    list_under_old_name(shell, pin(shell, "ann/imdb-0"))
    report = build(shell, "--workers", workers)
    assert models(shell) == ALL
    assert (report["discovered"], report["indexed"], report["skipped"], report["failed"]) == (3, 3, 0, 0)
    assert "ann/imdb-0 is now called new/name" in report["said"]
    again = build(shell)
    assert (again["discovered"], again["unchanged"], again["bytes_read"]) == (3, 3, 0)
    assert models(shell) == ALL
    checked(shell)


@pytest.mark.slow
def test_a_row_under_an_old_name_and_of_an_old_commit(shell):
    """Nothing is served at that commit; the name is asked for nevertheless."""
    list_under_old_name(shell, "a" * 40)
    report = build(shell)
    assert models(shell) == ALL
    assert (report["discovered"], report["indexed"], report["skipped"], report["failed"]) == (3, 3, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("is_listing_lost", [False, True])
def test_a_rebuild_does_not_bring_an_old_name_back(shell, is_listing_lost):
    """In place of a record under the old name there is only a note of the new name."""
    list_under_old_name(shell, pin(shell, "ann/imdb-0"))
    build(shell)
    folder = AtlasFolder(shell.folder / "atlas")
    if is_listing_lost:
        folder.listing(BASE).unlink()
    for _ in range(2):
        assert shell("index", "rebuild").code == 0
        assert models(shell) == ALL
        assert verify(folder) == []


@pytest.mark.slow
def test_rows_under_the_old_and_the_new_name_count_once(shell):
    list_under_old_name(shell, pin(shell, "ann/imdb-0"), is_tagged=True, downloads=10**6)
    report = build(shell)
    assert models(shell) == ALL
    assert (report["discovered"], report["indexed"], report["skipped"]) == (3, 3, 0)
    build(shell)
    assert len(models(shell)) == 3
    checked(shell)


@pytest.mark.slow
def test_a_model_that_was_renamed_since_is_neither_twice_there_nor_read_again(shell):
    pin(shell, "ann/imdb-0")
    build(shell)
    rename(shell, "ann/imdb-0", "new/name")
    report = build(shell)
    assert models(shell) == ALL
    assert (report["indexed"], report["unchanged"], report["bytes_read"]) == (0, 3, 0)
    checked(shell)
    rebuild(AtlasFolder(shell.folder / "atlas"))
    assert set(models(shell)) == set(ALL)
    checked(shell)


@pytest.mark.slow
def test_another_model_may_take_an_old_name(shell):
    pin(shell, "ann/imdb-0")
    build(shell)
    rename(shell, "ann/imdb-0", "new/name")
    build(shell)
    store = shell.folder / "store"
    shutil.copytree(store / "ann/glue-0", store / "ann/imdb-0")
    shutil.copy(store / "ann/glue-0.repo.json", store / "ann/imdb-0.repo.json")
    describe(store, "new/name", **{**settings_of(shell, "new/name"), "old_ids": []})
    build(shell)
    assert set(models(shell)) == {"ann/glue-0", "new/name", "ann/squad-0", "ann/imdb-0"}
    assert set(models(shell).values()) == {"indexed"}
    checked(shell)


def test_a_listed_id_that_redirects_to_the_base_is_not_a_model(shell):
    facts = settings_of(shell, BASE)
    describe(shell.folder / "store", BASE, **{**facts, "old_ids": [*facts["old_ids"], "eve/base"]})
    sha = shell.hub.store.repository(BASE).revision().sha
    row = {"id": "eve/base", "sha": sha, "tags": settings_of(shell, "ann/glue-0")["tags"]}
    fault = shell.hub.faults.add("/api/models.filter", splice_row=row)
    build(shell)
    assert len(models(shell)) == 3
    shell.hub.faults.remove(fault)
    checked(shell)


@pytest.mark.slow
def test_the_listing_is_read_back_as_it_was(shell):
    pin(shell, "ann/imdb-0")
    build(shell)
    rename(shell, "ann/imdb-0", "new/name")
    build(shell)
    listing = Listing(AtlasFolder(shell.folder / "atlas").listing(BASE))
    other = Listing(shell.folder / "copy.sqlite")
    assert other.write(listing.as_lines()) == []
    assert other.renamed == listing.renamed == {"ann/imdb-0": "new/name"}
    assert {one.id for one in other.models()} == {one.id for one in listing.models()}
