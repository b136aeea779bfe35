"""A DuckDB connection that can read one database file and do nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.database.secure_connection import attached, use

if TYPE_CHECKING:
    import duckdb

MEMORY = "1GB"
THREADS = 2
SETTINGS = (f"SET memory_limit = '{MEMORY}'", f"SET threads = {THREADS}")


def connect_locked(path: Path, *, milliseconds: int = 0, stand_ins: Sequence[str] = ()) -> duckdb.DuckDBPyConnection:
    """Open a database read-only, without access to anything else.

    ``milliseconds``: time limit of a statement, 0 for none. ``stand_ins``: statements that replace definitions of the
    file by those of schema.sql (``Reading.stand_ins``). Raises duckdb.IOException if another process has the file open
    for writing, duckdb.Error if it is not a database.
    """
    connection = attached(path, settings=SETTINGS, milliseconds=milliseconds)
    try:
        use(connection)
        for statement in stand_ins:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection
