"""`index verify`: files that are missing or altered, rows without files, files without rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.database.connection import Connection
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase, base_in
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.profiles.store import ProfileStore
from indexer.publish.origin import fetched_again, read_origin
from indexer.publish.profile_tables import depth_vectors
from indexer.publish.staging import HINT, damage
from indexer.publish.stored_answers import ANSWERS, read_answers
from indexer.records.identity import Identity
from indexer.records.representation import REPRESENTATIONS
from indexer.records.store import RecordStore
from indexer.vectors.files import check_file
from indexer.vectors.masks import changed_blocks
from indexer.vectors.published import Published, read_centre, read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import OpenSegment, blocks

# The advice at the end of a message, after a colon, semicolon or full stop. It is for an atlas of one's own.
_ADVICE = re.compile(r"[:;.] [^:;.]*(?:index (?:rebuild|build|publish)|build\(|again: ).*\Z", re.DOTALL)

# Columns that refer to fine_tunes.model_id: (table, column).
_REFERENCES = (
    *(
        (table, "model_id")
        for table in ("records", "tags", "model_datasets", "evaluations", "deltas", "fused_matrices", "predictions")
    ),
    ("neighbours", "model_id"),
    ("neighbours", "neighbour_id"),
)
# Tables with a column ``base`` that refers to bases.base.
_OF_BASES = (
    "fine_tunes",
    "representations",
    "rejected_listing_rows",
    "internal.segments",
    "internal.removed_vectors",
    "internal.compressed_indexes",
)


@dataclass(frozen=True)
class Disagreement:
    """A problem of an atlas: its ``kind``, the file or model (``what``), and the ``problem`` as a sentence."""

    kind: str
    what: str
    problem: str

    def as_row(self) -> dict[str, str]:
        """The keys of the command's JSON."""
        return {"kind": self.kind, "what": self.what, "problem": self.problem}


def verify(folder: AtlasFolder, progress: Callable[[str], None] = lambda what: None) -> list[Disagreement]:
    """All problems: files that are missing or altered, rows without files, files without rows.

    If the database cannot be read the other files are still checked. In a pulled atlas, files that were not pulled are
    not missing, and damaged files have to be pulled again. Raises AtlasError if there is no atlas, or if it has
    another schema.
    """
    folder.require()
    origin = read_origin(folder)
    if not folder.origin.exists():
        return _all_of(folder, progress, has_records=True)
    with_records = origin.has_records if origin is not None else folder.records.is_dir()
    found = _all_of(folder, progress, has_records=with_records)
    if origin is None:
        found.insert(0, Disagreement("database", folder.origin.name, "cannot be read"))
    again = fetched_again(folder, origin, with_records=with_records)
    return [replace(one, problem=f"{_ADVICE.sub('', one.problem)}; run `{again}`") for one in found]


def _all_of(folder: AtlasFolder, progress: Callable[[str], None], *, has_records: bool) -> list[Disagreement]:
    """The same; without records, neither those nor bases and listings are checked, as they are pulled together."""
    progress("the database")
    problem = damage(folder)
    found = [] if problem is None else [Disagreement("database", folder.database.name, problem)]
    try:
        with Reading(folder.database) as connection:
            found += [Disagreement("database", what, why) for what, why in problems_of_tables(connection)]
            published = _Published.read(connection)
    except AtlasError as error:
        if problem is None:
            raise
        if not found:
            found.append(Disagreement("database", folder.database.name, damaged_in_words(error)))
        published = _Published((), (), (), frozenset())
        is_known = False
    else:
        is_known = True
    if has_records:
        for row in published.bases:
            progress(f"base {row['base']}")
            found.extend(_check_base(folder, row["base"], row["commit"]))
        found.extend(_check_other_bases(folder, published))
        found.extend(_check_records(folder, published, progress, is_known))
        found.extend(_check_listings(folder, published, is_known))
    else:
        found.extend(_check_all_vectors(folder, published, progress, None))
    found.extend(_check_answers(folder, published))
    return found


