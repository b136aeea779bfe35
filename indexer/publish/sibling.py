"""The private copy of the database that a publish works on, and how it takes the original's place.

``atlas.duckdb`` is the one pointer: a copy is changed, synced, and renamed over it. Killed at any point, the atlas
holds the state before or after.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import SCHEMA_VERSION, AtlasFolder, schema_sql
from indexer.database import catalog
from indexer.database.door import NAME, attached_for_writing, quoted, use
from indexer.database.reading import earlier_rows
from indexer.publish.database_checksum import note_coming
from indexer.regular_files import open_regular

if TYPE_CHECKING:
    import duckdb


# A database larger than this is written anew once more than this share of it is free.
BLOATED_BYTES = 64 << 20
BLOATED_SHARE = 0.5

# The least that the database is held to, however little memory there is to share: what does not fit is spilled to the
# disk, but blocks in use cannot be.
LEAST_MEMORY = 128 << 20

# Tables that name files of vectors.
_NAMING = ("internal.segments", "internal.compressed_indexes")

# _IOW(0x94, 9, int): "this file is to have that one's content".
FICLONE = 0x40049409


@dataclass(frozen=True)
class Sibling:
    """The copy that a publish works on. ``kept_ids``: of an original that is made afresh, by model and base."""

    connection: duckdb.DuckDBPyConnection
    kept_ids: dict[tuple[str, str], int]


@contextmanager
def private_copy(folder: AtlasFolder, afresh: bool, memory: int | None = None) -> Iterator[Sibling]:
    """A private copy of the database; renamed over the original when the block ends without an error.

    ``afresh``: an empty one instead; of the original only the ids are kept, where it can be read, and ids that were
    given once are given to no other model. ``memory``: bytes that the database may hold, at least ``LEAST_MEMORY``;
    what is more is spilled beside it. None: DuckDB's own limit.

    Raises AtlasError where the original is damaged, of another schema, or holds what schema.sql does not make: a copy
    of it would keep that, and run it.
    """
    copy = folder.root / f".atlas.{os.getpid()}.duckdb"
    _remove_leftovers(folder)
    named = None if folder.database.exists() else frozenset[str]()
    kept_ids: dict[tuple[str, str], int] = {}
    next_id = 1
    try:
        if folder.database.exists():
            _copy(folder.database, copy)
            if afresh:
                named = _named_before(copy)
                kept_ids, next_id = _ids_in(copy)
                copy.unlink()
        is_new = not copy.exists()
        limits = _limits(copy, memory)
        connection = attached_for_writing(copy, settings=limits)
        try:
            if is_new:
                use(connection)
                connection.execute(schema_sql())
                connection.execute("INSERT INTO atlas_info VALUES (?, 0, NULL, NULL, ?)", [SCHEMA_VERSION, next_id])
            else:
                _use_verified(connection, folder.database)
                named = _named_files(connection)
            yield Sibling(connection, kept_ids)
            named = None if named is None else named | _named_files(connection)
            is_bloated = _is_bloated(connection)
        finally:
            connection.close()
        if is_bloated:
            _compact(copy, limits)
        _put_in_place(folder, copy)
    finally:
        _collect(folder, named)  # after a failure, too: on a full disk the next publish needs the room
        copy.unlink(missing_ok=True)
        copy.with_name(copy.name + ".wal").unlink(missing_ok=True)
        shutil.rmtree(_spill(copy), ignore_errors=True)


def _use_verified(connection: duckdb.DuckDBPyConnection, original: Path) -> None:
    """Use a copy that is what schema.sql makes; views and macros that a stranger may have written become our own."""
    found = catalog.examine(connection, original)
    catalog.refuse(original, found)
    use(connection)
    catalog.replace_others(connection, found)


def _limits(copy: Path, memory: int | None) -> list[str]:
    spilled = f"SET temp_directory = {quoted(_spill(copy))}"
    return [spilled] if memory is None else [spilled, f"SET memory_limit = '{max(memory, LEAST_MEMORY) >> 10}KiB'"]


def _spill(copy: Path) -> Path:
    """The folder for what the database cannot hold in memory; DuckDB makes it when it is needed."""
    return copy.with_name(f"{copy.name}.tmp")


def _copy(source: Path, target: Path) -> None:
    """Share the blocks where the file system can (Linux: FICLONE), else copy them: a large database is not free."""
    import fcntl

    with open_regular(source, through_links=True) as original, target.open("wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, original.fileno())
            return
        except OSError:
            pass
    shutil.copyfile(source, target)


def _is_bloated(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether most of a large file is room that deleted rows left."""
    block_size, total, free = connection.execute(
        "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size() "
        "WHERE database_name = current_database()"
    ).fetchall()[0]
    return total * block_size > BLOATED_BYTES and free > BLOATED_SHARE * total


def _compact(database: Path, limits: Sequence[str]) -> None:
    """Write everything into a new file, comments, views and macros included."""
    fresh = database.with_name(f"{database.stem}.compact{database.suffix}")
    fresh.unlink(missing_ok=True)
    try:
        with attached_for_writing(fresh, settings=limits, beside={"bloated": database}) as connection:
            connection.execute(f"COPY FROM DATABASE bloated TO {NAME}")
        fresh.replace(database)
    finally:
        fresh.unlink(missing_ok=True)


def _put_in_place(folder: AtlasFolder, copy: Path) -> None:
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    note_coming(folder, copy)
    # Changes that another program left beside the original belong to it; beside the copy no reader could open either.
    folder.database.with_name(folder.database.name + ".wal").unlink(missing_ok=True)
    copy.replace(folder.database)
    handle = os.open(folder.root, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _collect(folder: AtlasFolder, named: frozenset[str] | None) -> None:
    """Remove FAISS files that are not ``named``; all stay where the names are not known (None).

    After a publish those of the last generation are named, too: its readers may be opening them.
    """
    if named is None:
        return
    for path in folder.root.glob("*.faiss"):
        if path.name not in named:
            path.unlink(missing_ok=True)


def _named_files(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """FAISS files that the private copy names."""
    names = [f"SELECT faiss_file FROM {NAME}.{table}" for table in _NAMING]
    return frozenset(name for (name,) in connection.execute(" UNION ".join(names)).fetchall())


def _named_before(database: Path) -> frozenset[str] | None:
    """Those that a private copy of any schema names; None where it cannot be read."""
    found = earlier_rows(database, _NAMING, [f"SELECT faiss_file FROM {table}" for table in _NAMING])
    return None if found is None else frozenset(row["faiss_file"] for rows in found for row in rows)


def _ids_in(database: Path) -> tuple[dict[tuple[str, str], int], int]:
    """The ids by model and base in a private copy, and the first that was never given."""
    statements = ["SELECT model, base, model_id FROM fine_tunes", "SELECT next_model_id FROM atlas_info"]
    rows, given = earlier_rows(database, ("fine_tunes", "atlas_info"), statements) or ([], [])
    ids = {(row["model"], row["base"]): row["model_id"] for row in rows}
    return ids, max([1, *(row["next_model_id"] for row in given), *(1 + model_id for model_id in ids.values())])


def _remove_leftovers(folder: AtlasFolder) -> None:
    """What a killed publish left; the writer's lock says that nobody is at work on it."""
    for pattern in (".atlas.*.duckdb", ".atlas.*.duckdb.wal", ".*.tmp"):
        for path in folder.root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
