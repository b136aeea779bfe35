"""Small SQLite databases: one file each, with a checksum in every row.

A database is opened for one transaction and closed again, so that no connection crosses a fork or is left open by a
process that only reads. The journal is a file beside it that exists during a write (journal mode DELETE: the only one
that works on network file systems). The next reader undoes the write of a killed process. Writes are synced.

SQLite's own locks make a reader wait for a writer. Where a file system has no such locks, the lock of the atlas keeps
writers apart, and a read during which the file has changed is repeated.

Schemas, triggers and views are not trusted: a file whose schema is not exactly the expected one is not read.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from indexer.atlas import is_locked_here
from indexer.errors import AtlasError, system_errors
from indexer.regular_files import open_regular
from indexer.storage.atomic_files import replacing, sync_folder

Answer = TypeVar("Answer")
Values = tuple[Any, ...]

MOST_PROBLEMS = 100
_MOST_BYTES_A_VALUE = 64 << 20
_WAIT_SECONDS = 60.0  # of a reader, for a writer in another process
_WRITER_WAIT_SECONDS = 600.0  # for readers, which may read a whole large file
_HEADER = 100  # bytes
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_TOOBIG)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_CANNOT_SYNC = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
# One transaction at a time in a process: closing a descriptor of a file releases all locks of the process on it.
_ONE_AT_A_TIME = threading.RLock()


class DamagedDatabase(AtlasError):
    """The file is damaged, or not such a database."""


@dataclass(frozen=True)
class Schema:
    """The tables of a kind of database, by SQL; ``kind`` and ``version`` are in the header of each file.

    The last column of each table is ``checksum``.
    """

    sql: str
    kind: int
    version: int
    objects: tuple[Values, ...] = field(init=False)
    columns: dict[str, tuple[str, ...]] = field(init=False)
    statements: dict[str, _Statements] = field(init=False)

    def __post_init__(self) -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(self.sql)
            object.__setattr__(self, "objects", _objects(connection))
            columns_of_tables = {
                name: connection.execute(f"PRAGMA table_info({name})").fetchall()
                for kind, name, *_ in self.objects
                if kind == "table"
            }
        columns = {name: tuple(row[1] for row in rows)[:-1] for name, rows in columns_of_tables.items()}
        keys = {name: tuple(row[1] for row in rows if row[5]) for name, rows in columns_of_tables.items()}
        object.__setattr__(self, "columns", columns)
        statements = {name: _statements(columns[name], keys[name], name) for name in columns_of_tables}
        object.__setattr__(self, "statements", statements)


def _objects(connection: sqlite3.Connection) -> tuple[Values, ...]:
    return tuple(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"))


def row_checksum(values: Sequence[Any]) -> str:
    """The checksum of a row's other values: texts, whole numbers and None."""
    return hashlib.sha256("\x1f".join(map(str, values)).encode()).hexdigest()[:16]


