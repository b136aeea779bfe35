"""Maintenance of an atlas: its status, a rebuild, another representation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.database.connection import published_bases
from indexer.database.deepening import deepening, without_a_full_model
from indexer.database.reading import EarlierRows, Reading, earlier_database
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError, Text
from indexer.listing.listing import ListedModel, Listing
from indexer.listing.trees import KnownTrees
from indexer.network.rows import commit_of
from indexer.publish.origin import import_lines
from indexer.publish.previous_atlas import USUAL_RANK, PreviousAtlas, known_models, rank_of
from indexer.publish.publish import publish
from indexer.publish.rows import Entry, Publication
from indexer.publish.stored_answers import published_answers, restore_answers
from indexer.quantities import some_of
from indexer.records.conversion import CONVERSION
from indexer.records.identity import OtherVersion
from indexer.records.representations.registry import representation_named
from indexer.records.store import FailureRecord, RecordHeader, RecordStore, current_record
from indexer.sources.local_names import LOCAL
from indexer.upkeep.removal import conclude, finish_removals, forget, unfinished_removals


def status(folder: AtlasFolder) -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, sizes."""
    folder.require()
    with Reading(folder.database) as connection:
        info = connection.rows("SELECT schema_version, generation, published, tool_version FROM atlas_info")[0]
        bases = connection.rows(
            'SELECT base, bases."commit", aliases, count(model_id) AS listed, '
            "count(*) FILTER (status = 'indexed') AS indexed, count(*) FILTER (status = 'skipped') AS skipped, "
            "count(*) FILTER (status = 'failed') AS failed, count(*) FILTER (status = 'listed') AS pending, "
            "count(*) FILTER (deleted_at_hub) AS gone, count(*) FILTER (NOT has_spectra) AS without_spectra, "
            "count(*) FILTER (\"read\" = 'sample') AS sampled "
            "FROM bases LEFT JOIN fine_tunes USING (base) LEFT JOIN records USING (model_id) "
            "GROUP BY ALL ORDER BY base",
        )
        published = connection.rows(
            "SELECT base, representation, version, rank, vectors, length, faiss_bytes, faiss_file "
            "FROM indexes ORDER BY base, representation",
        )
        reasons = connection.rows("SELECT * FROM failures ORDER BY models DESC, reason")
        flags = connection.rows(
            "SELECT count(*) FILTER (is_copy AND coalesce(copy_evidence, '') NOT IN ('untrained', 'unmeasurable')) "
            "AS copies, count(*) FILTER (copy_evidence IN ('untrained', 'unmeasurable')) AS untrained, "
            "count(*) FILTER (duplicate_of IS NOT NULL) AS duplicates, "
            "count(*) FILTER (is_unrelated) AS unrelated, count(*) FILTER (is_partly_frozen) AS partly_frozen "
            "FROM records",
        )[0]
    return {
        "atlas": str(folder.root),
        **info,
        "bases": bases,
        **_sources(folder),
        "flags": flags,
        "representations": published,
        "failures": reasons,
        "bytes": {
            "database": folder.database.stat().st_size,
            "vectors": _size(folder.root.glob("*.faiss")),
            "records": _size(folder.records.glob("*/*")),
            "bases": _size(folder.bases.glob("*")),
            "profiles": _size(folder.profiles.glob("*/*")),
            "listing": _size(folder.listings.glob("*")),
        },
    }


def _sources(folder: AtlasFolder) -> dict[str, list[dict[str, Any]]]:
    """The trees, and the sources besides the Hub, that models were found in, with counts; nothing if there are none.

    ``models``: of bases that were asked for; ``conversions``: those of them that are copies in other formats, without a
    vector; ``left``: those that are not there any more.
    """
    known_trees = KnownTrees(folder)
    trees, places = known_trees.trees(), known_trees.places()
    with Reading(folder.database) as connection:
        rows = connection.rows(
            "SELECT model, bool_or(status = 'indexed') AS indexed, bool_or(reason = $conversion) AS is_conversion "
            "FROM fine_tunes GROUP BY model",
            {"conversion": CONVERSION},
        )
        other_sources = connection.rows(
            "SELECT split_part(model, ':', 1) AS address, '' AS author, count(DISTINCT model) AS models, "
            "count(DISTINCT model) FILTER (status = 'indexed' AND NOT deleted_at_hub) AS indexed, "
            "count(DISTINCT model) FILTER (reason = $conversion AND NOT deleted_at_hub) AS conversions, "
            "0 AS another_base, 0 AS base_not_named, 0 AS problems, "
            'count(DISTINCT model) FILTER (deleted_at_hub) AS "left", '
            "max(last_seen) AS seen FROM fine_tunes WHERE contains(model, ':') AND NOT starts_with(model, $local) "
            "GROUP BY 1 ORDER BY 1",
            {"local": LOCAL, "conversion": CONVERSION},
        )
    indexed = {row["model"] for row in rows if row["indexed"]}
    conversions = {row["model"] for row in rows if row["is_conversion"]}
    sources = []
    for tree in trees:
        of_tree = places.get(tree.tree, {}).values()
        models_here = {placed.model for placed in of_tree if placed.is_here}
        counts = {name: tree.counts.get(name, 0) for name in ("another_base", "base_not_named", "problems")}
        sources.append({
            "address": tree.address,
            "author": tree.author,
            "models": tree.counts.get("models", 0),
            "indexed": len(models_here & indexed),
            "conversions": len(models_here & conversions),
            **counts,
            "left": len({placed.model for placed in of_tree} - models_here),
            "seen": datetime.fromisoformat(tree.seen),
        })  # fmt: skip
    sources += other_sources
    return {"sources": sources} if sources else {}


