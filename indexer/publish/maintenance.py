"""Maintenance of an atlas: its status, a rebuild, another representation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.connection import published_bases
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError
from indexer.listing.listing import ListedModel, Listing
from indexer.network.rows import commit_of
from indexer.publish.previous_atlas import (
    USUAL_RANK,
    PreviousAtlas,
    known_models,
    published_rank,
    rebuild_refused,
)
from indexer.publish.publication import Publication
from indexer.publish.publish import publish
from indexer.publish.rows import Entry
from indexer.records.representation import representation_named
from indexer.records.store import FailureRecord, RecordHeader, RecordStore, current_record
from indexer.vectors.choice import IndexChange, IndexChoice


def status(folder: AtlasFolder) -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, sizes."""
    folder.require()
    with Reading(folder.database) as connection:
        info = connection.rows("SELECT schema_version, generation, published, tool_version FROM atlas_info")[0]
        bases = connection.rows(
            'SELECT base, "commit", aliases, '
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base) AS listed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'indexed') AS indexed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'skipped') AS skipped, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'failed') AS failed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'listed') AS pending, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND deleted_at_hub) AS gone, "
            "(SELECT count(*) FROM fine_tunes f JOIN records USING (model_id) WHERE f.base = b.base "
            "AND NOT has_spectra) AS without_spectra "
            "FROM bases b ORDER BY base",
        )
        published = connection.rows(
            "SELECT base, representation, version, rank, vectors, length, factory, recall_at_10, segments, "
            "faiss_bytes, faiss_files FROM indexes ORDER BY base, representation",
        )
        reasons = connection.rows("SELECT * FROM failures ORDER BY models DESC, reason")
        flags = connection.rows(
            "SELECT count(*) FILTER (is_copy) AS copies, count(*) FILTER (duplicate_of IS NOT NULL) AS duplicates, "
            "count(*) FILTER (is_unrelated) AS unrelated, count(*) FILTER (is_partly_frozen) AS partly_frozen "
            "FROM records",
        )[0]
    return {
        "atlas": str(folder.root),
        **info,
        "bases": bases,
        "flags": flags,
        "representations": published,
        "failures": reasons,
        "bytes": {
            "database": folder.database.stat().st_size,
            "vectors": _size(folder.root.glob("*.faiss")),
            "records": _size(folder.records.glob("*/*")),
            "bases": _size(folder.bases.glob("*")),
            "listing": _size(folder.listings.glob("*")),
        },
    }


def rebuild(
    folder: AtlasFolder,
    progress: Callable[[str], None] = lambda what: None,
    say: Callable[[str], None] = lambda what: None,
    *,
    force: bool = False,
    index: IndexChange | None = None,
    before: PreviousAtlas | None = None,
) -> dict[str, Any]:
    """Make the database and all FAISS files again, from listings, bases and records.

    ``before``: what was published, if the database of the atlas does not say it. ``index``: a change of the vectors or
    their index. ``say`` receives messages for the user. The caller holds the lock of the writer.

    Models that are missing in a listing are restored from the old database or from the records. Damaged records are
    deleted, so that the next build reads their models again. Raises AtlasError if there is nothing to rebuild from and,
    unless ``force``, if the result would lose models; nothing is changed then.
    """
    before = PreviousAtlas.read(folder) if before is None else before
    found = _read_store(folder, progress)
    works = [_rework(folder, base, found, before, index) for base in _newest_bases(folder)]
    entries = [entry for work in works for entry in work.publication.entries]
    lost = before.missing_after(entries, found.damaged)
    published = {work.publication.base.base for work in works}
    without_base = {base for base, _ in before.models} | found.records.keys()
    without_base -= published
    lost += [(base, one.identity.model) for base in sorted(without_base) for one in found.records.get(base, ())]
    if lost and not force:
        raise rebuild_refused(list(dict.fromkeys(lost)), without_base, folder.root)
    if not works:
        raise AtlasError(f"{folder.root} holds no bases to rebuild from.", "Run `index build --base ID`.")
    for work in works:
        work.mend_listing(say)
    publish(folder, [work.publication for work in works], before.representations, afresh=True, say=say)
    store = RecordStore(folder)
    for digest in found.damaged:
        store.discard(digest)
    for digest in found.damaged_outcomes:
        store.discard_failure(digest)
    return {
        "atlas": str(folder.root),
        "bases": [work.publication.base.base for work in works],
        "models": len(entries),
        "records": sum(len(records) for records in found.records.values()),
        "restored": sum(len(work.restored) for work in works),
        "damaged_records": found.damaged,
    }


@dataclass(frozen=True)
class _Found:
    """What the records folder holds, by base; ``damaged`` and ``damaged_outcomes`` are digests."""

    records: dict[str, list[RecordHeader]]
    outcomes: dict[str, list[FailureRecord]]
    damaged: list[str]
    damaged_outcomes: list[str]


