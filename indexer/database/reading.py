"""Published databases, opened read-only: locked down, compared with schema.sql, and only then queried.

A comparison that finds no difference is remembered in the user's cache (``indexer.storage.checksums``), because it
takes longer than most queries. A database that this user's program has just published, or that passed the gate, is
remembered at once. The file is recognised by all its properties that change with it, including the time of its last
change (``ctime``), which no program can set back.

A database in somebody else's folder is read in place, and not copied like those that come from the Hub
(``indexer.database.gate``): a team's atlas is opened by many people after each publish, and a copy would cost each of
them all of its bytes, where a comparison takes the same short time for every size.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from time import time as clock
from typing import TYPE_CHECKING, Any, BinaryIO

from indexer.atlas import schema_sql
from indexer.database.catalog import Differences, definitions, examine, plain_tables, refuse
from indexer.database.connection import Connection, is_held, rows_as_dicts, translated_errors
from indexer.database.secure_connection import NAME, OPEN_RETRIES, attached, identity_of, use
from indexer.errors import AtlasError, system_errors
from indexer.regular_files import open_regular, regular_status
from indexer.storage.atomic_files import copy_file, copy_open_file
from indexer.storage.checksums import check_once, stamp_of
from indexer.storage.own_files import is_own

if TYPE_CHECKING:
    import duckdb

_COPY_NOTE = "another program has the database open for writing; reading a private copy"
_LOG_NOTE = "the changes in {name} were not published and are not read"

# Increased when a comparison checks more than before, so that earlier comparisons are repeated.
_COMPARISON = 1

# A file that changed less than this long ago is not remembered if other users may write to it: two changes within a
# tick of the clock look alike.
_SETTLED_SECONDS = 3.0


class Reading(Connection):
    """The published database, read-only. ``file``: the database itself, or a private copy of it.

    A copy is read (``is_copy``) if there is a write-ahead log, which no publish leaves and DuckDB would replay, and,
    with ``copies_held``, if another program has the file open for writing; ``notes`` has a sentence for each.
    ``stand_ins``: statements that replaced definitions of the file by those of schema.sql. ``settings``: statements to
    run first.

    Raises AtlasError if the file is damaged, has another schema, or has objects that schema.sql does not make.
    """

    def __init__(self, path: Path, *, settings: Sequence[str] = (), copies_held: bool = False) -> None:
        import duckdb

        self.file = path
        self.notes: list[str] = []
        self._copying = Lock()
        with translated_errors(path), ExitStack() as cleanup:
            if _has_log(path):
                self.file = _private_copy(path, path.name, cleanup)
                self.notes.append(_LOG_NOTE.format(name=path.name + ".wal"))
            stamp = _stamp(path)
            try:
                opened, self._original = _attached(self.file, settings)
            except duckdb.Error as error:
                if not copies_held or not is_held(error) or self.file != path:
                    raise
                self.file = _private_copy(path, path.name, cleanup)
                self.notes.append(_COPY_NOTE)
                opened, self._original = _attached(self.file, settings)
            self.is_copy = self.file != path
            cleanup.callback(self._original.close)
            cleanup.callback(opened.close)
            # If the comparison is remembered there was no difference, except that macros are always replaced.
            macros = tuple(definition for definition in definitions() if definition.kind == "macro")
            differences = Differences((), macros)

            def compare() -> bool:
                nonlocal differences
                differences = examine(opened, self.file)
                refuse(path, differences)
                return not differences.differing_views and stamp == _stamp(path)

            if self.file == path and stamp is not None and stamp == _stamp(path):
                check_once(path.absolute(), stamp, compare)
            else:
                compare()
            use(opened)
            self.stand_ins = [definition.created("TEMP") for definition in differences.differing]
            for statement in self.stand_ins:
                opened.execute(statement)
            if differences.differing_views:
                names = ", ".join(differences.differing_views)
                self.notes.append(f"views of the file differ from schema.sql and are replaced: {names}")
            self._cleanup = cleanup.pop_all()
        super().__init__(opened, path, [f"USE {NAME}", *self.stand_ins])

    def close(self) -> None:
        """Close the file, and remove the copies. No statement of another thread may be running."""
        self._cleanup.close()

    def file_for_others(self, *, is_replaced: bool = False) -> Path:
        """A path of this database that another process can open.

        It is ``file``, or a private copy if a later publish replaced the file. The copy exists until ``close``.
        ``is_replaced``: the other process found that the file was replaced.
        """
        with self._copying:
            if self.file == self.path and (is_replaced or identity_of(self.path) != self.identity):
                self.file = _private_copy(self._original, self.path.name, self._cleanup)
            return self.file

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, which differ after a replacement: the file stays open, so no other gets its inode."""
        status = os.fstat(self._original.fileno())
        return status.st_dev, status.st_ino