def rebuild(
    folder: AtlasFolder,
    say: Callable[[str], None] = lambda what: None,
    *,
    force: bool = False,
    vector_length: int | None = None,
    before: PreviousAtlas | None = None,
) -> dict[str, Any]:
    """Make the database and all FAISS files again, from listings, bases and records.

    ``before``: the earlier published state, if the database of the atlas does not record it. ``vector_length``: the
    approximate length to make vectors of; None for the length asked for before. ``say`` receives messages for the
    user. The caller holds the lock of the writer.

    A damaged listing is written again with what can be read of it, before anything else, and kept beside it. Models
    that are missing in a listing are restored from the old database or from the records. Removals that were
    interrupted are finished. Damaged records are deleted, so that the next build reads their models again; records of
    a version that this program does not read are kept, and their models published without them. Raises
    AtlasError if there is nothing to rebuild from and, unless ``force``, if the result would lose models; nothing that
    is published changes then.
    """
    store = RecordStore(folder)
    records: list[RecordHeader] = []
    failures: list[FailureRecord] = []
    damaged, damaged_failures, unread = [], [], []
    for digest in store.digests():
        try:
            record = store.read(digest)
        except OtherVersion:
            unread.append(digest)
            continue
        except AtlasError:
            damaged.append(digest)
            continue
        if record.identity.digest == digest:
            records.append(RecordHeader(digest, record.identity, record.created))
        else:
            damaged.append(digest)  # intact, but the record of something else
    for digest in store.failure_digests():
        try:
            failures.append(store.checked_failure(digest))
        except OtherVersion:
            continue
        except (OSError, AtlasError):
            damaged_failures.append(digest)

    newest = {base.base: base for base in reversed(stored_bases(folder))}
    for name in newest:
        if folder.exported("listing", name).exists() and not folder.listing(name).exists():
            import_lines(folder, name)
    plans = []
    with earlier_database(folder.database) as earlier:
        before = PreviousAtlas.read(earlier) if before is None else before
        listings = {name: Listing(folder.listing(name)) for name in newest}
        # Stored answers of the bases whose listing is missing or damaged.
        answers = {
            name: published_answers(earlier, name)
            for name, listing in listings.items()
            if not listing.path.is_file() or listing.problems()
        }
        for name in answers:
            listings[name].repair()
        removals = unfinished_removals(folder, newest)
        for removal in removals:
            forget(folder, removal)
        for name in sorted(newest):
            of_base = [header for header in records if header.identity.base == name]
            failed = [failure for failure in failures if failure.identity.base == name]
            plans.append(_plan(folder, newest[name], of_base, failed, before, earlier, vector_length))
    entries = [entry for publication, _, _ in plans for entry in publication.entries]
    withdrawn = {
        (publication.base.base, model)
        for publication, listing, _ in plans
        for model in listing.removed | listing.renamed.keys()
    }
    lost = before.missing_after(entries, damaged, withdrawn, unread)
    without_base = {base for base, _ in before.models} | {header.identity.base for header in records}
    without_base -= newest.keys()
    lost += sorted(
        (header.identity.base, header.identity.model) for header in records if header.identity.base in without_base
    )
    if lost and not force:
        lost = list(dict.fromkeys(lost))
        bases = sorted({base for base, _ in lost})
        why = [
            f"the block matrices of {base} are missing, damaged or of another version"
            for base in bases
            if base in without_base
        ]
        commands = " and ".join(f"`index build --base {base}`" for base in bases)
        raise AtlasError(
            f"A rebuild of {folder.root} would lose {len(lost)} models: {some_of([model for _, model in lost])}; "
            f"{', '.join(why) or 'their records are missing'}.",
            f"Nothing was changed. Restore the files, or run {commands}, which fetches what is missing; "
            "`index rebuild --force` rebuilds without these models.",
        )
    if not plans:
        raise AtlasError(f"{folder.root} holds no bases to rebuild from.", "Run `index build --base ID`.")

    if unread:
        until = "kept but not published until `index build` reads their models again"
        say(f"records of another version, {until}: {len(unread)}")
    for publication, listing, restored in plans:
        base = publication.base.base
        if restored or base in answers:
            listing.restore(restored, [base, *publication.aliases])
            restore_answers(folder, base, answers.get(base, {}))
            say(
                f"{base}: restored {len(restored)} models of the listing from database and records; "
                f"run `index build --base {base}` to list them again"
            )
    publish(folder, [publication for publication, _, _ in plans], before.representations, from_scratch=True, say=say)
    for removal in removals:
        conclude(folder, removal)
    for digest in damaged:
        store.discard(digest)
    for digest in damaged_failures:
        store.discard_failure(digest)
    return {
        "atlas": str(folder.root),
        "bases": sorted(newest),
        "models": len(entries),
        "records": len(records),
        "restored": sum(len(restored) for _, _, restored in plans),
        "damaged_records": damaged,
    }


