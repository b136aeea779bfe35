"""Looking after an atlas: what is there, make it again, publish another representation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.build.plan import commit_of
from indexer.database import reader, rows_of
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.opening.reading import earlier_rows
from indexer.publish.kept_rank import USUAL_RANK, held
from indexer.publish.publish import Publication, publish
from indexer.publish.rows import Entry
from indexer.records.representation import DEFAULT, REPRESENTATIONS, representation_named
from indexer.records.store import Kept, Outcome, RecordStore, standing
from indexer.vectors.choice import IndexChange, IndexChoice


def status(folder: AtlasFolder) -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, sizes."""
    folder.require()
    with reader(folder) as connection:
        info = rows_of(connection, "SELECT schema_version, generation, published, tool_version FROM atlas_info")[0]
        bases = rows_of(
            connection,
            'SELECT base, "commit", aliases, '
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base) AS listed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'indexed') AS indexed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'skipped') AS skipped, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'failed') AS failed, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND status = 'listed') AS pending, "
            "(SELECT count(*) FROM fine_tunes f WHERE f.base = b.base AND gone) AS gone, "
            "(SELECT count(*) FROM fine_tunes f JOIN records USING (model_id) WHERE f.base = b.base "
            "AND NOT has_spectra) AS without_spectra "
            "FROM bases b ORDER BY base",
        )
        published = rows_of(
            connection,
            "SELECT base, representation, version, rank, vectors, length, factory, recall_at_10, segments, "
            "faiss_bytes, faiss_files FROM indexes ORDER BY base, representation",
        )
        reasons = rows_of(connection, "SELECT * FROM failures ORDER BY models DESC, reason")
        flags = rows_of(
            connection,
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
) -> dict[str, Any]:
    """Make the database and every FAISS file again, from listings, bases and records alone.

    Damaged records are forgotten, so that the next build reads their models again. ``say`` is told what a person
    should know. Raises AtlasError where there is nothing to build from. The caller holds the writer's lock.
    """
    representations, choices = _published_before(folder)
    publications = []
    by_base: dict[str, list[Kept]] = {}
    store = RecordStore(folder)
    damaged: list[str] = []
    for digest in store.digests():
        progress(f"record {digest[:12]}")
        try:
            record = store.read(digest)
        except AtlasError:
            damaged.append(digest)
            store.discard(digest)
            continue
        by_base.setdefault(record.identity.base, []).append(Kept(digest, record.identity, record.created))
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in store.outcomes():
        outcomes.setdefault(outcome.identity.base, []).append(outcome)
    for base in _newest_bases(folder):
        listing = Listing(folder.listing(base.base))
        found = [one for one in by_base.get(base.base, []) if one.identity.base_commit == base.commit]
        rank = _rank_of(folder, base, found)
        publications.append(
            Publication(
                base=base,
                aliases=listing.aliases(),
                entries=_entries(
                    base.base,
                    listing,
                    [one for one in found if one.identity.spec.rank == rank],
                    outcomes.get(base.base, []),
                ),
                rank=rank,
                bad_rows=[row.as_row() for row in listing.bad_rows()],
                index=choices.get(base.base),
            )
        )
    if not publications:
        raise AtlasError(f"{folder.root} holds no bases to rebuild from.", "Run `index build --base ID`.")
    publish(folder, publications, representations, afresh=True, say=say)
    return {
        "atlas": str(folder.root),
        "bases": [publication.base.base for publication in publications],
        "models": sum(len(publication.entries) for publication in publications),
        "records": sum(len(found) for found in by_base.values()),
        "damaged_records": damaged,
    }


def represent(
    folder: AtlasFolder, name: str, index: IndexChange | None = None, say: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Publish another representation for every base, from the records; ``index``: another than the base has now.

    The caller holds the writer's lock.
    """
    chosen = representation_named(name)
    folder.require()
    with reader(folder) as connection:
        current = rows_of(
            connection,
            'SELECT base, "commit", rank FROM bases JOIN representations USING (base) '
            "WHERE representation = 'input' ORDER BY base",
        )
    publish(
        folder,
        [
            Publication(StoredBase(folder.base(row["base"], row["commit"])), (), (), row["rank"], index=index)
            for row in current
        ],
        [name],
        say=say,
    )
    with reader(folder) as connection:
        rows = rows_of(
            connection,
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


def _rank_of(folder: AtlasFolder, base: StoredBase, found: list[Kept]) -> int:
    """The rank that is published where there are records of it, else that of most records: two never mix."""
    ranks = Counter(one.identity.spec.rank for one in found)
    published = held(folder, base.base)
    if published is not None and published.rank in ranks:
        return published.rank
    return max(ranks, key=lambda rank: (ranks[rank], rank), default=USUAL_RANK)


def _entries(base: str, listing: Listing, found: list[Kept], outcomes: list[Outcome]) -> list[Entry]:
    """For every listed model the record of its present commit, else the newest there is, else the outcome."""
    records: dict[str, list[Kept]] = {}
    for one in found:
        records.setdefault(one.identity.model, []).append(one)
    failures = {(outcome.identity.model, outcome.identity.commit): outcome for outcome in outcomes}
    entries = []
    for listed in listing.models():
        commit = commit_of(listed.row)
        kept = standing(records.get(listed.id, ()), commit)
        if kept is not None:
            entries.append(Entry(listed, base, kept.identity.commit, record_key=kept.digest))
        else:
            entries.append(Entry(listed, base, commit, outcome=failures.get((listed.id, commit or ""))))
    return entries


def _newest_bases(folder: AtlasFolder) -> list[StoredBase]:
    newest = {base.base: base for base in reversed(stored_bases(folder))}
    return [newest[name] for name in sorted(newest)]


def _published_before(folder: AtlasFolder) -> tuple[list[str], dict[str, IndexChoice]]:
    """Names of the representations that the database has, whatever its schema, and the index chosen for each base."""
    asked = "FROM representations ORDER BY representation"
    rows = (earlier_rows(folder.database, ["representations"], [asked]) or [[]])[0]
    choices = {
        row["base"]: IndexChoice(row["index_choice"], row["index_memory"], row["promised_recall"])
        for row in rows
        if row["representation"] == DEFAULT and "index_choice" in row
    }
    names = dict.fromkeys(row["representation"] for row in rows)
    return [name for name in names if name in REPRESENTATIONS], choices


def _size(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
