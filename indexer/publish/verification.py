"""What disagrees in an atlas: files that are missing or altered, rows without files, files without rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.database import reader, rows_of
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.profiles.store import ProfileStore
from indexer.publish.profile_tables import depth_vectors
from indexer.publish.tables import Tables
from indexer.records.representation import REPRESENTATIONS
from indexer.records.store import RecordStore
from indexer.vectors.files import check_file
from indexer.vectors.published import Published, read_published
from indexer.vectors.search import VectorIndex


@dataclass(frozen=True)
class Disagreement:
    """Something that is not as the atlas says: ``kind`` groups, ``what`` names it, ``problem`` explains."""

    kind: str
    what: str
    problem: str

    def as_row(self) -> dict[str, str]:
        """The keys of the command's JSON."""
        return {"kind": self.kind, "what": self.what, "problem": self.problem}


def verify(folder: AtlasFolder, progress: Callable[[str], None] = lambda what: None) -> list[Disagreement]:
    """Everything that disagrees: files that are missing or altered, rows without files, files without rows."""
    folder.require()
    found: list[Disagreement] = []
    store = RecordStore(folder)
    with reader(folder) as connection:
        keys = rows_of(connection, "SELECT model_id, model, base, record_key FROM fine_tunes ORDER BY model_id")
        published = [
            found_here
            for row in rows_of(connection, "SELECT base, representation FROM representations ORDER BY ALL")
            if (found_here := read_published(connection, row["base"], row["representation"])) is not None
        ]
        bases = rows_of(connection, 'SELECT base, "commit" FROM bases ORDER BY base')
        profiles = {row["profile_key"] for row in rows_of(connection, "SELECT profile_key FROM profiles")}
        profiled = {
            row["base"]: {model_id for model_id, vector in depth_vectors(Tables(connection), row["base"]).items()
                          if vector.any()}
            for row in bases
        }  # fmt: skip
        zero = {row["model_id"] for row in rows_of(connection, "SELECT model_id FROM records WHERE is_copy")}
        doubled = rows_of(
            connection,
            "SELECT model, base FROM fine_tunes GROUP BY model, base HAVING count(*) > 1 ORDER BY ALL",
        )
    for row in doubled:
        found.append(Disagreement("database", row["model"], f"has several rows for {row['base']}"))
    for row in bases:
        progress(f"base {row['base']}")
        found.extend(_check_base(folder, row["base"], row["commit"]))
    named: set[str] = set()
    without: dict[str, set[int]] = {one.representation: set() for one in published}
    current: set[tuple[str, str]] = set()
    for row in keys:
        if row["record_key"] is None:
            continue
        progress(f"record of {row['model']}")
        named.add(row["record_key"])
        try:
            record = store.read(row["record_key"])
            current.add((record.identity.model, record.identity.base))
            for name, models in without.items():
                if name in REPRESENTATIONS and not REPRESENTATIONS[name].is_held_by(record):
                    models.add(row["model_id"])
            if (record.identity.model, record.identity.base) != (row["model"], row["base"]):
                found.append(Disagreement("record", row["model"], "its record is that of another model"))
        except AtlasError as error:
            found.append(Disagreement("record", row["model"], error.message))
    for one in published:
        progress(f"vectors of {one.base}, {one.representation}")
        if one.representation in REPRESENTATIONS and REPRESENTATIONS[one.representation].of_profiles:
            found.extend(_check_vectors(folder, one, profiled.get(one.base, set())))
            continue
        expected = {key["model_id"] for key in keys if key["base"] == one.base and key["record_key"]} - zero
        found.extend(_check_vectors(folder, one, expected - without[one.representation]))
    found.extend(_check_profiles(folder, profiles))
    for path in sorted(folder.listings.glob("*.jsonl")):
        try:
            for problem in Listing(path).problems():
                found.append(Disagreement("listing", path.name, problem))
        except AtlasError as error:
            found.append(Disagreement("listing", path.name, error.message))
    found.extend(
        Disagreement("record", digest, "is on disk but not in the database: run `index publish`")
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


def _check_profiles(folder: AtlasFolder, named: set[str]) -> Iterator[Disagreement]:
    """Every profile against its checksum, and the files against the rows."""
    store = ProfileStore(folder)
    there = set(store.digests())
    for digest in sorted(named - there):
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
            yield Disagreement("profile", digest, "its file is that of another profile")


def _check_base(folder: AtlasFolder, base: str, commit: str) -> Iterator[Disagreement]:
    path = folder.base(base, commit)
    if not path.is_file():
        yield Disagreement("base", base, f"{path.name} is missing: run `index build --base {base}`")
        return
    try:
        StoredBase(path).layout  # noqa: B018 - opened for its checks
    except Exception as error:
        yield Disagreement("base", base, f"{path.name} cannot be read: {error}")


def _check_vectors(folder: AtlasFolder, published: Published, expected: set[int]) -> Iterator[Disagreement]:
    """Every file against its checksum and its rows, and the models that have a vector against those that should."""
    damaged = False
    for file in published.files:
        try:
            check_file(folder.root, file, afresh=True)
        except AtlasError as error:
            damaged = True
            yield Disagreement("vectors", file.name, error.message)
    if damaged:
        return
    what = f"{published.base}, {published.representation}"
    try:
        index = published.opened(folder.root)
    except AtlasError as error:
        yield Disagreement("vectors", what, error.message)
        return
    found = index.ids
    yield from (Disagreement("vectors", what, problem) for problem in _problems(published, index))
    ids = set(found.tolist())
    missing, extra = sorted(expected - ids), sorted(ids - expected)
    if missing:
        yield Disagreement("vectors", what, f"lacks {len(missing)} models (first id {missing[0]})")
    if extra:
        yield Disagreement("vectors", what, f"holds {len(extra)} models the database lacks (first id {extra[0]})")
    if len(ids) < len(found):
        yield Disagreement("vectors", what, f"holds {len(found) - len(ids)} models more than once")


def _problems(published: Published, index: VectorIndex) -> Iterator[str]:
    """Where the rows contradict each other or the files."""
    if published.count != len(index):
        yield f"holds {len(index)} vectors; there should be {published.count}"
    for one in index.segments:
        if not np.isin(one.segment.removed, one.stored.ids).all():
            yield f"{one.segment.file.name} does not hold all that was removed from it"
        if one.segment.in_compressed and index.compressed is None:
            yield f"{one.segment.file.name} is said to be in a compressed index, and there is no compressed index"