def _plan(
    folder: AtlasFolder,
    base: StoredBase,
    records: Sequence[RecordHeader],
    failures: Sequence[FailureRecord],
    before: PreviousAtlas,
    earlier: EarlierRows,
    vector_length: int | None,
) -> tuple[Publication, Listing, list[ListedModel]]:
    """What to publish for one base, its listing, and the models that the listing lacks."""
    listing = Listing(folder.listing(base.base))
    records = [record for record in records if record.identity.base_commit == base.commit]
    # The published rank if there are records of it, else that of most records.
    ranks = Counter(record.identity.spec.rank for record in records)
    published = rank_of(earlier, base.base)
    rank = max(ranks, key=lambda rank: (ranks[rank], rank), default=USUAL_RANK)
    if published is not None and published.rank in ranks:
        rank = published.rank
    listed = listing.models()
    identities = [(record.identity, record.made) for record in records]
    identities += [(failure.identity, failure.when) for failure in failures if failure.reason != "renamed"]
    known_ids = {model.id for model in listed} | listing.removed | listing.renamed.keys()
    restored = known_models(earlier, base.base, known_ids, identities)

    # For every model the record of its current commit, else the newest record, else the failure.
    of_model: dict[str, list[RecordHeader]] = {}
    for header in records:
        if header.identity.spec.rank == rank:
            of_model.setdefault(header.identity.model, []).append(header)
    failed = {(failure.identity.model, failure.identity.commit): failure for failure in failures}
    entries = []
    for model in [*listed, *restored]:
        commit = commit_of(model.row)
        record = current_record(of_model.get(model.id, ()), commit)
        if record is not None:
            entries.append(Entry(model, base.base, record.identity.commit, record_key=record.digest))
        else:
            entries.append(Entry(model, base.base, commit, outcome=failed.get((model.id, commit or ""))))
    publication = Publication(
        base=base,
        aliases=listing.aliases() or before.aliases.get(base.base, ()),
        entries=entries,
        rank=rank,
        rejected_rows=[row.as_row() for row in listing.rejected_rows()],
        licence=listing.licence or before.licences.get(base.base),
        vector_length=vector_length or before.vector_lengths.get(base.base),
    )
    return publication, listing, restored


def represent(
    folder: AtlasFolder, name: str, vector_length: int | None = None, say: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Publish another representation for every base, from the records; ``vector_length``: as in ``rebuild``.

    The caller holds the lock of the writer. Raises AtlasError if no model of any base has what it needs, because a
    sample was read of all.
    """
    representation = representation_named(name)
    finish_removals(folder.require(), say=say)
    with Reading(folder.database) as connection:
        current = published_bases(connection)
        if representation.needs_all_rows:
            _check_not_all_sampled(connection, name)
    publish(
        folder,
        [
            Publication(
                StoredBase(folder.base(row["base"], row["commit"])), (), (), row["rank"], vector_length=vector_length
            )
            for row in current
        ],
        [name],
        say=say,
    )
    with Reading(folder.database) as connection:
        for row in current if representation.needs_all_rows else ():
            (sampled,) = connection.rows(
                "SELECT count(*) AS models FROM models WHERE base = ? AND \"read\" = 'sample' AND NOT is_copy",
                [row["base"]],
            )
            if sampled["models"]:
                say(Text(f"{row['base']}: ", deepening(connection, row["base"])))
        rows = connection.rows(
            "SELECT base, vectors, length, faiss_file FROM indexes WHERE representation = ? ORDER BY base",
            (name,),
        )
    return {
        "representation": name,
        "version": representation.version,
        "description": representation.description,
        "published": rows,
    }


def _check_not_all_sampled(connection: Reading, name: str) -> None:
    """Raise AtlasError if a sample was read of every model that changed something."""
    rows = connection.rows(
        "SELECT base, count(*) AS models, count(*) FILTER (\"read\" = 'sample') AS sampled FROM models "
        "WHERE NOT is_copy GROUP BY base ORDER BY models DESC, base"
    )
    if rows and all(row["models"] == row["sampled"] for row in rows):
        raise without_a_full_model(connection, rows[0]["base"], rows[0]["models"], f"{name!r} vectors")


def _size(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
