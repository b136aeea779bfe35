"""What has been fetched of an atlas is a stranger's until it was looked at; then it takes its place, all at once.

``atlas.duckdb`` is the one pointer, as in a publish: everything else is put in place before it. Killed at any point,
the folder holds no atlas yet, the one before, or the new one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from indexer.atlas import SCHEMA_VERSION, AtlasFolder, file_name
from indexer.database.connection import Connection
from indexer.database.reading import Reading
from indexer.errors import AtlasError
from indexer.names import is_hub_id, is_local_id
from indexer.publish.database_checksum import note_coming
from indexer.publish.origin import Origin, write_origin
from indexer.share.contents import CARRIED, PACKED, files_in, named_files
from indexer.share.manifest import ATLAS, NAME, RECORDS, Manifest
from indexer.share.staging import DATABASE
from indexer.storage.atomic_files import sync_folder
from indexer.untrusted import printable
from indexer.vectors.files import check_file
from indexer.vectors.published import read_published

# What each part of an atlas may hold; which of it belongs to this one, the database says.
_PLACES = {
    ATLAS: re.compile(r"atlas\.duckdb|[^/]+\.faiss|(?:lineage|predictions)/[^/]+"),
    RECORDS: re.compile(r"records/(?:packs\.json|[0-9a-f]{16}\.tar)|(?:listing|bases)/[^/]+"),
}
_ASK = "Ask whoever published it, or choose another tag."


@dataclass(frozen=True)
class Arrived:
    """What the database that arrived says of itself; ``files``: by path, every FAISS file that it names."""

    generation: int
    models: int
    bases: list[str]
    files: frozenset[str]

    def has(self, path: str) -> bool:
        """Whether the file at ``path`` belongs to it: packs aside, which are known by their index."""
        folder, _, name = path.rpartition("/")
        names = {file_name(base) for base in self.bases}
        if not folder:
            return path == DATABASE or path in self.files
        if folder == "bases":
            return name.endswith(".safetensors") and name.rpartition("@")[0] in names
        return folder in (*CARRIED, "listing") and name.endswith(".jsonl") and name.removesuffix(".jsonl") in names


def check_manifest(manifest: Manifest, where: str) -> None:
    """Asked before anything is fetched. Raises AtlasError where it is no atlas, or of another schema."""
    if manifest.schema != SCHEMA_VERSION:
        is_newer = manifest.schema > SCHEMA_VERSION
        raise AtlasError(
            f"{where} has schema {manifest.schema}; this version reads schema {SCHEMA_VERSION}.",
            "Upgrade vectors-in-the-wild." if is_newer else "Ask for a newer push, or choose another tag.",
        )
    for one in manifest.of(*_PLACES):
        if not _PLACES[one.part].fullmatch(one.path):
            raise AtlasError(f"{NAME} of {where} names {one.path}, which is no file of an atlas.", "Do not use it.")
    entry = manifest.file(DATABASE)
    if entry is None or entry.part != ATLAS:
        raise AtlasError(f"{where} is not whole: it lacks {DATABASE}.", _ASK)


@contextmanager
def of_a_pull(where: str) -> Iterator[None]:
    """Within the block an AtlasError gives advice that fits a pull: what arrived is what was published."""
    try:
        yield
    except AtlasError as error:
        raise AtlasError(f"{where} is refused: {error.message}", _ASK) from error


def check_database(staging: Path, manifest: Manifest, where: str) -> Arrived:
    """Look at the database in ``staging`` without running anything of it.

    It must be what schema.sql makes, name only files of the manifest, and hold ids that a listing could hold. Raises
    AtlasError.
    """
    with of_a_pull(where), Reading(staging / DATABASE) as connection:
        named = named_files(connection)
        for one in named:
            entry = manifest.file(one.path)
            if entry is None or entry.sha256 != one.sha256 or not one.path.endswith(".faiss"):
                raise AtlasError(f"its database names {printable(one.path, 100)}, which it does not hold.")
        _check_ids(connection)
        return Arrived(
            generation=connection.rows("SELECT max(generation) AS last FROM atlas_info")[0]["last"] or 0,
            models=connection.rows("SELECT count(*) AS models FROM models")[0]["models"],
            bases=[row["base"] for row in connection.rows("SELECT DISTINCT base FROM bases ORDER BY base")],
            files=frozenset(one.path for one in named),
        )


def _check_ids(connection: Connection) -> None:
    """Names reach people and agents: one that is a sentence would be read as one."""
    rows = connection.rows(
        "SELECT base AS id FROM bases UNION SELECT unnest(aliases) FROM bases UNION SELECT base FROM fine_tunes "
        "UNION SELECT model FROM fine_tunes"
    )
    for row in rows:
        if row["id"] is None or not (is_hub_id(row["id"]) or is_local_id(row["id"])):
            raise AtlasError(f"it holds {printable(str(row['id']), 60)!r}, which is no id on the Hub.")


def check_vectors(staging: Path, where: str) -> None:
    """Every FAISS file must be what the database says of it. Raises AtlasError."""
    with of_a_pull(where), Reading(staging / DATABASE) as connection:
        for row in connection.rows("SELECT base, representation FROM representations ORDER BY ALL"):
            published = read_published(connection, row["base"], row["representation"])
            for file in published.files if published is not None else ():
                check_file(staging, file)


def put_in_place(
    folder: AtlasFolder, staging: Path, paths: Collection[str], origin: Origin, *, with_records: bool
) -> None:
    """Move those of ``paths`` that lie in ``staging`` into the atlas, the database last. Raises OSError.

    Until all of them are there the origin says that records are missing. What this atlas does not hold goes: FAISS
    files that the database before does not name either, lineage, predictions, and ``with_records`` what a build would
    go on from. The caller holds the lock.
    """
    before = _names_before(folder)
    write_origin(folder, replace(origin, has_records=False))  # first of all: what is half there is nobody's to build on
    for path in paths:
        source, target = staging / path, folder.root / path
        if path != DATABASE and source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
    note_coming(folder, staging / DATABASE)
    folder.database.with_name(f"{DATABASE}.wal").unlink(missing_ok=True)  # it belonged to the one before
    (staging / DATABASE).replace(folder.database)
    sync_folder(folder.root)
    for old in folder.root.glob("*.faiss"):
        if old.name not in before and old.name not in paths:
            old.unlink(missing_ok=True)
    for path, source in files_in(folder, (*CARRIED, "listing", "bases", *PACKED) if with_records else CARRIED):
        if path not in paths:
            source.unlink(missing_ok=True)
    if origin.has_records:
        write_origin(folder, origin)


def _names_before(folder: AtlasFolder) -> set[str]:
    if not folder.database.is_file():
        return set()
    with suppress(AtlasError, OSError), Reading(folder.database) as connection:
        return {one.path for one in named_files(connection)}
    return set()