@dataclass(frozen=True)
class _Published:
    """The files that the database refers to, and what they should contain."""

    models: Sequence[dict[str, Any]]
    vectors: Sequence[Published]
    bases: Sequence[dict[str, Any]]
    copies: frozenset[int]
    profiles: frozenset[str] = frozenset()
    profiled: Mapping[str, set[int]] = field(default_factory=dict)
    off_centre: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Connection) -> _Published:
        bases = connection.rows('SELECT base, "commit" FROM bases ORDER BY base')
        depths = {row["base"]: depth_vectors(connection, row["base"]) for row in bases}
        vectors = [
            found_here
            for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL")
            if (found_here := read_published(connection, row["base"], row["representation"])) is not None
        ]
        return cls(
            models=connection.rows("SELECT model_id, model, base, record_key FROM fine_tunes ORDER BY model_id"),
            vectors=vectors,
            off_centre={(one.base, one.representation): _off_centre(one, connection) for one in vectors},
            bases=bases,
            profiles=frozenset(row["profile_key"] for row in connection.rows("SELECT profile_key FROM profiles")),
            profiled={
                base: {model_id for model_id, vector in of_base.items() if vector.any()}
                for base, of_base in depths.items()
            },
            copies=frozenset(row["model_id"] for row in connection.rows("SELECT model_id FROM records WHERE is_copy")),
        )


def _check_records(
    folder: AtlasFolder, published: _Published, progress: Callable[[str], None], is_known: bool
) -> Iterator[Disagreement]:
    """Every record and failure, then the vectors that should have been made from the records."""
    store = RecordStore(folder)
    without: dict[str, set[int]] = {one.representation: set() for one in published.vectors}
    named: set[str] = set()
    current: set[tuple[str, str]] = set()
    for row in published.models:
        if row["record_key"] is None:
            continue
        progress(f"record of {row['model']}")
        named.add(row["record_key"])
        try:
            record = store.read(row["record_key"])
        except AtlasError as error:
            yield Disagreement("record", row["model"], str(error))
            continue
        current.add((record.identity.model, record.identity.base))
        for name, models in without.items():
            if name in REPRESENTATIONS and not REPRESENTATIONS[name].is_held_by(record):
                models.add(row["model_id"])
        if (record.identity.model, record.identity.base, record.identity.digest) != (
            row["model"], row["base"], row["record_key"],
        ):  # fmt: skip
            yield Disagreement("record", row["model"], "its record belongs to a different model: run `index rebuild`")
    yield from _check_all_vectors(folder, published, progress, without)
    yield from _check_profiles(folder, published.profiles)
    yield from _check_unnamed(store, named, current, is_known)
    for digest in store.failure_digests():
        try:
            store.checked_failure(digest)
        except (OSError, AtlasError) as error:
            yield Disagreement("record", digest, str(error))


def _check_all_vectors(
    folder: AtlasFolder,
    published: _Published,
    progress: Callable[[str], None],
    without: Mapping[str, set[int]] | None,
) -> Iterator[Disagreement]:
    """``without``: for each representation, models whose records do not hold it; None if there are no records."""
    for one in published.vectors:
        progress(f"vectors of {one.base}, {one.representation}")
        rows = {row["model_id"] for row in published.models if row["base"] == one.base and row["record_key"]}
        allowed = rows - published.copies
        if one.representation in REPRESENTATIONS and REPRESENTATIONS[one.representation].of_profiles:
            allowed = needed = published.profiled.get(one.base, set())
        elif without is not None:
            allowed = needed = allowed - without[one.representation]
        else:
            needed = set()
        yield from _check_vectors(folder, one, needed, allowed, published.off_centre[one.base, one.representation])


def _check_unnamed(
    store: RecordStore, named: set[str], current: set[tuple[str, str]], is_known: bool
) -> Iterator[Disagreement]:
    """Records that no row names, except those replaced by a later commit of the same model."""
    for digest in store.digests():
        if digest in named:
            continue
        try:
            identity = store.read(digest).identity
        except AtlasError as error:
            yield Disagreement("record", digest, str(error))
            continue
        if is_known and (identity.model, identity.base) not in current and not _is_removed(store.folder, identity):
            yield Disagreement("record", digest, "is on disk but not in the database: run `index publish`")


def _is_removed(folder: AtlasFolder, identity: Identity) -> bool:
    """Whether the user removed the model and kept its record."""
    return identity.model in Listing(folder.listing(identity.base)).removed


def _check_profiles(folder: AtlasFolder, named: Collection[str]) -> Iterator[Disagreement]:
    """Check every profile against its checksum, and the files against the rows."""
    store = ProfileStore(folder)
    there = set(store.digests())
    for digest in sorted(set(named) - there):
        yield Disagreement("profile", digest, "is in the database and not on disk: run `index publish`")
    for digest in sorted(there):
        try:
            profile = store.read(digest)
        except AtlasError as error:
            yield Disagreement("profile", digest, error.message)
            continue
        if digest not in named:
            yield Disagreement(
                "profile", profile.identity.model, "its profile is not in the database: run `index publish`"
            )
        if profile.identity.digest != digest:
            yield Disagreement("profile", digest, "its file belongs to a different profile")


