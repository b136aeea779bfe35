"""A DuckDB connection that can read one database file and do nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
THREADS = 2

# Publishes that may come between the first and the last look at a database that is being opened.
OPENINGS = 20

# In this order: each takes away what the one before could be undone with. Read-only and no external access alone
# leave the database's own files writable paths for COPY; without a local file system there are no paths at all.
_LOCKS = (
    f"SET memory_limit = '{MEMORY}'",
    f"SET threads = {THREADS}",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET temp_directory = ''",
    "SET secret_directory = ''",
    "SET allow_persistent_secrets = false",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)
_one_at_a_time = threading.Lock()


def connect_locked(path: Path, *, milliseconds: int = 0) -> duckdb.DuckDBPyConnection:
    """Open a database read-only and lock everything else away; ``milliseconds`` a statement may take, 0: any.

    Connections of one process to one file share their settings: the first locks them for all. Raises
    duckdb.IOException where another process has the file open for writing, duckdb.Error where it is no database.
    """
    import duckdb

    with _one_at_a_time:
        # Settings come after: a connection made with some would shut out the plain ones of this process.
        connection = _of_one_file(path, lambda: duckdb.connect(str(path), read_only=True))
        _lock(connection, milliseconds)
    return connection


def connect_apart(path: Path) -> duckdb.DuckDBPyConnection:
    """The same for a long-lived reader: what the file is now, whatever else this process has open.

    DuckDB gives one path one database within a process, so that a plain connection would show what was published
    when the first of them was opened. Raises as ``connect_locked`` does.
    """
    connection = _of_one_file(path, lambda: _attached(path))
    _lock(connection, 0)
    return connection


def _attached(path: Path) -> duckdb.DuckDBPyConnection:
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        connection.execute(f"ATTACH '{str(path).replace(chr(39), 2 * chr(39))}' AS atlas (READ_ONLY)")
        connection.execute("USE atlas")
    except duckdb.Error:
        connection.close()
        raise
    return connection


def _of_one_file(path: Path, connect: Callable[[], duckdb.DuckDBPyConnection]) -> duckdb.DuckDBPyConnection:
    """A connection during whose opening no publish put another file in place.

    DuckDB opens a path more than once: it would read blocks of the new file where the old one's header says.
    """
    import duckdb

    for _ in range(OPENINGS):
        before = _inode(path)
        try:
            connection = connect()
        except duckdb.Error:
            if _inode(path) == before:
                raise
            continue
        if _inode(path) == before:
            return connection
        connection.close()
    return connect()


def _inode(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _lock(connection: duckdb.DuckDBPyConnection, milliseconds: int) -> None:
    """Once for all connections of one database. The connection is closed where that fails."""
    import duckdb

    try:
        locked = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
        if locked != (True,):
            if milliseconds and _knows(connection, "max_execution_time"):
                connection.execute(f"SET max_execution_time = {int(milliseconds)}")
            for lock in _LOCKS:
                connection.execute(lock)
    except duckdb.Error:
        connection.close()
        raise


def _knows(connection: duckdb.DuckDBPyConnection, setting: str) -> bool:
    found = connection.execute("SELECT 1 FROM duckdb_settings() WHERE name = ?", [setting])
    return found.fetchone() is not None