class SmallTables:
    """The tables during one transaction; without a connection all are empty. Values are checked when they are read."""

    def __init__(self, schema: Schema, connection: sqlite3.Connection | None) -> None:
        self.schema = schema
        self.connection = connection
        self.problems: list[str] = []  # of rows and pages that could not be read

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Values]:
        """Run a statement; its rows, unchecked."""
        return [] if self.connection is None else self.connection.execute(statement, values).fetchall()

    def get(self, table: str, *key: Any) -> Values | None:
        """The row with this key, without its checksum; None if there is none or it is damaged."""
        rows = self.execute(self.schema.statements[table].get, key)
        return checked(rows[0]) if rows else None

    def put(self, table: str, *values: Any) -> None:
        """Insert a row, or replace the row with the same key."""
        assert self.connection is not None
        self.connection.execute(self.schema.statements[table].put, (*values, row_checksum(values)))

    def put_all(self, table: str, rows: Iterator[Values]) -> None:
        """``put`` for many rows."""
        assert self.connection is not None
        put = self.schema.statements[table].put
        self.connection.executemany(put, ((*values, row_checksum(values)) for values in rows))

    def all(self, table: str, where: str = "", values: Sequence[Any] = ()) -> Iterator[Values]:
        """The rows in their order, without checksums. Damaged rows are left out and added to ``problems``."""
        for values_read in self._readable(table, where, values):
            row = checked(values_read[1:])
            if row is not None:
                yield row
            elif len(self.problems) < MOST_PROBLEMS:
                self.problems.append(f"row {values_read[0]} of {table} is damaged: its checksum does not match")

    def _readable(self, table: str, where: str, values: Sequence[Any]) -> Iterator[Values]:
        """The rows with their numbers; if pages are damaged, the rows before the first such page and after the last."""
        if self.connection is None:
            return
        statement = f"SELECT rowid, * FROM {table} {where} ORDER BY rowid"
        last = -1
        try:
            for row in self.connection.execute(statement, values):
                last = row[0]
                yield row
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.Error) and not _is_damage(error):
                raise
            if len(self.problems) < MOST_PROBLEMS:
                self.problems.append(f"pages of {table} are damaged: {error}")
            rows_after: list[Values] = []
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                for row in self.connection.execute(f"{statement} DESC", values):
                    if row[0] <= last:
                        break
                    rows_after.append(row)
            yield from reversed(rows_after)


@dataclass(frozen=True)
class _Statements:
    get: str
    put: str


def _statements(columns: Sequence[str], key: Sequence[str], table: str) -> _Statements:
    all_columns = (*columns, "checksum")
    changed = ", ".join(f"{name} = excluded.{name}" for name in all_columns if name not in key)
    condition = " AND ".join(f"{name} = ?" for name in key)
    return _Statements(
        get=f"SELECT * FROM {table} WHERE {condition}",
        put=f"INSERT INTO {table} VALUES ({', '.join('?' * len(all_columns))}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changed}",
    )


def checked(row: Values) -> Values | None:
    """The values of a row without its checksum; None if the checksum does not match."""
    values = row[:-1]
    try:
        return values if row_checksum(values) == row[-1] else None
    except UnicodeEncodeError:
        return None


@dataclass(frozen=True)
class FileState:
    """The state of a file, which every write changes.

    ``changes``: SQLite's count of the writes; ``has_journal``: a write has begun and not ended.
    """

    inode: int
    size: int
    changes: int
    has_journal: bool


