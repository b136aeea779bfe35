"""The staged copy of the database that a publish changes, how it replaces the original, and its checksum.

``atlas.duckdb`` is the one pointer to everything published: a copy is changed, synced and renamed over it. An atlas
whose publish is killed at any moment holds the state before or after it.

Two files cannot be renamed at once, so ``checksums.json`` is written before the rename and names the databases before
and after.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import SCHEMA_VERSION, AtlasFolder
from indexer.database import catalog
from indexer.database.reading import earlier_database, remember_published
from indexer.database.secure_connection import NAME, attached_for_writing, quoted, use
from indexer.publish.tables import Tables
from indexer.records.identity import canonical_json
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import copy_file, sync_file, sync_folder, write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed
from indexer.storage.checksums import file_sha256
from indexer.version import __version__

if TYPE_CHECKING:
    import duckdb


# A database larger than this is compacted once more than this share of it is free.
BLOATED_BYTES = 64 << 20
_BLOATED_SHARE = 0.5

# The smallest memory limit that DuckDB gets. Other data is spilled to disk, but blocks in use cannot be.
LEAST_MEMORY = 128 << 20

HINT = "run `index rebuild`, which rebuilds it from the listing and the records"

_MOST_CHECKSUM_BYTES = 1 << 20


@contextmanager
def staged_publish(folder: AtlasFolder, *, from_scratch: bool = False, memory: int | None = None) -> Iterator[Tables]:
    """A private copy of the database with an open transaction; a block without an error makes it the next generation.

    The copy is renamed over the original. ``from_scratch`` starts with an empty database instead; only the ids of the
    original are kept, if it can be read, and no id is ever given to another model. ``memory``: limit of DuckDB in
    bytes, at least ``LEAST_MEMORY``; the rest is spilled to disk. None: DuckDB's own limit.

    Raises AtlasError if the original is damaged, has another schema, or has objects that schema.sql does not make: a
    copy would keep them, and run them.
    """
    # Remove the files of a killed publish; the lock of the writer guarantees that they are not in use.
    for pattern in (".atlas.*.duckdb", ".atlas.*.duckdb.wal", ".*.tmp"):
        for path in folder.root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    copy = folder.root / f".atlas.{os.getpid()}.duckdb"
    spill = copy.with_name(f"{copy.name}.tmp")  # for data that does not fit into memory
    settings = [f"SET temp_directory = {quoted(spill)}"]
    if memory is not None:
        settings.append(f"SET memory_limit = '{max(memory, LEAST_MEMORY) >> 10}KiB'")
    # The FAISS files that the databases before and after name; None if they are unknown, so that all files stay.
    faiss_files = None if folder.database.exists() else frozenset[str]()
    kept_ids: dict[tuple[str, str], int] = {}
    next_id = 1
    try:
        if folder.database.exists():
            copy_file(folder.database, copy, through_links=True)
            if from_scratch:
                statements = ["SELECT model, base, model_id FROM fine_tunes", "SELECT next_model_id FROM atlas_info"]
                with earlier_database(copy) as earlier:  # the readable tables of a database of any schema
                    files = earlier(["representations"], ["SELECT faiss_file FROM representations"])
                    rows, info_rows = earlier(("fine_tunes", "atlas_info"), statements) or ([], [])
                faiss_files = (
                    None
                    if files is None
                    else frozenset(row["faiss_file"] for table_rows in files for row in table_rows)
                )
                kept_ids = {(row["model"], row["base"]): row["model_id"] for row in rows}
                next_id = max(
                    [1, *(row["next_model_id"] for row in info_rows), *(1 + kept_id for kept_id in kept_ids.values())]
                )
                copy.unlink()
        is_new = not copy.exists()
        if is_new:
            copy.write_bytes(catalog.empty_database())
        connection = attached_for_writing(copy, settings=settings)
        try:
            if is_new:
                use(connection)
                connection.execute("INSERT INTO atlas_info VALUES (?, 0, NULL, NULL, ?)", [SCHEMA_VERSION, next_id])
            else:
                catalog_report = catalog.examine(connection, folder.database)
                catalog.refuse(folder.database, catalog_report)
                use(connection)
                catalog.replace_differing(connection, catalog_report)
                faiss_files = _named_files(connection)
            connection.execute("BEGIN")
            yield Tables(connection, kept_ids)
            connection.execute(
                "UPDATE atlas_info SET generation = generation + 1, published = ?, tool_version = ?",
                [datetime.now(UTC), __version__],
            )
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")
            faiss_files = None if faiss_files is None else faiss_files | _named_files(connection)
            block_size, total, free = connection.execute(
                "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size() "
                "WHERE database_name = current_database()"
            ).fetchall()[0]
        finally:
            connection.close()
        if total * block_size > BLOATED_BYTES and free > _BLOATED_SHARE * total:
            _compact(copy, settings)
        _put_in_place(folder, copy)
    finally:
        # Remove unused FAISS files, also after a failure: on a full disk the next publish needs the space. Files of
        # the previous generation stay, because its readers may be opening them.
        for path in folder.root.glob("*.faiss") if faiss_files is not None else ():
            if path.name not in (faiss_files or ()):
                path.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
        copy.with_name(copy.name + ".wal").unlink(missing_ok=True)
        shutil.rmtree(spill, ignore_errors=True)


def _compact(database: Path, settings: Sequence[str]) -> None:
    """Write everything into a new file, including comments, views and macros."""
    fresh = database.with_name(f"{database.stem}.compact{database.suffix}")
    fresh.unlink(missing_ok=True)
    try:
        with attached_for_writing(fresh, settings=settings, others={"bloated": database}) as connection:
            connection.execute(f"COPY FROM DATABASE bloated TO {NAME}")
        fresh.replace(database)
    finally:
        fresh.unlink(missing_ok=True)


def _put_in_place(folder: AtlasFolder, copy: Path) -> None:
    with copy.open("rb") as file:
        sync_file(file.fileno())
    note_checksum(folder, copy)
    # A write-ahead log that another program left belongs to the original; no reader could open the copy with it.
    folder.database.with_name(folder.database.name + ".wal").unlink(missing_ok=True)
    copy.replace(folder.database)
    remember_published(folder.database)
    sync_folder(folder.root)


def _named_files(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The FAISS files that the staged database names."""
    names = connection.execute(f"SELECT DISTINCT faiss_file FROM {NAME}.representations").fetchall()
    return frozenset(name for (name,) in names)


