"""Published databases, opened read-only: locked down, compared with schema.sql, and only then queried.

A comparison that finds no difference is remembered in the user's cache (``indexer.storage.checksums``), because it
takes longer than most queries. The file is recognised by everything that changes when it does, including the time of
its last change (``ctime``), which no program can set back.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import time as clock
from typing import TYPE_CHECKING, Any

from indexer.atlas import schema_sql
from indexer.database.catalog import Found, definitions, examine, plain_tables, refuse
from indexer.database.connection import Connection, rows_as_dicts, translated_errors
from indexer.database.secure_connection import attached, use
from indexer.errors import AtlasError
from indexer.regular_files import regular_status
from indexer.storage.atomic_files import copy_file
from indexer.storage.checksums import check_once, stamp_of

if TYPE_CHECKING:
    import duckdb

_COPY_NOTE = "another program has the database open for writing; reading a private copy"
_LOG_NOTE = "the changes in {name} were not published and are not read"

# Increased when a comparison checks more than before, so that earlier ones no longer count.
_COMPARISON = 1

# A file that changed less than this long ago is not remembered: two changes within a tick of the clock look alike.
_SETTLED_SECONDS = 3.0


class Reading(Connection):
    """The published database, read-only. ``file``: what is read, the database itself or a private copy.

    A copy is read if there is a write-ahead log, which no publish leaves and DuckDB would replay, and, with
    ``copies_held``, if another program has the file open for writing; ``notes`` say so. ``stand_ins``: statements that
    were run to replace definitions of the file by those of schema.sql. ``settings``: statements to run first.

    Raises AtlasError if the file is damaged, has another schema, or has objects that schema.sql does not make.
    """

    def __init__(self, path: Path, *, settings: Sequence[str] = (), copies_held: bool = False) -> None:
        import duckdb

        self.file = path
        self.notes: list[str] = []
        with translated_errors(path), ExitStack() as cleanup:
            if _has_log(path):
                self.file = _private_copy(path, cleanup)
                self.notes.append(_LOG_NOTE.format(name=path.name + ".wal"))
            stamp = _stamp(path)
            try:
                opened = attached(self.file, settings=settings)
            except duckdb.IOException as error:
                if not copies_held or "lock" not in str(error).lower() or self.file != path:
                    raise
                self.file = _private_copy(path, cleanup)
                self.notes.append(_COPY_NOTE)
                opened = attached(self.file, settings=settings)
            cleanup.callback(opened.close)
            # If the comparison is remembered there was no difference, except that macros are always replaced.
            found = Found((), tuple(one for one in definitions() if one.kind == "macro"))

            def compare() -> bool:
                nonlocal found
                found = examine(opened, self.file)
                refuse(path, found)
                return not found.other_views and stamp == _stamp(path)

            if self.file == path and stamp is not None and stamp == _stamp(path):
                check_once(path.absolute(), stamp, compare)
            else:
                compare()
            use(opened)
            self.stand_ins = [one.created("TEMP") for one in found.others]
            for statement in self.stand_ins:
                opened.execute(statement)
            if found.other_views:
                names = ", ".join(found.other_views)
                self.notes.append(f"views of the file differ from schema.sql and are replaced: {names}")
            self._cleanup = cleanup.pop_all()
        super().__init__(opened, path)

    def close(self) -> None:
        """Close the file, and remove the copy."""
        self._cleanup.close()


# Rows that statements give, as dicts, a list for each; the first argument names the tables that they query.
EarlierRows = Callable[[Sequence[str], Sequence[str]], list[list[dict[str, Any]]] | None]


@contextmanager
def earlier_database(path: Path) -> Iterator[EarlierRows]:
    """A database of any schema, to ask for rows: the answer is None if they cannot be read.

    The statements may query the tables that are named and use no functions. A file with computed columns in these
    tables, or with objects that shadow a name, is not queried. The file is opened by the first question, and again
    after one that failed, because a damaged table can make the connection useless for others.
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
                        file = _private_copy(path, cleanup) if _has_log(path) else path
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
    return any(os.path.lexists(one.with_name(one.name + ".wal")) for one in (path, path.resolve()))


def _private_copy(path: Path, cleanup: ExitStack) -> Path:
    """A copy of a database without its log, in a folder that ``cleanup`` removes."""
    copy = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="atlas-"))) / path.name
    copy_file(path, copy, through_links=True)
    return copy


def _stamp(path: Path) -> list[int | str] | None:
    """The state of the file and of the comparison, for ``check_once``; None if it must not be remembered."""
    import duckdb

    try:
        status = regular_status(path)
    except OSError:
        return None
    if clock() - status.st_ctime < _SETTLED_SECONDS:
        return None
    digest = hashlib.sha256(f"{_COMPARISON} {duckdb.__version__} {schema_sql()}".encode()).hexdigest()
    return [*stamp_of(status, digest), status.st_dev, status.st_ctime_ns]
