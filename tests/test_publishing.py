"""Publishing piece by piece: the same atlas as from all at once, at the cost of the piece, while readers read."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.deltas.base import BaseMatrices
from indexer.errors import AtlasError
from indexer.publish import staging
from indexer.publish.publish import publish
from indexer.publish.rows import Entry, Publication
from indexer.records.store import RecordStore
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.database import execute, leave_log
from tests.tiny_hub import BASE

TABLES = {
    # Centred again or all at once, similarities are apart by rounding: who is nearer is compared where it is no close call.
    "neighbours": "SELECT representation, one.model, rank, "
    "CASE WHEN coalesce(abs(similarity - lag(similarity) OVER near), 1) > .001 "
    "AND coalesce(abs(similarity - lead(similarity) OVER near), 1) > .001 THEN two.model END AS neighbour "
    "FROM neighbours AS n JOIN fine_tunes AS one USING (model_id) JOIN fine_tunes AS two ON two.model_id = neighbour_id "
    "WINDOW near AS (PARTITION BY representation, n.model_id ORDER BY rank)",
    "records": "SELECT model, records.* EXCLUDE (model_id, duplicate_of, duplicate_group), duplicate_of IS NULL, "
    "(SELECT model FROM fine_tunes AS f WHERE f.model_id = duplicate_group) AS first "
    "FROM records JOIN fine_tunes USING (model_id)",
    "deltas": "SELECT model, deltas.* EXCLUDE (model_id) FROM deltas JOIN fine_tunes USING (model_id)",
    "fine_tunes": "SELECT * EXCLUDE (model_id) FROM fine_tunes",
    "tags": "SELECT model, tag FROM tags JOIN fine_tunes USING (model_id)",
    "datasets": "SELECT model, model_datasets.* EXCLUDE (model_id) FROM model_datasets JOIN fine_tunes USING (model_id)",
}

SIMILARITIES = (
    "SELECT representation, model, rank, similarity FROM neighbours JOIN fine_tunes USING (model_id) ORDER BY ALL"
)


class Piecewise:
    """An atlas that holds records and a listing, and as much of them as was published."""

    def __init__(self, made, folder) -> None:
        shutil.copytree(made, folder)
        self.folder = AtlasFolder(folder)
        (path,) = self.folder.bases.glob("*.safetensors")
        self.base = BaseMatrices(path)
        self.entries = list(self._entries())
        for file in [self.folder.database, *self.folder.root.glob("*.faiss")]:
            file.unlink()

    def _entries(self) -> Iterator[Entry]:
        from indexer.listing.listing import Listing

        listed = {one.id: one for one in Listing(self.folder.listing(BASE)).models()}
        with Reading(self.folder.database) as connection:
            for row in connection.rows('SELECT model, "commit", record_key FROM fine_tunes ORDER BY model'):
                yield Entry(listed[row["model"]], BASE, row["commit"], row["record_key"])

    def publish(self, *entries: Entry, **options) -> None:
        publish(self.folder, [Publication(self.base, (), entries, 8)], **options)

    def tables(self) -> dict[str, list]:
        with Reading(self.folder.database) as connection:
            return {
                name: sorted(map(str, connection.execute(statement).fetchall())) for name, statement in TABLES.items()
            }

    def similarities(self) -> list[float]:
        with Reading(self.folder.database) as connection:
            return [row[-1] for row in connection.execute(SIMILARITIES).fetchall()]


@pytest.fixture
def atlas(made_of_twelve, tmp_path):
    found = Piecewise(made_of_twelve / "atlas", tmp_path / "atlas")
    yield found
    found.base.close()


@pytest.mark.slow
def test_piece_by_piece_is_the_same_as_all_at_once(atlas):
    entries = atlas.entries
    atlas.publish(*entries[:3])
    represent(atlas.folder, "spectrum")
    atlas.publish(*entries[3:7])
    # One repeats another, one is withdrawn, one gets other weights; then the rest, and two of these changes go back.
    repeated = replace(entries[5], record_key=entries[0].record_key)
    changed = replace(entries[1], record_key=entries[8].record_key)
    atlas.publish(repeated, replace(entries[2], record_key=None), changed)
    atlas.publish(*entries[7:])
    atlas.publish(entries[2], replace(entries[1], record_key=entries[1].record_key))
    final = [*entries[:5], repeated, *entries[6:]]
    pieces, similarities = atlas.tables(), atlas.similarities()
    # As it was made to be.
    assert verify(atlas.folder)[0].problem == "its record belongs to a different model: run `index rebuild`"
    assert len(verify(atlas.folder)) == 1 + 1  # and the record that nobody names now
    atlas.publish(*final, from_scratch=True, representations=("spectrum",))
    at_once = atlas.tables()
    for name in TABLES:
        assert pieces[name] == at_once[name], name
    assert similarities == pytest.approx(atlas.similarities(), abs=0.005)
    assert sum("'ann/glue-0'" in row or entries[0].listed.id in row for row in pieces["records"]) >= 2


@pytest.mark.slow
def test_a_piece_reads_only_its_own_records(atlas, monkeypatch):
    atlas.publish(*atlas.entries[:-2])
    read = []
    really = RecordStore.read
    monkeypatch.setattr(RecordStore, "read", lambda store, digest: (read.append(digest), really(store, digest))[1])
    atlas.publish(*atlas.entries)
    assert sorted(read) == sorted(entry.record_key for entry in atlas.entries[-2:])
    read.clear()
    atlas.publish(*atlas.entries)
    assert read == []


def test_a_duplicate_that_changes_sets_the_rest_of_its_group_together_again(atlas):
    """A = B and B = C are known; when B becomes another, A = C must be found."""
    a, b, c, other = atlas.entries[0], atlas.entries[1], atlas.entries[2], atlas.entries[9]
    same = [replace(one, record_key=a.record_key) for one in (b, c)]
    atlas.publish(a, *same, other)
    atlas.publish(replace(b, record_key=atlas.entries[8].record_key))
    with Reading(atlas.folder.database) as connection:
        groups = connection.execute(
            "SELECT list(model ORDER BY model) FROM records JOIN fine_tunes USING (model_id) "
            "WHERE duplicate_group IS NOT NULL GROUP BY duplicate_group"
        ).fetchall()
    assert groups == [([a.listed.id, c.listed.id],)]


@pytest.mark.slow
def test_readers_see_one_state_or_the_next_while_pieces_are_published(atlas):
    atlas.publish(*atlas.entries[:4])
    stop, seen, wrong = threading.Event(), set(), []

    def read() -> None:
        try:
            with Atlas(atlas.folder.root) as opened:
                while not stop.is_set():
                    generation = opened.generation
                    count = opened.rows("SELECT count(*) AS models FROM models")[0]["models"]
                    found = opened.similar(atlas.entries[0].listed.id, k=50, other_authors=False)
                    filtered = opened.similar(atlas.entries[0].listed.id, k=50, where="downloads >= 0")
                    seen.add(count)
                    # Files may be collected between two questions: then the second is asked of what is there now.
                    if opened.generation == generation and not len(found) == len(filtered) == count - 1:
                        wrong.append((count, len(found), len(filtered)))
                    opened.refresh()
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for number in range(4, len(atlas.entries), 2):
        atlas.publish(*atlas.entries[number : number + 2])
    stop.set()
    for one in readers:
        one.join()
    assert wrong == []
    assert len(seen) > 1, "the readers were there while something changed"


@pytest.mark.slow
def test_a_database_that_is_mostly_holes_is_rewritten(atlas, monkeypatch):
    atlas.publish(*atlas.entries)
    before = atlas.tables()
    monkeypatch.setattr("indexer.publish.staging.BLOATED_BYTES", 0)
    comments = "SELECT count(*), count(comment) FROM duckdb_columns() WHERE NOT internal"
    with Reading(atlas.folder.database) as connection:
        commented = connection.execute(comments).fetchall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indexer.publish.staging._compact", lambda *_: pytest.fail("there are no holes yet"))
        atlas.publish()
    bloat(atlas)
    large = atlas.folder.database.stat().st_size
    atlas.publish()
    assert atlas.folder.database.stat().st_size < large / 2
    assert atlas.tables() == before
    with Reading(atlas.folder.database) as connection:
        assert connection.execute(comments).fetchall() == commented
        assert connection.execute("SELECT count(*) FROM nearest('ann/glue-0')").fetchall() == [(10,)]
    assert len(list(atlas.folder.root.glob("*.duckdb*"))) == 1


def bloat(atlas: Piecewise) -> None:
    """Something large goes, and what came after it keeps the file from shrinking."""

    with duckdb.connect(str(atlas.folder.database)) as connection:
        for statement in (
            "CREATE TABLE large AS SELECT hash(i)::VARCHAR || hash(-i)::VARCHAR AS text FROM range(1000000) AS t(i)",
            "INSERT INTO rejected_listing_rows SELECT 'nobody', hash(i)::VARCHAR, NULL, NULL FROM range(100000) AS t(i)",
            "DROP TABLE large",
        ):
            connection.execute(statement)
            connection.execute("CHECKPOINT")


@pytest.mark.slow
def test_an_atlas_that_began_without_a_vector_takes_the_first_that_comes(atlas):
    atlas.publish(*(replace(entry, record_key=None) for entry in atlas.entries[:3]))
    atlas.publish(*atlas.entries[:7])
    atlas.publish(*atlas.entries)
    pieces = atlas.tables()
    assert verify(atlas.folder) == []
    atlas.publish(*atlas.entries, from_scratch=True)
    assert pieces == atlas.tables()


def test_an_id_that_was_given_is_given_to_no_other_model(atlas):
    """Also when everything is published again, with new models before the old ones."""
    atlas.publish(*atlas.entries[4:])
    before = ids_in(atlas.folder)
    atlas.publish(*atlas.entries, from_scratch=True)
    after = ids_in(atlas.folder)
    assert {model: after[model] for model in before} == before
    assert len(set(after.values())) == len(atlas.entries)
    assert min(set(after.values()) - set(before.values())) > max(before.values())


def ids_in(folder: AtlasFolder) -> dict[str, int]:
    with Reading(folder.database) as connection:
        return dict(connection.execute("SELECT model, model_id FROM fine_tunes").fetchall())


def test_what_another_program_left_next_to_the_database_does_not_outlive_it(atlas):
    """A shell that was killed leaves a write-ahead log, which fits the database that was there then."""
    atlas.publish(*atlas.entries[:4])
    leave_log(atlas.folder.database, "CREATE TABLE notes AS SELECT 1 AS one")
    atlas.publish(*atlas.entries[4:])
    assert len(ids_in(atlas.folder)) == len(atlas.entries)
    assert verify(atlas.folder) == []


@pytest.mark.slow
def test_a_publish_that_fails_leaves_no_file_behind_nor_what_a_killed_one_left(atlas, monkeypatch):
    atlas.publish(*atlas.entries[:4])
    before = {path.name for path in atlas.folder.root.iterdir()}
    (atlas.folder.root / "of-a-killed-publish.faiss").write_bytes(b"1")

    def fail(*_):
        assert {path.name for path in atlas.folder.root.glob("*.faiss")} - before, "something new is there"
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("indexer.publish.vector_update.renew_neighbours", fail)
        with pytest.raises(OSError, match="No space"):
            atlas.publish(*atlas.entries)
    assert {path.name for path in atlas.folder.root.iterdir()} == before
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", fail_to_copy)
        patch.setattr("fcntl.ioctl", fail_to_copy)
        with pytest.raises(OSError, match="No space"):
            atlas.publish(*atlas.entries)
    assert {path.name for path in atlas.folder.root.iterdir()} == before
    atlas.publish(*atlas.entries)
    assert verify(atlas.folder) == []


def fail_to_copy(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_the_database_is_held_to_the_memory_it_is_given_and_takes_more_where_it_must(atlas, monkeypatch):
    with staging.staged_publish(atlas.folder, memory=300 << 20) as copy:
        assert copy.connection.execute("SELECT current_setting('memory_limit')").fetchall() == [("300.0 MiB",)]
    said = []
    atlas.publish(*atlas.entries[:6], memory=1, say=said.append)
    assert said == []
    monkeypatch.setattr(staging, "LEAST_MEMORY", 1 << 20)
    atlas.publish(*atlas.entries, memory=1, say=said.append)
    assert said[0] == (
        "the database needs more memory than --memory leaves for publishing; continuing without that limit"
    )
    assert verify(atlas.folder) == []
    assert len(atlas.tables()["records"]) == len(atlas.entries)


def test_new_vectors_are_not_mixed_with_old_ones_whose_centre_is_missing(atlas):
    atlas.publish(*atlas.entries[:4])
    execute(atlas.folder.database, "DELETE FROM internal.centres")
    before = atlas.folder.database.read_bytes()
    with pytest.raises(AtlasError, match=r"The centre of .* is missing from the database. Run `index rebuild`"):
        atlas.publish(*atlas.entries)
    assert atlas.folder.database.read_bytes() == before


def test_what_a_killed_publish_had_spilled_is_removed(atlas):
    left = atlas.folder.root / ".atlas.4711.duckdb.tmp"
    left.mkdir()
    (left / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"x")
    atlas.publish(*atlas.entries)
    assert not left.exists()