def _check_base(folder: AtlasFolder, base: str, commit: str) -> Iterator[Disagreement]:
    path = folder.base(base, commit)
    if not path.is_file():
        yield Disagreement("base", base, f"{path.name} is missing: run `index build --base {base}`")
        return
    yield from _check_base_file(path)
    try:
        stored = StoredBase(path)
        if (stored.base, stored.commit) != (base, commit):
            yield Disagreement("base", base, f"{path.name} holds {stored.base} at {stored.commit}")
    except AtlasError:
        return  # reported already


def _check_other_bases(folder: AtlasFolder, published: _Published) -> Iterator[Disagreement]:
    """Check files of earlier commits, and of bases that are not published."""
    named = {folder.base(row["base"], row["commit"]) for row in published.bases}
    for path in sorted(folder.bases.glob("[!.]*.safetensors")):
        if path not in named:
            yield from _check_base_file(path)


def _check_base_file(path: Path) -> Iterator[Disagreement]:
    stored = StoredBase(path)
    try:
        stored.check(afresh=True)
        stored.layout  # noqa: B018 - checked when it is read
        if not stored.has_checksum:
            _check_norms(path)
    except AtlasError as error:
        yield Disagreement("base", path.name, str(error))
    except Exception as error:
        yield Disagreement("base", path.name, f"cannot be read: {error}; run `index build --base {base_in(path)}`")


def _check_norms(path: Path) -> None:
    """Check every matrix of a base without a checksum against its stored norm. Raises ValueError."""
    import torch

    from indexer.deltas.base import BaseMatrices

    matrices = BaseMatrices(path, resident=False)
    try:
        for key, norm in matrices.norms.items():
            found = float(torch.linalg.vector_norm(matrices.matrix(key).float()))
            if not abs(found - norm) <= 1e-5 * norm:
                raise ValueError(f"{key} has norm {found:g} instead of {norm:g}")
    finally:
        matrices.close()


def _check_listings(folder: AtlasFolder, published: _Published, is_known: bool) -> Iterator[Disagreement]:
    """Check every line, that bases and listings match, and that every published model is listed."""
    bases = {folder.listing(row["base"]): row["base"] for row in published.bases}
    for path, base in bases.items():
        if not path.is_file():
            repair = f"run `index rebuild`, which uses all other sources, and then `index build --base {base}`"
            yield Disagreement("listing", base, f"its listing {path.name} is missing: {repair}")
    for path in sorted(folder.listings.glob("*.jsonl")):
        base = bases.get(path, path.stem.replace("--", "/", 1))
        repair = f"run `index rebuild`, which keeps what can be read, and then `index build --base {base}`"
        try:
            listing = Listing(path)
            problems = listing.problems()
            yield from (Disagreement("listing", path.name, f"{problem}; {repair}") for problem in problems)
            listed = {model.id for model in listing.models()}
        except AtlasError as error:
            yield Disagreement("listing", path.name, error.message)
            continue
        if path not in bases:
            if is_known:
                why = f"does not belong to a base of this atlas: run `index build --base {base}`, or remove it"
                yield Disagreement("listing", path.name, why)
            continue
        missing = [row["model"] for row in published.models if row["base"] == base and row["model"] not in listed]
        if missing:
            why = f"lacks {len(missing)} models that are published ({missing[0]} …)"
            yield Disagreement("listing", path.name, f"{why}; {repair}")


def _check_answers(folder: AtlasFolder, published: _Published) -> Iterator[Disagreement]:
    """Check every line of the files of stored answers."""
    bases = {folder.lineage(row["base"]).name: row["base"] for row in published.bases}
    for kind in ANSWERS:
        for path in sorted(kind.folder(folder).glob("*.jsonl")):
            base = bases.get(path.name, path.stem.replace("--", "/", 1))
            repair = f"run `{kind.command} --base {base}`, which writes it again, or remove it"
            problems = read_answers(kind, path)[1]
            yield from (Disagreement(kind.table, path.name, f"{problem}; {repair}") for problem in problems)