def remember_published(path: Path) -> None:
    """Remember that the database just published matches schema.sql, so that it need not be compared.

    Nothing is remembered if other users may write to the file: they may have changed it since.
    """
    stamp = _stamp(path)
    if stamp is not None:
        check_once(path.absolute(), stamp, lambda: None)


# From the names of the tables that are queried, and statements, to a list of rows, as dicts, for each statement.
EarlierRows = Callable[[Sequence[str], Sequence[str]], list[list[dict[str, Any]]] | None]


@contextmanager
def earlier_database(path: Path) -> Iterator[EarlierRows]:
    """A function that reads rows from a database of any schema; it returns None if they cannot be read.

    Its statements may query the named tables and use no functions. A file with computed columns in these tables, or
    with objects that shadow a name, is not queried. The first call opens the file, and so does a call after one that
    failed, because a damaged table can make the connection useless for others.
    """
    opened: tuple[duckdb.DuckDBPyConnection, frozenset[tuple[str, str]]] | None = None
    with ExitStack() as cleanup:

        def rows(tables: Sequence[str], statements: Sequence[str]) -> list[list[dict[str, Any]]] | None:
            nonlocal opened
            try:
                with translated_errors(path):
                    if opened is None:
                        if not path.is_file():
                            return None
                        file = _private_copy(path, path.name, cleanup) if _has_log(path) else path
                        connection = cleanup.enter_context(attached(file))
                        opened = connection, plain_tables(connection, file)
                    connection, plain = opened
                    names = (name.rpartition(".") for name in tables)
                    if not {(schema or "main", table) for schema, _, table in names} <= plain:
                        return None
                    use(connection)
                    return [rows_as_dicts(connection.execute(statement)) for statement in statements]
            except (AtlasError, OSError):
                opened = None
                cleanup.close()
                return None

        yield rows


def _has_log(path: Path) -> bool:
    return any(os.path.lexists(name.with_name(name.name + ".wal")) for name in (path, path.resolve()))


def _attached(path: Path, settings: Sequence[str]) -> tuple[duckdb.DuckDBPyConnection, BinaryIO]:
    """The attached file, and the same file open for reading. Raises duckdb.Error, AtlasError if it cannot be opened."""
    for is_last in (False,) * OPEN_RETRIES + (True,):
        before = identity_of(path)
        opened = attached(path, settings=settings)
        try:
            with system_errors(lambda why: AtlasError(f"{path} cannot be read: {why}.", "Try again.")):
                original = open_regular(path, through_links=True)
                status = os.fstat(original.fileno())
        except AtlasError:
            opened.close()
            raise
        if is_last or before == (status.st_dev, status.st_ino):
            break  # no publish came between the two
        original.close()
        opened.close()
    return opened, original


class _PrivateFolder:
    """A temporary folder, removed by ``close`` or at the end of this process, but not by a process forked from it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="atlas-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def close(self) -> None:
        self._finalizer()


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _private_copy(original: Path | BinaryIO, name: str, cleanup: ExitStack) -> Path:
    """A copy of a database without its log, in a folder that ``cleanup`` removes."""
    folder = _PrivateFolder()
    cleanup.callback(folder.close)
    copy = folder.path / name
    if isinstance(original, Path):
        copy_file(original, copy, through_links=True)
    else:
        copy_open_file(original, copy)
    return copy


def _stamp(path: Path) -> list[int | str] | None:
    """The state of the file and of the comparison, for ``check_once``; None if it must not be remembered."""
    import duckdb

    try:
        status = regular_status(path)
    except OSError:
        return None
    if clock() - status.st_ctime < _SETTLED_SECONDS and not (is_own(path) and is_own(path.parent.resolve())):
        return None
    digest = hashlib.sha256(f"{_COMPARISON} {duckdb.__version__} {schema_sql()}".encode()).hexdigest()
    return [*stamp_of(status, digest), status.st_dev, status.st_ctime_ns]
