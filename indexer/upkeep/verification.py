"""`index verify`: files that are missing or altered, rows without files, files without rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.database.connection import Connection
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase, base_in
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.listing.exchange import read_exported
from indexer.listing.listing import Listing
from indexer.profiles.store import ProfileStore
from indexer.publish.origin import fetched_again, read_origin
from indexer.publish.staging import HINT, damage
from indexer.publish.stored_answers import ANSWERS, read_answers
from indexer.records.representations.registry import REPRESENTATIONS
from indexer.records.store import RecordStore
from indexer.storage.small_database import DamagedDatabase
from indexer.untrusted import printable
from indexer.vectors.files import check_file
from indexer.vectors.masks import changed_blocks
from indexer.vectors.published import Published, read_centre, read_published
from indexer.vectors.stored import blocks

# The advice at the end of a message, after a colon, semicolon or full stop. It does not apply to a pulled atlas.
_ADVICE = re.compile(r"[:;.] [^:;.]*(?:index (?:rebuild|build|publish)|build\(|again: ).*\Z", re.DOTALL)

# Columns that refer to a row of another table: (table, column, other table, its column).
_OF_MODELS = (
    "records", "tags", "model_datasets", "evaluations", "deltas", "fused_matrices", "predictions",
    "conversions", "neighbours",
)  # fmt: skip
_OF_BASES = ("fine_tunes", "representations", "rejected_listing_rows")
_REFERENCES = (
    *((table, "model_id", "fine_tunes", "model_id") for table in _OF_MODELS),
    ("neighbours", "neighbour_id", "fine_tunes", "model_id"),
    *((table, "base", "bases", "base") for table in _OF_BASES),
)
# What holds in every row of a table that a publish wrote, beyond the types of its columns.
_VALUES = (
    ("bases", "len(deltas) > 0 AND json_type(config) = 'OBJECT'"),
    ("internal.vector_masks", "len(model_ids) = list_count(model_ids)"),
    ("neighbours", "rank > 0 AND abs(similarity) < 1.001"),
    ("null_similarity", "pairs > 0 AND abs(similarity) < 1.001 AND share BETWEEN 0 AND 1 "
                        "AND coalesce(share_high, 1) BETWEEN 0 AND 1"),
)  # fmt: skip


@dataclass(frozen=True)
class Disagreement:
    """A problem of an atlas: its ``kind``, the file or model (``what``), and the ``problem`` as a sentence."""

    kind: str
    what: str
    problem: str


def verify(folder: AtlasFolder) -> list[Disagreement]:
    """All problems: files that are missing or altered, rows without files, files without rows.

    If the database cannot be read, the other files are still checked. In a pulled atlas, files that were not pulled do
    not count as missing, and damaged files have to be pulled again. Raises AtlasError if there is no atlas or if it
    has another schema.
    """
    folder.require()
    verifier = _Verifier(folder)
    if not folder.origin.exists():
        verifier.run(has_records=True)
        return verifier.problems
    origin = read_origin(folder)
    with_records = origin.has_records if origin is not None else folder.records.is_dir()
    if origin is None:
        verifier.report("database", folder.origin.name, "cannot be read")
    verifier.run(with_records)
    again = fetched_again(folder, origin, with_records=with_records)
    return [
        replace(problem, problem=f"{_ADVICE.sub('', problem.problem)}; run `{again}`") for problem in verifier.problems
    ]


def not_valid(error: Exception) -> str:
    """The problem of a database whose values end a check with ``error``, one of WRONG_KINDS."""
    why = " ".join(str(error).split())[:120]
    return f"contains values that no publish writes ({type(error).__name__}: {why}): {HINT}"


class _Verifier:
    """Collects the problems of one atlas in ``problems``."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.folder = folder
        self.problems: list[Disagreement] = []
        # What the database names; nothing, and not ``is_known``, if it cannot be read.
        self.is_known = False
        self.models: list[dict[str, Any]] = []
        self.bases: list[dict[str, Any]] = []
        self.vectors: list[tuple[Published, list[str]]] = []  # with the problems of their centre
        self.copies: set[int] = set()
        self.profiles: set[str] = set()
        # The models with a vector that is not made from their record, by base and representation.
        self.of_tables: dict[tuple[str, str], set[int]] = {}

    def report(self, kind: str, what: str, problem: str) -> None:
        """Add a problem."""
        self.problems.append(Disagreement(kind, what, problem))

    def run(self, has_records: bool) -> None:
        """Check everything. Records, bases and listings are pulled together: without records there are none.

        A check that the values of the database end is itself a problem of the atlas.
        """
        try:
            self._check(has_records)
        except WRONG_KINDS as error:
            self.report("database", self.folder.database.name, not_valid(error))

    def _check(self, has_records: bool) -> None:
        self._check_database()
        if has_records:
            self._check_bases()
            self._check_vectors(self._check_records())
            self._check_profiles()
            self._check_listings()
        else:
            self._check_vectors(None)
        for kind in ANSWERS:
            files = [*self._listings(), *sorted((self.folder.root / kind.table).glob("*.jsonl"))]
            for base in dict.fromkeys(self._base_of(path) for path in files):
                repair = f"run `{kind.command} --base {base}`, which computes them again"
                for problem in read_answers(kind, self.folder, base)[1]:
                    self.report(kind.table, base, f"a stored answer: {problem}; {repair}")

    def _check_database(self) -> None:
        problem = damage(self.folder)
        if problem is not None:
            self.report("database", self.folder.database.name, problem)
        try:
            with Reading(self.folder.database) as connection:
                for what, why in _problems_of_tables(connection):
                    self.report("database", what, why)
                bases = connection.rows('SELECT base, "commit", words FROM bases ORDER BY base')
                for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
                    try:
                        published = read_published(connection, row["base"], row["representation"])
                    except AtlasError as error:
                        self.report("vectors", f"{row['base']}, {row['representation']}", error.text)
                        continue
                    representation = REPRESENTATIONS.get(row["representation"])
                    if representation is not None and representation.from_tables:
                        vectors = representation.of_models(connection, row["base"])
                        self.of_tables[row["base"], representation.name] = {
                            model_id for model_id, vector in vectors.items() if vector.any()
                        }
                    if published is not None:
                        self.vectors.append((published, _problems_of_centre(published, connection)))
                self.profiles = {row["profile_key"] for row in connection.rows("SELECT profile_key FROM profiles")}
                self.copies = {row["model_id"] for row in connection.rows("SELECT model_id FROM records WHERE is_copy")}
                self.models = connection.rows(
                    "SELECT model_id, model, base, record_key FROM fine_tunes ORDER BY model_id"
                )
                self.bases = bases
        except AtlasError:
            if problem is None:
                raise
            self.vectors = []
        else:
            self.is_known = True

    def _check_bases(self) -> None:
        """Check the files of bases, including earlier commits and bases that are not published."""
        published = {self.folder.base(row["base"], row["commit"]): row for row in self.bases}
        for path, row in published.items():
            if not path.is_file():
                self.report("base", row["base"], f"{path.name} is missing: run `index build --base {row['base']}`")
        for path in sorted({*published, *self.folder.bases.glob("[!.]*.safetensors")}):
            if path in published and not path.is_file():
                continue  # reported above
            stored = StoredBase(path)
            try:
                stored.check(recheck=True)
                stored.layout  # noqa: B018 - checked when it is read
            except AtlasError as error:
                self.report("base", path.name, error.text)
                continue
            except Exception as error:
                self.report("base", path.name, f"cannot be read: {error}; run `index build --base {base_in(path)}`")
                continue
            base_row = published.get(path)
            if base_row is not None and (stored.base, stored.commit) != (base_row["base"], base_row["commit"]):
                self.report("base", base_row["base"], f"{path.name} holds {stored.base} at {stored.commit}")

    def _check_records(self) -> Mapping[str, set[int]]:
        """Check every record and failure. Returns the models whose records do not hold each representation."""
        store = RecordStore(self.folder)
        without: dict[str, set[int]] = {published.representation: set() for published, _ in self.vectors}
        record_keys: set[str] = set()
        current: set[tuple[str, str]] = set()
        words = {row["base"]: row["words"] or () for row in self.bases}
        for row in self.models:
            if row["record_key"] is None:
                continue
            record_keys.add(row["record_key"])
            try:
                record = store.read(row["record_key"])
            except AtlasError as error:
                self.report("record", row["model"], error.text)
                continue
            identity = record.identity
            current.add((identity.model, identity.base))
            for name, models in without.items():
                if name in REPRESENTATIONS:
                    representation = REPRESENTATIONS[name].with_words(words.get(row["base"], ()))
                    if not representation.is_held_by(record):
                        models.add(row["model_id"])
            if (identity.model, identity.base, identity.digest) != (row["model"], row["base"], row["record_key"]):
                self.report("record", row["model"], "its record belongs to a different model: run `index rebuild`")
        # Records that no row names, except those replaced by a later one, or of models that were removed or renamed.
        for digest in store.digests():
            if digest in record_keys:
                continue
            try:
                identity = store.read(digest).identity
            except AtlasError as error:
                self.report("record", digest, error.text)
                continue
            is_missing = self.is_known and (identity.model, identity.base) not in current
            if is_missing and identity.model not in self._withdrawn(identity.base):
                self.report("record", digest, "is on disk but not in the database: run `index publish`")
        for digest in store.failure_digests():
            try:
                store.checked_failure(digest)
            except (OSError, AtlasError) as error:
                self.report("record", digest, error.text if isinstance(error, AtlasError) else str(error))
        return without

    def _check_vectors(self, without: Mapping[str, set[int]] | None) -> None:
        """Check every file, and which models have a vector. ``without``: see _check_records; None without records."""
        for published, centre_problems in self.vectors:
            subject = f"{published.base}, {published.representation}"
            try:
                check_file(self.folder.root, published.file, recheck=True)
            except AtlasError as error:
                self.report("vectors", published.file.name, error.text)
                continue
            try:
                index = published.opened(self.folder.root)
            except AtlasError as error:
                self.report("vectors", subject, error.text)
                continue
            for problem in centre_problems:
                self.report("centre", subject, problem)
            if index.masks.blocks and not all(
                np.array_equal(changed_blocks(block.matrix, index.masks.blocks), index.masks.rows(block.ids))
                for block in blocks(index.opened.vectors)
            ):
                why = f"{published.file.name} holds models whose changed matrices are not those in their masks"
                self.report("vectors", subject, why)
            rows = {row["model_id"] for row in self.models if row["base"] == published.base and row["record_key"]}
            possible_ids, required = rows - self.copies, set[int]()
            if (published.base, published.representation) in self.of_tables:
                possible_ids = required = self.of_tables[published.base, published.representation]
            elif without is not None:
                possible_ids = required = possible_ids - without[published.representation]
            ids = set(index.ids.tolist())
            for differing, why in (
                (required - ids, "lacks {} models"),
                (ids - possible_ids, "holds {} models the database lacks"),
            ):
                if differing:
                    self.report("vectors", subject, f"{why.format(len(differing))} (first id {min(differing)})")

    def _check_profiles(self) -> None:
        """Check every profile against its checksum, and the files against the rows."""
        store = ProfileStore(self.folder)
        stored = set(store.digests())
        for digest in sorted(self.profiles - stored):
            self.report("profile", digest, "is in the database and not on disk: run `index publish`")
        for digest in sorted(stored):
            try:
                identity = store.read(digest).identity
            except AtlasError as error:
                self.report("profile", digest, error.message)
                continue
            if digest not in self.profiles:
                self.report("profile", identity.model, "its profile is not in the database: run `index publish`")
            if identity.digest != digest:
                self.report("profile", digest, "its file belongs to a different profile")

    def _check_listings(self) -> None:
        """Check every line, that bases and listings match, and that every published model is listed."""
        of_base = {row["base"]: self._listing_of(row["base"]) for row in self.bases}
        bases = {path: base for base, path in of_base.items()}
        for path, base in bases.items():
            if not path.is_file():
                repair = f"run `index rebuild`, which uses all other sources, and then `index build --base {base}`"
                self.report("listing", base, f"its listing {path.name} is missing: {repair}")
        for path in self._listings():
            base = self._base_of(path)
            repair = f"run `index rebuild`, which keeps what can be read, and then `index build --base {base}`"
            try:
                listing = Listing(self.folder.listing(base))
                lines, problems = ([], listing.problems()) if path == listing.path else read_exported(path)
                for problem in problems:
                    self.report("listing", path.name, f"{problem}; {repair}")
                names = {line["id"] for line in lines if line["kind"] == "model"}
                listed = names or {model.id for model in listing.models()}
            except DamagedDatabase:
                continue
            except AtlasError as error:
                self.report("listing", path.name, error.message)
                continue
            if path not in bases:
                if self.is_known:
                    why = f"does not belong to a base of this atlas: run `index build --base {base}`, or remove it"
                    self.report("listing", path.name, why)
                continue
            begun = listing.removals.keys() | {
                row["model"] for row in self.models if row["base"] == base and row["model"] in listing.removed
            }
            for model in sorted(begun):
                why = "its removal was interrupted: run `index remove` again, which finishes it, or any `index build`"
                self.report("listing", model, why)
            missing = [
                row["model"]
                for row in self.models
                if row["base"] == base and row["model"] not in listed and row["model"] not in begun
            ]
            if missing:
                why = f"lacks {len(missing)} models that are published ({missing[0]} …)"
                self.report("listing", path.name, f"{why}; {repair}")

    @cache  # noqa: B019 - it lives as long as one check
    def _withdrawn(self, base: str) -> frozenset[str]:
        """Models that the user removed, and former names."""
        listing = Listing(self.folder.listing(base))
        if listing.problems():
            return frozenset()
        return listing.removed | listing.renamed.keys()

    def _base_of(self, path: Path) -> str:
        """The base that a file of listings or answers belongs to."""
        names = {self.folder.listing(row["base"]).stem: str(row["base"]) for row in self.bases}
        return names.get(path.stem, path.stem.replace("--", "/", 1))

    def _listing_of(self, base: str) -> Path:
        """The file of a base's listing: its database or, in an atlas that was pulled, JSON lines."""
        listing, exported = self.folder.listing(base), self.folder.exported("listing", base)
        return exported if exported.exists() and not listing.exists() else listing

    def _listings(self) -> list[Path]:
        """The files of all listings, also of bases that are not published."""
        databases = {path.stem: path for path in self.folder.listings.glob("*.sqlite")}
        return sorted({**{path.stem: path for path in self.folder.listings.glob("*.jsonl")}, **databases}.values())