def _check_vectors(
    folder: AtlasFolder, published: Published, needed: set[int], allowed: set[int], off_centre: Sequence[str]
) -> Iterator[Disagreement]:
    """Check every file against its checksum and its rows, and which models have a vector."""
    damaged = False
    for file in published.files:
        try:
            check_file(folder.root, file, afresh=True)
        except AtlasError as error:
            damaged = True
            yield Disagreement("vectors", file.name, str(error))
    if damaged:
        return
    what = f"{published.base}, {published.representation}"
    try:
        index = published.opened(folder.root)
    except AtlasError as error:
        yield Disagreement("vectors", what, str(error))
        return
    found = index.ids
    yield from (Disagreement("centre", what, problem) for problem in off_centre)
    yield from (Disagreement("vectors", what, problem) for problem in _problems(published, index))
    ids = set(found.tolist())
    missing, extra = sorted(needed - ids), sorted(ids - allowed)
    if missing:
        yield Disagreement("vectors", what, f"lacks {len(missing)} models (first id {missing[0]})")
    if extra:
        yield Disagreement("vectors", what, f"holds {len(extra)} models the database lacks (first id {extra[0]})")
    if len(ids) < len(found):
        yield Disagreement("vectors", what, f"holds {len(found) - len(ids)} models more than once")


def _off_centre(published: Published, connection: Connection) -> tuple[str, ...]:
    try:
        return tuple(_centre_problems(published, connection))
    except AtlasError as error:
        return (str(error),)


def _centre_problems(published: Published, connection: Connection) -> Iterator[str]:
    """Whether all vectors were centred with the published centre."""
    versions = {one.centre for one in published.segments}
    if versions - {published.centre}:
        yield "holds vectors of several centres"
    if published.centre is None:
        return
    centre = read_centre(connection, published.base, published.representation)
    if centre is None:
        yield "names a centre that is missing"
        return
    if centre.version != published.centre:
        yield f"names the centre {published.centre}, but the stored one is {centre.version}"
    if any(one.blocks.size != published.length for one in centre.groups.values()):
        yield f"has vectors of {published.length} numbers, and a centre of another length"


def _problems(published: Published, index: VectorIndex) -> Iterator[str]:
    """Contradictions between the rows, or between rows and files."""
    if published.count != len(index):
        yield f"holds {len(index)} vectors; there should be {published.count}"
    for one in index.segments:
        if not np.isin(one.segment.removed, one.stored.ids).all():
            yield f"{one.segment.file.name} lacks vectors that are marked as removed from it"
        if index.masks.blocks and not _are_masks_right(one):
            yield f"{one.segment.file.name} holds models that changed other matrices than their masks say"
        if one.segment.in_compressed and index.compressed is None:
            yield f"{one.segment.file.name} is marked as being in a compressed index, but there is none"


def _are_masks_right(one: OpenSegment) -> bool:
    """Whether the blocks marked as changed are those that are not zero."""
    return all(
        np.array_equal(changed_blocks(block.matrix, one.masks.blocks), one.masks.rows(block.ids))
        for block in blocks([one.vectors()])
    )


def problems_of_tables(connection: Connection) -> Iterator[tuple[str, str]]:
    """Pairs (table or model, problem) of tables that are unreadable or contradict each other. Reads every value.

    Raises AtlasError if the catalogue itself is damaged.
    """
    tables = [
        name if schema == "main" else f"{schema}.{name}"
        for schema, name in connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = current_database() "
            "AND NOT internal ORDER BY ALL"
        ).fetchall()
    ]
    unreadable = set()
    for name in tables:
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in name.split(".", 1))
        try:
            # DuckDB reads only what a query uses: a hash of whole rows uses every value.
            connection.execute(f"SELECT bit_xor(hash(one)) FROM {quoted} AS one").fetchall()
        except AtlasError as error:
            unreadable.add(name)
            yield name, damaged_in_words(error)
    for model, base in connection.execute(
        "SELECT model, base FROM fine_tunes GROUP BY model, base HAVING count(*) > 1 ORDER BY ALL"
    ).fetchall():
        yield model, f"has several rows for {base}: {HINT}"
    for table, column, others, key in _checked(set(tables) - unreadable):
        ((count,),) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {others})"
        ).fetchall()
        if count:
            yield table, f"{count} rows name a {column} that {others} has not: {HINT}"


def _checked(tables: set[str]) -> Iterator[tuple[str, str, str, str]]:
    references = [(table, column, "fine_tunes", "model_id") for table, column in _REFERENCES]
    references += [(table, "base", "bases", "base") for table in _OF_BASES]
    return (one for one in references if {one[0], one[2]} <= tables)


def damaged_in_words(error: Exception) -> str:
    """DuckDB's error about a damaged file as one sentence, and how to repair it."""
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return f"is damaged: {first[:200]}; {HINT}"