def note_checksum(folder: AtlasFolder, next_database: Path) -> None:
    """Note the checksum of ``next_database``; that of the current one stays valid. Raises OSError."""
    paths = (
        [folder.database, next_database] if folder.database.is_file() and damage(folder) is None else [next_database]
    )
    rows = [{"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths]
    write_atomically(folder.checksums, add_checksum(canonical_json({"databases": rows})))


def damage(folder: AtlasFolder) -> str | None:
    """A sentence on the fault of the database file as a whole; None if it is intact, or was just pulled."""
    if not folder.checksums.is_file():
        return None
    noted: set[tuple[int, str]] = set()
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = read_regular(folder.checksums, most=_MOST_CHECKSUM_BYTES)
        for row in parse_checksummed(content)["databases"]:
            if type(row["bytes"]) is int and type(row["sha256"]) is str:
                noted.add((row["bytes"], row["sha256"]))
    if not noted:
        return f"{folder.checksums.name} is damaged: {HINT}"
    size = folder.database.stat().st_size
    if size not in {expected for expected, _ in noted}:
        sizes = " or ".join(str(expected) for expected, _ in sorted(noted))
        return f"is damaged, or was changed by another program: {size} bytes instead of {sizes}; {HINT}"
    if (size, file_sha256(folder.database)) not in noted:
        return f"is damaged, or was changed by another program: its checksum does not match; {HINT}"
    return None
