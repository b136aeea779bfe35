"""Looking after an atlas: what is there, what disagrees, make it again, publish another representation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.atlas import OLDEST_READABLE, SCHEMA_VERSION, AtlasFolder, check_schema
from indexer.base import BaseMatrices, stored_bases
from indexer.crawling.listing import Listing
from indexer.errors import AtlasError
from indexer.identity import SPECTRA_FORM, Identity
from indexer.plan import commit_of
from indexer.publish import Publication, publish
from indexer.publishing.rows import Entry
from indexer.records import Outcome, RecordStore
from indexer.representation import representation_named
from indexer.vectors import VectorFile, check_file, read_vectors

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Disagreement:
    """Something that is not as the atlas says: ``kind`` groups, ``what`` names it, ``problem`` explains."""

    kind: str
    what: str
    problem: str

    def as_row(self) -> dict[str, str]:
        """The keys of the command's JSON."""
        return {"kind": self.kind, "what": self.what, "problem": self.problem}


@dataclass(frozen=True)
class _Found:
    """A record on disk, without its factors."""

    digest: str
    identity: Identity
    made: str

    @property
    def worth(self) -> tuple[bool, str, str]:
        """To choose among records of one commit: first those with spectra, then the newest."""
        return (self.identity.spec.spectra == SPECTRA_FORM, self.made, self.digest)


