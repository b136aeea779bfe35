"""A DuckDB connection that can read one database file and do nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "1GB"

# In this order: each step takes away what the next could be undone with. `read_only` and external access alone
# leave the database's own files writable paths for COPY; without a local file system there are no paths at all.
_LOCKS = (
    "SET temp_directory = ''",
    f"SET memory_limit = '{MEMORY_LIMIT}'",
    "SET threads = 2",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET disabled_filesystems = 'LocalFileSystem'",
    "SET lock_configuration = true",
)


def connect_locked(path: Path) -> duckdb.DuckDBPyConnection:
    """Open a database read-only and lock everything else away.

    Raises duckdb.IOException where another process has the file open for writing, duckdb.Error where it is no
    database.
    """
    import duckdb

    connection = duckdb.connect(str(path), read_only=True)
    try:
        for lock in _LOCKS:
            connection.execute(lock)
    except duckdb.Error:
        connection.close()
        raise
    return connection
