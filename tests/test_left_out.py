"""Records without factors: a representation that needs them leaves their models out, and nothing else fails for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.shards import publish_records
from indexer.database.reading import Reading
from indexer.records.record import Record
from indexer.records.store import RecordStore
from indexer.upkeep.maintenance import rebuild, represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.tiny_hub import BASE

BARE = "ann/glue-0"


def without_factors(record: Record) -> Record:
    """As `index build --no-keep-factors` writes it."""
    return replace(record, deltas=tuple(replace(delta, u=None, v=None) for delta in record.deltas))


def make_bare(atlas: AtlasFolder, model: str = BARE) -> None:
    store = RecordStore(atlas)
    (kept,) = [one for one in store.headers() if one.identity.model == model]
    store.write(without_factors(store.read(kept.digest)))


def models(atlas: AtlasFolder, representation: str) -> set[str]:
    with Atlas(atlas.root) as opened:
        ids = set(opened.vectors(BASE, representation).ids.tolist())
        return {row["model"] for row in opened.rows("SELECT model, model_id FROM models") if row["model_id"] in ids}


@pytest.mark.slow
def test_a_model_without_factors_is_left_out_of_what_needs_them_by_every_command(atlas):
    whole = models(atlas, "input")
    make_bare(atlas)
    said: list[str] = []
    (row,) = represent(atlas, "output", say=said.append)["published"]
    assert row["vectors"] == len(whole) - 1
    assert any("have no factors: 1" in sentence for sentence in said)
    remarks: list[str] = []
    commands = (
        lambda: None,
        lambda: publish_records((), atlas.root, progress=lambda event: remarks.append(event.message)),
        lambda: rebuild(atlas, say=remarks.append),
        lambda: represent(atlas, "spectrum"),
    )
    for command in commands:
        command()
        assert models(atlas, "output") == whole - {BARE}
        assert models(atlas, "input") == whole
        assert verify(atlas) == []
    assert any("have no factors: 1" in sentence for sentence in remarks)
    assert models(atlas, "spectrum") == whole
    with Atlas(atlas.root) as opened:
        assert opened.purity(BASE, representation="output", draws=20).models == len(whole) - 1


def test_a_record_that_lost_its_factors_after_it_was_published_is_reported(atlas):
    represent(atlas, "output")
    make_bare(atlas)
    (found,) = verify(atlas)
    assert "1 models the database lacks" in found.problem


def test_when_a_crawl_last_listed_a_model_is_updated_though_nothing_else_is_new(atlas):
    from indexer.listing.listing import Listing

    def seen() -> dict[str, object]:
        with Reading(atlas.database) as connection:
            found = connection.rows("SELECT model, last_seen, fingerprint FROM fine_tunes")
        return {row["model"]: (row["last_seen"], row["fingerprint"]) for row in found}

    before = seen()
    listing = Listing(atlas.listing(BASE))
    one = next(one for one in listing.models() if one.id == BARE)
    listing.add(one.row, one.relation, BASE, one.claimed_by)
    publish_records((), atlas.root)
    after = seen()
    assert {model for model in before if before[model][0] != after[model][0]} == {BARE}
    last_seen = next(one for one in Listing(atlas.listing(BASE)).models() if one.id == BARE).last_seen
    assert after[BARE][0] == last_seen.replace(tzinfo=None)
    assert {model: row[1] for model, row in before.items()} == {model: row[1] for model, row in after.items()}
