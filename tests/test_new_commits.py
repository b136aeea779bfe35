"""Models at a new commit keep their earlier record until the new commit is read, whichever command publishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.options import BuildOptions
from indexer.builds.report import Result
from indexer.builds.shards import publish_records
from indexer.database.reading import Reading
from indexer.deltas.base import BaseMatrices
from indexer.errors import Skipped
from indexer.listing.listing import Listing
from indexer.publish.rows import Entry
from indexer.records.identity import Identity, Spec
from indexer.records.record import Record
from indexer.records.store import RecordHeader, current_record
from indexer.sources.source import BaseFacts
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from tests.tiny_hub import BASE, served_shell

CHANGED = ("ann/glue-0", "bob/glue-1", "cyd/squad-2")


def give_new_commits(atlas: AtlasFolder, names: Sequence[str] = CHANGED) -> None:
    listing = Listing(atlas.listing(BASE))
    for one in listing.models():
        if one.id in names:
            listing.add({**one.row, "sha": one.row["sha"][::-1]}, one.relation, BASE, one.claimed_by)


def build_of(atlas: AtlasFolder) -> Build:
    (path,) = atlas.bases.glob("*.safetensors")
    base = BaseMatrices(path)
    return Build(atlas, BaseFacts(BASE, base.commit, (), dict(base.config)), BuildOptions(workers=1))


def published(atlas: AtlasFolder) -> dict[str, tuple[str, str]]:
    """Commit and record of every model in the atlas."""
    with Reading(atlas.database) as connection:
        found = connection.rows('SELECT model, "commit", record_key FROM models')
    return {row["model"]: (row["commit"], row["record_key"]) for row in found}


def change(build: Build, planned: Entry) -> Record:
    """In place of the work: the model has at its new commit what another has."""
    assert planned.unit is not None
    other = next(one for one in build.store.headers() if one.identity.model == "cyd/imdb-2")
    record = build.store.read(other.digest)
    object.__setattr__(record, "identity", planned.unit.identity)
    build.store.write(record)
    return record


@pytest.mark.slow
def test_a_model_at_a_new_commit_keeps_its_record(atlas):
    before = published(atlas)
    give_new_commits(atlas)
    for _ in range(2):
        (report,) = publish_records((), atlas.root)
        assert (report.unchanged, published(atlas)) == (9, before)
        assert verify(atlas) == []
        rebuild(atlas)
        assert published(atlas) == before


@pytest.mark.slow
def test_it_is_read_again_when_it_is_selected_and_published_as_it_goes(atlas, monkeypatch):
    before = published(atlas)
    give_new_commits(atlas)
    build = build_of(atlas)
    selected = [one for one in build.listing.models() if one.id in CHANGED[:2]]
    planned = build.plan(selected)
    assert build.report.unchanged == 0
    due = {one.listed.id: one for one in planned if one.unit is not None}
    assert set(due) == set(CHANGED[:2])

    def work(*_: Any) -> Any:
        settled = _[-1]
        for one in due.values():
            change(build, one)
            settled[one.listed.id] = build._settle(settled[one.listed.id], Result(one.unit, None))
            yield Result(one.unit, None)
            assert set(published(atlas)) == set(before)  # the other one has not gone meanwhile

    monkeypatch.setattr(build, "work", work)
    monkeypatch.setattr("indexer.builds.build.PUBLISH_EVERY_SECONDS", 0.0)
    build.run(planned, build.stored_base())
    after = published(atlas)
    for name in before:
        assert (after[name] != before[name]) == (name in due)
    publish_records((), atlas.root)
    assert published(atlas) == after
    assert verify(atlas) == []


def test_a_new_commit_that_cannot_be_read_counts_as_such_and_takes_nothing_away(atlas):
    before = published(atlas)
    give_new_commits(atlas, CHANGED[:1])
    (due,) = [one for one in build_of(atlas).plan() if one.unit is not None]
    build = build_of(atlas)
    build.store.write_failure(due.unit.identity, Skipped("corrupt_file", "torn"))
    assert not [one for one in build.plan() if one.unit is not None]
    assert (build.report.unchanged, build.report.skipped, build.report.failed) == (8, 1, 0)
    publish_records((), atlas.root)
    assert published(atlas) == before


def test_records_of_an_interrupted_build_are_found_with_their_commit(atlas, monkeypatch):
    give_new_commits(atlas, CHANGED[:1])
    build = build_of(atlas)
    planned = build.plan()
    (due,) = [one for one in planned if one.unit is not None]

    def work(*_: Any) -> Any:
        change(build, due)  # by a worker whose result does not arrive any more
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "work", work)
    with pytest.raises(KeyboardInterrupt):
        build.run(planned, build.stored_base())
    assert published(atlas)[CHANGED[0]][0] == due.unit.commit


def test_of_the_present_commit_spectra_come_first_and_of_earlier_ones_the_newest():
    def kept(commit: str, made: str, spectra: bool | str = False) -> RecordHeader:
        identity = Identity("a/b", commit, BASE, "base", "finetune", Spec(spectra=spectra))
        return RecordHeader(f"{commit}{made}", identity, made)

    first, second = kept("first", "2024-01-01", True), kept("second", "2024-01-02")
    rich, late = kept("third", "2024-01-03", True), kept("third", "2024-01-04")
    assert current_record([first, second], "third") is second
    assert current_record([first, second, rich, late], "third") is rich
    assert current_record([first, second], "first") is first
    assert current_record([], "first") is None


@pytest.mark.parametrize("is_sampled", [False, True])
def test_main_is_read_where_a_force_push_took_the_listed_commit_away(tiny_store, tmp_path, is_sampled):
    gone, kind = "0" * 40, "sample" if is_sampled else "full"
    with served_shell(tiny_store(1, tmp_path / "store")) as shell:
        tags = shell.hub.store.repository("ann/imdb-0").get("tags")
        shell.hub.faults.add("/api/models.filter", splice_row={"id": "ann/imdb-0", "sha": gone, "tags": tags})
        ran = shell("index", "build", "--base", BASE, "--workers", "1", "--read", kind, "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["discovered"], ran.json["indexed"], ran.json["failed"]) == (3, 3, 0)
        assert "ann/imdb-0: the Hub has no commit 0000000000 any more" in ran.err
        atlas = AtlasFolder(shell.folder / "atlas")
        assert published(atlas)["ann/imdb-0"][0] == shell.hub.store.repository("ann/imdb-0").revision().sha
        assert verify(atlas) == []