class SmallDatabase:
    """The database at ``path``, which need not exist yet. There must be one writer at a time.

    ``what``: its name in messages, such as "listing"; ``repair``: advice about a damaged file. Methods raise AtlasError
    if the file cannot be read or written, and DamagedDatabase.
    """

    def __init__(self, path: Path, schema: Schema, what: str, repair: str = "") -> None:
        self.path = path
        self.schema = schema
        self.what = what
        self.repair = repair

    def exists(self) -> bool:
        """Whether anything exists at the path."""
        return os.path.lexists(self.path)

    def read(self, function: Callable[[SmallTables], Answer]) -> Answer:
        """Call ``function`` with the tables, which are empty if there is no file, and return its result.

        It is called again if another process writes meanwhile. In a damaged file it finds the rows that can be read.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        before: FileState | None = None
        # No other process writes, or all processes wait for each other.
        is_undisturbed = _has_locks(self.path.parent) or is_locked_here(self.path.parent.parent)
        with self._errors("read"):
            while True:
                try:
                    with _ONE_AT_A_TIME:
                        before = self.state()
                        if before is None or not before.size:
                            return function(SmallTables(self.schema, None))
                        # Without locks, nothing distinguishes the journal of a running write from that of a killed one.
                        if is_undisturbed or not before.has_journal:
                            with closing(self._connected(for_writing=False)) as connection:
                                connection.execute("BEGIN")
                                has_tables = self._check_schema(connection)
                                answer = function(SmallTables(self.schema, connection if has_tables else None))
                            if is_undisturbed or self.state() == before:
                                return answer
                except sqlite3.Error:
                    if is_undisturbed or self.state() == before:
                        raise
                if time.monotonic() > deadline:
                    raise self._left_open() if before is not None and before.has_journal else self._busy()
                time.sleep(0.05)

    def write(self, function: Callable[[SmallTables], Answer]) -> Answer:
        """Call ``function`` and return its result. Afterwards its changes are on the disk; if it raises, none is."""
        with self._errors("written"), _ONE_AT_A_TIME:
            is_new = self.state() is None
            if is_new:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._write(function, is_new, can_sync=True)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in _CANNOT_SYNC or not _lacks_sync(self.path):
                    raise
                return self._write(function, is_new, can_sync=False)
            finally:
                if is_new and self.path.exists() and not self.path.stat().st_size:
                    self.remove()  # nothing was written

    def _write(self, function: Callable[[SmallTables], Answer], is_new: bool, can_sync: bool) -> Answer:
        with closing(self._connected(for_writing=True)) as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if can_sync else 'OFF'}")
            connection.execute("PRAGMA secure_delete = ON")  # overwrites the rows of a removed model
            connection.execute("BEGIN IMMEDIATE")
            if not self._check_schema(connection):
                self._make_tables(connection)
            answer = function(SmallTables(self.schema, connection))
            connection.execute("COMMIT")
        if is_new:
            sync_folder(self.path.parent)
        return answer

    def replace(self, function: Callable[[SmallTables], Answer]) -> Answer:
        """Replace the file, even a damaged one, by a new database that ``function`` fills; return its result."""
        with self._errors("written"):
            with _ONE_AT_A_TIME, replacing(self.path) as file:
                temporary = Path(file.name)
                with closing(_connect(temporary, "mode=rw&nolock=1")) as connection:
                    connection.execute("PRAGMA journal_mode = OFF")
                    connection.execute("PRAGMA synchronous = OFF")  # the whole file is synced before it is renamed
                    connection.execute("BEGIN")
                    self._make_tables(connection)
                    answer = function(SmallTables(self.schema, connection))
                    connection.execute("COMMIT")
                # The journal belongs to the old file, and SQLite would apply it to the new one.
                self.journal.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        return answer

    def remove(self) -> None:
        """Remove the file and its journal. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    @property
    def journal(self) -> Path:
        """The file that exists during a write."""
        return self.path.with_name(f"{self.path.name}-journal")

    def check(self) -> list[str]:
        """The problems of damaged pages, indexes and rows, at most a hundred. Raises AtlasError."""

        def problems_of(tables: SmallTables) -> list[str]:
            for name in self.schema.columns:
                for _ in tables.all(name):
                    pass
            pages, size = (tables.execute(f"PRAGMA {name}") for name in ("page_count", "page_size"))
            if pages and pages[0][0] * size[0][0] != self.path.stat().st_size:
                tables.problems.append(
                    f"it has {self.path.stat().st_size:,} bytes in place of {pages[0][0] * size[0][0]:,}"
                )
            rows = tables.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")
            results = [str(row[0]).strip().splitlines()[-1] for row in rows]
            return (tables.problems + [result for result in results if result != "ok"])[:MOST_PROBLEMS]

        try:
            return self.read(problems_of)
        except DamagedDatabase as error:
            return [error.message]

    def state(self) -> FileState | None:
        """The state of the file; None without a file. Raises OSError unless it is a regular file."""
        try:
            with _ONE_AT_A_TIME, open_regular(self.path) as file:
                header, status = file.read(_HEADER), os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        changes = int.from_bytes(header[24:28], "big")
        return FileState(status.st_ino, status.st_size, changes, os.path.lexists(self.journal))

    def _connected(self, *, for_writing: bool) -> sqlite3.Connection:
        # To undo a killed write, the process needs the right to write.
        has_locks = _has_locks(self.path.parent)
        can_write = os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        can_write = can_write and (has_locks or is_locked_here(self.path.parent.parent))
        mode = "rwc" if for_writing else "rw" if can_write else "ro"
        connection = _connect(self.path, f"mode={mode}{'' if has_locks else '&nolock=1'}")
        try:
            (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if journal_mode != "delete":
                raise self._damaged(f"its journal mode is {journal_mode}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        for statement in _statements_in(self.schema.sql):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self.schema.kind}")
        connection.execute(f"PRAGMA user_version = {self.schema.version}")

    def _check_schema(self, connection: sqlite3.Connection) -> bool:
        """Whether there are tables. Raises DamagedDatabase unless they are exactly those of the schema."""
        objects = _objects(connection)
        if not objects and not self.path.stat().st_size:
            return False
        kind, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if kind == self.schema.kind and version != self.schema.version:
            raise AtlasError(
                f"The {self.what} {self.path} has version {version}; this program reads version {self.schema.version}.",
                "Use the version of vectors-in-the-wild that wrote it.",
            )
        if (kind, objects) != (self.schema.kind, self.schema.objects):
            raise self._damaged("its tables are not those of a listing")
        return True

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Within the block, errors of SQLite and of the file system become AtlasError; ``verb``: read, written."""
        with system_errors(partial(self.unusable, verb)):
            try:
                yield
            except sqlite3.Error as error:
                raise self._translated(error, verb) from error
            except UnicodeDecodeError as error:
                raise self._damaged("its texts are not UTF-8") from error

    def _translated(self, error: sqlite3.Error, verb: str) -> AtlasError:
        if _is_damage(error):
            return self._damaged(str(error))
        if _primary(error) in _BUSY:
            return self._busy()
        if _primary(error) == sqlite3.SQLITE_FULL:
            return self.unusable(verb, os.strerror(errno.ENOSPC))
        if _primary(error) == sqlite3.SQLITE_READONLY and os.path.lexists(self.journal):
            return self._left_open()
        return self.unusable(verb, str(error))

    def _left_open(self) -> AtlasError:
        return AtlasError(
            f"The {self.what} {self.path} cannot be read: a write was interrupted, or goes on.",
            "Run `index build` again, which undoes it; that needs the right to write there.",
        )

    def _busy(self) -> AtlasError:
        return AtlasError(
            f"Another process has been using the {self.what} {self.path} for too long.",
            "Wait for it to finish, and run it again.",
        )

    def _damaged(self, why: str) -> DamagedDatabase:
        return DamagedDatabase(f"The {self.what} {self.path} is damaged ({why}).", self.repair)

    def unusable(self, verb: str, why: str) -> AtlasError:
        """The error for a file that cannot be read or written."""
        return AtlasError(
            f"The {self.what} {self.path} cannot be {verb}: {why}.", "Check its permissions and the free space."
        )


def in_memory(schema: Schema, function: Callable[[SmallTables], Answer]) -> Answer:
    """Call ``function`` with the tables of an empty database in memory, and return its result."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema.sql)
        connection.execute("BEGIN")
        return function(SmallTables(schema, connection))


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    wait = _WRITER_WAIT_SECONDS if parameters.startswith("mode=rwc") else _WAIT_SECONDS
    address = f"file:{quote(os.fsencode(path))}?{parameters}"
    connection = sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None)
    for setting in ("trusted_schema = OFF", "mmap_size = 0", "cell_size_check = ON", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {setting}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_A_VALUE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def _statements_in(sql: str) -> Iterator[str]:
    """The statements of a script, which ``executescript`` would commit one by one."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _primary(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_damage(error: sqlite3.Error) -> bool:
    return _primary(error) in _DAMAGED or "Could not decode to UTF-8" in str(error)


def _has_locks(folder: Path) -> bool:
    """Whether the file system has locks of the kind that SQLite uses."""
    try:
        return _device_has_locks(folder.stat().st_dev, str(folder))
    except OSError:  # nothing can be written there
        return True


@cache
def _device_has_locks(_device: int, folder: str) -> bool:
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _lacks_sync(path: Path) -> bool:
    """Whether files there cannot be synced at all, as on some network file systems."""
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            return error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
    return False
