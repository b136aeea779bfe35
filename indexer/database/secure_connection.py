"""Secure connections to a DuckDB file: they can access this file and nothing else.

A macro in a file can shadow any function and a view any table. So the file is attached to an in-memory database whose
settings are locked first. That database is the default, and no name is looked up in the file, until the caller has
checked the catalog of the file (:mod:`indexer.database.catalog`) and calls ``use``. To attach a file, DuckDB reads its
catalog and runs nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import STORAGE_VERSION

if TYPE_CHECKING:
    import duckdb

# The name of every attached file: a file called system.duckdb must not shadow the catalog system.
NAME = "atlas"

# How often to retry if the database is republished while it is being opened.
OPEN_RETRIES = 20

# The order matters: each setting prevents that the one before is undone. A read-only file without external access could
# still be a target of COPY; without a local file system there are no paths at all.
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
    """Attach a file read-only under NAME, without access to anything else.

    ``settings``: statements to run before. ``milliseconds``: time limit of a statement, 0 for none. Raises
    duckdb.IOException if another process has the file open for writing, duckdb.Error if it is not a database.

    Every connection is a database of its own and shows the current file, whatever else this process has open.
    DuckDB opens a path more than once, and would read blocks of a new file at positions given by the old one. So if a
    publish replaces the file meanwhile, it is opened again.
    """
    import duckdb

    link = path
    for is_last in (False,) * OPEN_RETRIES + (True,):
        path = link.resolve()  # the file may be a symbolic link, and access is allowed only by its target's path
        before = _inode(path)
        connection = duckdb.connect(":memory:")
        try:
            _run(connection, ["SET temp_directory = ''", *settings])
            limit = "SELECT 1 FROM system.main.duckdb_settings() WHERE name = 'max_execution_time'"
            if milliseconds and connection.execute(limit).fetchone():  # only in later versions of DuckDB
                connection.execute(f"SET max_execution_time = {int(milliseconds)}")
            _lock_down(connection, path)
            connection.execute(f"ATTACH {quoted(path.absolute())} AS {NAME} (READ_ONLY, TYPE duckdb)")
            _run(connection, ["SET disabled_filesystems = 'LocalFileSystem'", _LAST])
        except duckdb.Error:
            connection.close()
            if is_last or _inode(path) == before:
                raise
            continue
        if is_last or _inode(path) == before:
            break
        connection.close()
    return connection


def attached_for_writing(
    path: Path, *, settings: Sequence[str] = (), others: Mapping[str, Path] | None = None
) -> duckdb.DuckDBPyConnection:
    """Attach a private file for writing under NAME, as locked down as by ``attached``. A missing file is made.

    Only its own folder can be accessed, for the log and for data that is spilled. ``settings``: statements to run
    before. ``others``: files of that folder to attach read-only, by their names. Raises duckdb.Error if one of the
    files is not a database.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        _run(connection, settings)
        _lock_down(connection, path)
        version = "" if path.exists() else f", STORAGE_VERSION '{STORAGE_VERSION}'"
        connection.execute(f"ATTACH {quoted(path.absolute())} AS {NAME} (TYPE duckdb{version})")
        for name, file in (others or {}).items():
            connection.execute(f"ATTACH {quoted(file.absolute())} AS {name} (READ_ONLY, TYPE duckdb)")
        connection.execute(_LAST)
    except duckdb.Error:
        connection.close()
        raise
    return connection


def in_memory(statements: str) -> duckdb.DuckDBPyConnection:
    """A database of its own in memory, made by ``statements``, which can access no file."""
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        connection.execute(statements)
        _run(connection, [*_FIRST, "SET enable_external_access = false", _LAST])
    except duckdb.Error:
        connection.close()
        raise
    return connection


def use(connection: duckdb.DuckDBPyConnection) -> None:
    """Look up names in the attached file."""
    connection.execute(f"USE {NAME}")


def quoted(text: str | Path) -> str:
    """An SQL string literal."""
    return "'" + str(text).replace("'", "''") + "'"


def _lock_down(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    directories = f"SET allowed_directories = [{quoted(path.absolute().parent)}]"
    _run(connection, [*_FIRST, directories, "SET enable_external_access = false"])


def _run(connection: duckdb.DuckDBPyConnection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _inode(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode, which differ between a file that is still open and its replacement. None without a file."""
    inode = _inode(path)
    return None if inode is None else inode[:2]