def status(folder: AtlasFolder) -> dict[str, Any]:
    """What is in the atlas: bases, models by status, representations, sizes."""
    folder.require()
    with _reader(folder) as connection:
        info = _rows(connection, "SELECT schema_version, generation, published, tool_version FROM atlas_info")[0]
        bases = _rows(
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
        published = _rows(
            connection,
            "SELECT base, representation, version, rank, vectors, length, factory, faiss_file, faiss_bytes "
            "FROM representations ORDER BY base, representation",
        )
        reasons = _rows(connection, "SELECT * FROM failures ORDER BY models DESC, reason")
        flags = _rows(
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


def verify(folder: AtlasFolder, progress: Callable[[str], None] = lambda what: None) -> list[Disagreement]:
    """Everything that disagrees: files that are missing or altered, rows without files, files without rows."""
    folder.require()
    found: list[Disagreement] = []
    store = RecordStore(folder)
    with _reader(folder) as connection:
        keys = _rows(connection, "SELECT model_id, model, base, record_key FROM fine_tunes ORDER BY model_id")
        published = _rows(connection, "SELECT * FROM representations ORDER BY base, representation")
        bases = _rows(connection, 'SELECT base, "commit" FROM bases ORDER BY base')
        zero = {row["model_id"] for row in _rows(connection, "SELECT model_id FROM records WHERE is_copy")}
        doubled = _rows(
            connection,
            "SELECT model, base FROM fine_tunes GROUP BY model, base HAVING count(*) > 1 ORDER BY ALL",
        )
    for row in doubled:
        found.append(Disagreement("database", row["model"], f"has several rows for {row['base']}"))
    for row in bases:
        progress(f"base {row['base']}")
        found.extend(_check_base(folder, row["base"], row["commit"]))
    named: set[str] = set()
    current: set[tuple[str, str]] = set()
    for row in keys:
        if row["record_key"] is None:
            continue
        progress(f"record of {row['model']}")
        named.add(row["record_key"])
        try:
            record = store.read(row["record_key"])
            current.add((record.identity.model, record.identity.base))
            if (record.identity.model, record.identity.base) != (row["model"], row["base"]):
                found.append(Disagreement("record", row["model"], "its record is that of another model"))
        except AtlasError as error:
            found.append(Disagreement("record", row["model"], error.message))
    for row in published:
        progress(f"vectors {row['faiss_file']}")
        expected = {key["model_id"] for key in keys if key["base"] == row["base"] and key["record_key"]} - zero
        found.extend(_check_vectors(folder, row, expected))
    for path in sorted(folder.listings.glob("*.jsonl")):
        try:
            for problem in Listing(path).problems():
                found.append(Disagreement("listing", path.name, problem))
        except AtlasError as error:
            found.append(Disagreement("listing", path.name, error.message))
    found.extend(
        Disagreement("record", digest, "is on disk but not in the database: run `index rebuild`")
        for digest in _unnamed(store, named, current)
    )
    return found


def _unnamed(store: RecordStore, named: set[str], current: set[tuple[str, str]]) -> Iterator[str]:
    """Records that no row names, but for those that a later commit of the same model has replaced."""
    for digest in store.digests():
        if digest in named:
            continue
        try:
            identity = store.read(digest).identity
        except AtlasError:
            continue
        if (identity.model, identity.base) not in current:
            yield digest


def rebuild(folder: AtlasFolder, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Make the database and every FAISS file again, from listings, bases and records alone.

    Damaged records are forgotten, so that the next build reads their models again.
    Raises AtlasError where there is nothing to build from. The caller holds the writer's lock.
    """
    representations = _published_names(folder)
    publications = []
    by_base: dict[str, list[_Found]] = {}
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
        by_base.setdefault(record.identity.base, []).append(_Found(digest, record.identity, record.created))
    outcomes: dict[str, list[Outcome]] = {}
    for outcome in store.outcomes():
        outcomes.setdefault(outcome.identity.base, []).append(outcome)
    for base in _newest_bases(folder):
        listing = Listing(folder.listing(base.base))
        found = by_base.get(base.base, [])
        rank = max((one.identity.spec.rank for one in found), default=8)
        publications.append(
            Publication(
                base=base,
                aliases=listing.aliases(),
                entries=_entries(base, listing, found, outcomes.get(base.base, [])),
                rank=rank,
                bad_rows=[row.as_row() for row in listing.bad_rows()],
            )
        )
    if not publications:
        raise AtlasError(f"{folder.root} holds no bases to rebuild from.", "Run `index build --base ID`.")
    publish(folder, publications, representations, afresh=True)
    return {
        "atlas": str(folder.root),
        "bases": [publication.base.base for publication in publications],
        "models": sum(len(publication.entries) for publication in publications),
        "records": sum(len(found) for found in by_base.values()),
        "damaged_records": damaged,
    }


def represent(folder: AtlasFolder, name: str) -> dict[str, Any]:
    """Publish another representation for every base, from the records. The caller holds the writer's lock."""
    chosen = representation_named(name)
    folder.require()
    with _reader(folder) as connection:
        current = _rows(
            connection,
            'SELECT base, "commit", rank FROM bases JOIN representations USING (base) '
            "WHERE representation = 'input' ORDER BY base",
        )
    publish(
        folder,
        [Publication(BaseMatrices(folder.base(row["base"], row["commit"])), (), (), row["rank"]) for row in current],
        [name],
    )
    with _reader(folder) as connection:
        rows = _rows(
            connection,
            "SELECT base, vectors, length, faiss_file FROM representations WHERE representation = ? ORDER BY base",
            (name,),
        )
    return {
        "representation": name,
        "version": chosen.version,
        "description": chosen.description,
        "published": rows,
    }


def _entries(base: BaseMatrices, listing: Listing, found: list[_Found], outcomes: list[Outcome]) -> list[Entry]:
    """For every listed model the record of its present commit, else the newest there is, else the outcome."""
    records: dict[str, list[_Found]] = {}
    for one in found:
        if one.identity.base_commit == base.commit:
            records.setdefault(one.identity.model, []).append(one)
    failures = {(outcome.identity.model, outcome.identity.commit): outcome for outcome in outcomes}
    entries = []
    for listed in listing.models():
        commit = commit_of(listed.row)
        candidates = records.get(listed.id, [])
        if candidates:
            best = max(candidates, key=lambda one: (one.identity.commit == commit, *one.worth))
            entries.append(Entry(listed, base.base, best.identity.commit, record_key=best.digest))
        else:
            entries.append(Entry(listed, base.base, commit, outcome=failures.get((listed.id, commit or ""))))
    return entries


def _newest_bases(folder: AtlasFolder) -> list[BaseMatrices]:
    newest = {base.base: base for base in reversed(stored_bases(folder))}
    return [newest[name] for name in sorted(newest)]


def _check_base(folder: AtlasFolder, base: str, commit: str) -> Iterator[Disagreement]:
    path = folder.base(base, commit)
    if not path.is_file():
        yield Disagreement("base", base, f"{path.name} is missing: run `index build --base {base}`")
        return
    try:
        BaseMatrices(path).layout  # noqa: B018 - opened for its checks
    except Exception as error:
        yield Disagreement("base", base, f"{path.name} cannot be read: {error}")


def _check_vectors(folder: AtlasFolder, row: dict[str, Any], expected: set[int]) -> Iterator[Disagreement]:
    file = VectorFile(row["faiss_file"], row["faiss_sha256"], row["faiss_bytes"], row["vectors"], row["length"])
    try:
        check_file(folder.root, file)
        ids = {int(model_id) for model_id in read_vectors(folder.root, file).ids}
    except AtlasError as error:
        yield Disagreement("vectors", file.name, error.message)
        return
    missing, extra = sorted(expected - ids), sorted(ids - expected)
    if missing:
        yield Disagreement("vectors", file.name, f"lacks {len(missing)} models (first id {missing[0]})")
    if extra:
        yield Disagreement("vectors", file.name, f"holds {len(extra)} models the database lacks (first id {extra[0]})")


def _published_names(folder: AtlasFolder) -> list[str]:
    try:
        with _reader(folder, OLDEST_READABLE) as connection:
            return [
                row["representation"]
                for row in _rows(connection, "SELECT DISTINCT representation FROM representations")
            ]
    except (AtlasError, OSError):
        return []


def _reader(folder: AtlasFolder, oldest: int = SCHEMA_VERSION) -> duckdb.DuckDBPyConnection:
    import duckdb

    try:
        connection = duckdb.connect(str(folder.database), read_only=True)
    except duckdb.Error as error:
        raise AtlasError(
            f"{folder.database} cannot be opened: {str(error).splitlines()[0]}", "Run `index rebuild`."
        ) from error
    check_schema(connection, folder.database, oldest)
    return connection


def _rows(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: tuple[Any, ...] = ()
) -> list[dict[str, Any]]:
    cursor = connection.execute(statement, list(parameters))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _size(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