def _problems_of_centre(published: Published, connection: Connection) -> list[str]:
    """Whether the centre that the vectors name is the published one."""
    if published.centre is None:
        return []
    try:
        centre = read_centre(connection, published.base, published.representation)
    except AtlasError as error:
        return [error.text]
    if centre is None:
        return ["names a centre that is missing"]
    problems = []
    if centre.version != published.centre:
        problems.append(f"names the centre {published.centre}, but the stored one is {centre.version}")
    if any(group.blocks.size != published.length for group in centre.groups.values()):
        problems.append(f"has vectors of {published.length} numbers, and a centre of another length")
    return problems


def _problems_of_tables(connection: Connection) -> Iterator[tuple[str, str]]:
    """Pairs (table or model, problem) of tables that are unreadable or contradict each other. Reads every value.

    Raises AtlasError if the catalogue itself is damaged.
    """
    readable = set()
    for schema, table in connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = current_database() "
        "AND NOT internal ORDER BY ALL"
    ).fetchall():
        name = table if schema == "main" else f"{schema}.{table}"
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in name.split(".", 1))
        try:
            # DuckDB reads only what a query uses: a hash of whole rows uses every value.
            connection.execute(f"SELECT bit_xor(hash(one)) FROM {quoted} AS one").fetchall()
            readable.add(name)
        except AtlasError as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            yield name, f"is damaged: {first[:200]}; {HINT}"
    for model, base in connection.execute(
        "SELECT model, base FROM fine_tunes GROUP BY model, base HAVING count(*) > 1 ORDER BY ALL"
    ).fetchall():
        yield model, f"has several rows for {base}: {HINT}"
    for table, column, referenced, key in _REFERENCES:
        if {table, referenced} <= readable:
            ((count,),) = connection.execute(
                f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {referenced})"
            ).fetchall()
            if count:
                yield table, f"{count} rows contain a {column} that is not in {referenced}: {HINT}"
    for table, condition in _VALUES:
        if table in readable:
            ((count,),) = connection.execute(f"SELECT count(*) FROM {table} WHERE ({condition}) IS NOT TRUE").fetchall()
            if count:
                yield table, f"{count} rows contain values that no publish writes: {HINT}"


def contradiction_in(connection: Connection) -> str | None:
    """The first problem of the rows of a database among themselves, as a clause without advice; None if there is none.

    For example several rows of one model, a neighbour that no table lists, a share above one.
    """
    for what, problem in _problems_of_tables(connection):
        return f"{printable(what, 100)} {_ADVICE.sub('', problem)}"
    return None
