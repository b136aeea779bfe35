"""A published database, opened to be read: locked, found to be what schema.sql makes, and only then used."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.database.catalog import Found, examine, plain_tables, refuse
from indexer.database.compared import Stamp, remember, remembered, stamp_now
from indexer.database.connection import Connection
from indexer.database.failures import failures_told
from indexer.database.secure_connection import attached, use
from indexer.errors import AtlasError
from indexer.storage.atomic_files import copy_file

if TYPE_CHECKING:
    import duckdb

# Files that this process has looked through, as they were then, and which of their tables can be asked.
_PLAIN: dict[Path, tuple[tuple[int, ...], frozenset[tuple[str, str]]]] = {}

COPY_NOTE = "another program has the database open for writing; reading a private copy"
LOG_NOTE = "changes in {name} came through no publish: they are not read"


class Reading(Connection):
    """What was published last, read-only. ``file`` is what is read: the file itself, or a private copy of it.

    A copy is read where a write-ahead log lies beside the file (which no publish leaves, and which would be replayed),
    and, with ``copies_held``, where another program holds the file for writing; ``notes`` say so. ``stand_ins``:
    statements that were run to put definitions of schema.sql before the file's own.

    Raises AtlasError where the file is damaged, is of another schema, or holds what schema.sql does not make.
    """

    def __init__(self, path: Path, *, settings: Sequence[str] = (), copies_held: bool = False) -> None:
        import duckdb

        self.file = path
        self.notes: list[str] = []
        self.stand_ins: list[str] = []
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        try:
            with failures_told(path):
                if _has_log(path):
                    self._copied(path, LOG_NOTE.format(name=_log(path).name))
                before = stamp_now(path)
                try:
                    opened = attached(self.file, settings=settings)
                except duckdb.IOException as error:
                    if not (copies_held and "lock" in str(error).lower() and self._copy is None):
                        raise
                    self._copied(path, COPY_NOTE)
                    opened = attached(self.file, settings=settings)
        except BaseException:
            self._forget_copy()
            raise
        super().__init__(opened, path)
        try:
            with failures_told(path):
                self._use(self._examined(opened, before if self._copy is None else None))
        except BaseException:
            self.close()
            raise

    def _examined(self, opened: duckdb.DuckDBPyConnection, before: Stamp | None) -> Found:
        """What is in the file; ``before``: what it was before it was opened, None for a copy."""
        found = remembered(self.path, before)
        if found is None:
            found = examine(opened, self.file)
            remember(self.path, before, found)
        return found

    def _use(self, found: Found) -> None:
        refuse(self.path, found)
        use(self._connection)
        self.stand_ins = found.stand_ins
        for statement in self.stand_ins:
            self._connection.execute(statement)
        if found.other_views:
            names = ", ".join(found.other_views)
            self.notes.append(f"its own definitions are not used, as schema.sql has others: {names}")

    def close(self) -> None:
        """Let go of the file, and remove the copy."""
        super().close()
        self._forget_copy()

    def _copied(self, path: Path, note: str) -> None:
        self._copy, self.file = private_copy(path)
        self.notes.append(note)

    def _forget_copy(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None


def private_copy(path: Path) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """A copy of a database, without its log, in a folder that goes with the first of the two."""
    folder = tempfile.TemporaryDirectory(prefix="atlas-")
    copy = Path(folder.name) / path.name
    try:
        copy_file(path, copy, through_links=True)
    except BaseException:
        folder.cleanup()
        raise
    return folder, copy


def earlier_rows(path: Path, tables: Sequence[str], statements: Sequence[str]) -> list[list[dict[str, Any]]] | None:
    """Rows of a database of any schema, as dicts, a list for each statement; None where it cannot be read.

    For what is to be kept of a database that is made again. The statements may ask ``tables``, and use no function: a
    file that computes a column of theirs, or shadows a name, is not asked.
    """
    if not path.is_file():
        return None
    if _has_log(path):
        folder, copy = private_copy(path)
        with folder:
            return earlier_rows(copy, tables, statements)
    try:
        with failures_told(path), attached(path) as connection:
            keys = {(schema or "main", table) for schema, _, table in (name.rpartition(".") for name in tables)}
            if not keys <= _plain_tables(connection, path):
                return None
            use(connection)
            found = []
            for statement in statements:
                cursor = connection.execute(statement)
                names = [column[0] for column in cursor.description or ()]
                found.append([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])
            return found
    except (AtlasError, OSError):
        return None


def _plain_tables(connection: duckdb.DuckDBPyConnection, path: Path) -> frozenset[tuple[str, str]]:
    """Tables that can be asked; a file is looked through once, as listing its macros costs more than most questions."""
    status = path.stat()
    now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    known = _PLAIN.get(path.absolute())
    if known is None or known[0] != now:
        known = _PLAIN[path.absolute()] = (now, plain_tables(connection, path))
    return known[1]


def _log(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _has_log(path: Path) -> bool:
    return os.path.lexists(_log(path))
