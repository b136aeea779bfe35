"""The one door to a DuckDB file: a connection that reaches this file and nothing else.

A macro in a file can shadow any function and a view any table, so nothing is asked of a file before it is locked, and
no name is looked up in it: it is attached to a database in memory, whose settings are made and locked first, and which
stays the default until the caller has looked at the file's catalog (:mod:`indexer.database.catalog`) and calls ``use``.
Attaching reads the catalog and runs nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import STORAGE_VERSION

if TYPE_CHECKING:
    import duckdb

# The name of an attached file, whatever its own is: one that is called system.duckdb must not be taken for the system.
NAME = "atlas"

# Publishes that may come between the first and the last look at a database that is being opened.
OPENINGS = 20

# In this order: each takes away what the one before could be undone with. Read-only and no external access alone
# leave the database's own files writable paths for COPY; without a local file system there are no paths at all.
_FIRST = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET secret_directory = ''",
    "SET allow_persistent_secrets = false",
    "SET TimeZone = 'UTC'",
)
_LAST = "SET lock_configuration = true"


def attached(path: Path, *, settings: Sequence[str] = (), milliseconds: int = 0) -> duckdb.DuckDBPyConnection:
    """A file attached read-only under NAME, all else locked away; ``settings``: statements to run before.

    ``milliseconds`` a statement may take, 0: any. Every connection is a database of its own, and shows what the file
    is now, whatever else this process has open. Raises duckdb.IOException where another process has the file open for
    writing, duckdb.Error where it is no database.
    """

    def attach() -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect(":memory:")
        try:
            _set(connection, ["SET temp_directory = ''", *settings])
            if milliseconds and _knows(connection, "max_execution_time"):
                connection.execute(f"SET max_execution_time = {int(milliseconds)}")
            _shut(connection, path.absolute())
            connection.execute(f"ATTACH {quoted(path.absolute())} AS {NAME} (READ_ONLY, TYPE duckdb)")
            _set(connection, ["SET disabled_filesystems = 'LocalFileSystem'", _LAST])
        except duckdb.Error:
            connection.close()
            raise
        return connection

    return _of_one_file(path, attach)


def attached_for_writing(
    path: Path, *, settings: Sequence[str] = (), beside: Mapping[str, Path] | None = None
) -> duckdb.DuckDBPyConnection:
    """A private file, made where there is none, attached under NAME to be changed; locked like one to be read.

    Only its own folder can be reached, for its log and for what is spilled. ``beside``: files of that folder to be
    attached read-only under other names. Raises duckdb.Error where one is no database.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        _set(connection, settings)
        _shut(connection, path.absolute())
        version = "" if path.exists() else f", STORAGE_VERSION '{STORAGE_VERSION}'"
        connection.execute(f"ATTACH {quoted(path.absolute())} AS {NAME} (TYPE duckdb{version})")
        for name, other in (beside or {}).items():
            connection.execute(f"ATTACH {quoted(other.absolute())} AS {name} (READ_ONLY, TYPE duckdb)")
        connection.execute(_LAST)
    except duckdb.Error:
        connection.close()
        raise
    return connection


def use(connection: duckdb.DuckDBPyConnection, *, before: str = "") -> None:
    """From now on names are looked up in the attached file, and in the catalog ``before`` it where one is named."""
    if before:
        connection.execute(f"SET search_path = '{before}.main,{NAME}.main'")
    else:
        connection.execute(f"USE {NAME}")


def quoted(text: str | Path) -> str:
    """As a literal of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def _shut(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    _set(
        connection,
        [*_FIRST, f"SET allowed_directories = [{quoted(path.parent)}]", "SET enable_external_access = false"],
    )


def _set(connection: duckdb.DuckDBPyConnection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _knows(connection: duckdb.DuckDBPyConnection, setting: str) -> bool:
    found = connection.execute("SELECT 1 FROM system.main.duckdb_settings() WHERE name = ?", [setting])
    return found.fetchone() is not None


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