def _read_store(folder: AtlasFolder, progress: Callable[[str], None]) -> _Found:
    found, store = _Found({}, {}, [], []), RecordStore(folder)
    for digest in store.digests():
        progress(f"record {digest[:12]}")
        try:
            record = store.read(digest)
        except AtlasError:
            found.damaged.append(digest)
            continue
        if record.identity.digest != digest:  # whole, and under the name of another
            found.damaged.append(digest)
            continue
        kept = RecordHeader(digest, record.identity, record.created)
        found.records.setdefault(record.identity.base, []).append(kept)
    for digest in store.failure_digests():
        try:
            outcome = store.checked_failure(digest)
        except (OSError, AtlasError):
            found.damaged_outcomes.append(digest)
            continue
        found.outcomes.setdefault(outcome.identity.base, []).append(outcome)
    return found


@dataclass(frozen=True)
class _Rework:
    """One base to be published again; ``restored`` are models that its listing lacks."""

    publication: Publication
    listing: Listing
    restored: list[ListedModel]

    def mend_listing(self, say: Callable[[str], None]) -> None:
        base, problems = self.publication.base.base, self.listing.problems()
        if self.restored or problems or not self.listing.path.is_file():
            self.listing.restore(self.restored, [base, *self.publication.aliases])
            say(
                f"{base}: {len(self.restored)} models put back into the listing as database and records know them; "
                f"run `index build --base {base}` to list them anew"
            )


def _rework(
    folder: AtlasFolder, base: StoredBase, found: _Found, before: PreviousAtlas, index: IndexChange | None
) -> _Rework:
    listing = Listing(folder.listing(base.base))
    records = [one for one in found.records.get(base.base, []) if one.identity.base_commit == base.commit]
    outcomes = found.outcomes.get(base.base, [])
    rank = _rank_of(folder, base, records)
    listed = listing.models()
    identities = [(one.identity, one.made) for one in records]
    identities += [(one.identity, one.when) for one in outcomes if one.reason != "renamed"]
    besides = {one.id for one in listed} | listing.removed | listing.renamed.keys()
    restored = known_models(folder, base.base, besides, identities)
    publication = Publication(
        base=base,
        aliases=listing.aliases() or before.aliases.get(base.base, ()),
        entries=_entries(
            base.base, [*listed, *restored], [one for one in records if one.identity.spec.rank == rank], outcomes
        ),
        rank=rank,
        rejected_rows=[row.as_row() for row in listing.rejected_rows()],
        index=before.choices.get(base.base, IndexChoice()).changed(index),
    )
    return _Rework(publication, listing, restored)


def represent(
    folder: AtlasFolder, name: str, index: IndexChange | None = None, say: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Publish another representation for every base, from the records; ``index``: another than the base has now.

    The caller holds the writer's lock.
    """
    chosen = representation_named(name)
    folder.require()
    with Reading(folder.database) as connection:
        current = published_bases(connection)
    publish(
        folder,
        [
            Publication(StoredBase(folder.base(row["base"], row["commit"])), (), (), row["rank"], index=index)
            for row in current
        ],
        [name],
        say=say,
    )
    with Reading(folder.database) as connection:
        rows = connection.rows(
            "SELECT base, vectors, length, factory, recall_at_10, faiss_files FROM indexes "
            "WHERE representation = ? ORDER BY base",
            (name,),
        )
    return {
        "representation": name,
        "version": chosen.version,
        "description": chosen.description,
        "published": rows,
    }


def _rank_of(folder: AtlasFolder, base: StoredBase, found: list[RecordHeader]) -> int:
    """The published rank if there are records of it, else that of most records."""
    ranks = Counter(one.identity.spec.rank for one in found)
    published = published_rank(folder, base.base)
    if published is not None and published.rank in ranks:
        return published.rank
    return max(ranks, key=lambda rank: (ranks[rank], rank), default=USUAL_RANK)


def _entries(
    base: str, models: Sequence[ListedModel], found: list[RecordHeader], outcomes: list[FailureRecord]
) -> list[Entry]:
    """For every listed model the record of its current commit, else the newest record, else the failure."""
    records: dict[str, list[RecordHeader]] = {}
    for one in found:
        records.setdefault(one.identity.model, []).append(one)
    failures = {(outcome.identity.model, outcome.identity.commit): outcome for outcome in outcomes}
    entries = []
    for listed in models:
        commit = commit_of(listed.row)
        kept = current_record(records.get(listed.id, ()), commit)
        if kept is not None:
            entries.append(Entry(listed, base, kept.identity.commit, record_key=kept.digest))
        else:
            entries.append(Entry(listed, base, commit, outcome=failures.get((listed.id, commit or ""))))
    return entries


def _newest_bases(folder: AtlasFolder) -> list[StoredBase]:
    newest = {base.base: base for base in reversed(stored_bases(folder))}
    return [newest[name] for name in sorted(newest)]


def _size(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
