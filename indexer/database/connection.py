"""A DuckDB connection that raises our own errors, and the models and bases that users' names stand for."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from indexer.atlas import mending
from indexer.errors import AtlasError, Call, Text
from indexer.names import nearest, with_dots
from indexer.sources.registry import ModelRef, typed_id

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_REPAIR = "Rebuild it: index rebuild"

# Errors of the system that do not come from the file.
_TEMPORARY = (
    errno.EACCES, errno.EPERM, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
    errno.ESTALE, errno.ETIMEDOUT, errno.EIO,
)  # fmt: skip

# Models that an error message names if a name is ambiguous.
_NAMED = 3


class Statement:
    """A statement that has run, and its rows, which are fetched once; its cursor serves other statements afterwards."""

    def __init__(self, connection: Connection, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        self._path = connection.path
        self._cursor, self._give_back = connection.cursor()
        with translated_errors(self._path):
            self._cursor.execute(text, parameters or None)

    def __del__(self) -> None:
        if hasattr(self, "_give_back"):
            self._give_back(self._cursor)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""
        with translated_errors(self._path):
            return self._cursor.fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None if there is none."""
        with translated_errors(self._path):
            row: tuple[Any, ...] | None = self._cursor.fetchone()
            return row

    def fetchnumpy(self) -> dict[str, Any]:
        """All rows, as arrays by column."""
        with translated_errors(self._path):
            return dict(self._cursor.fetchnumpy())

    def rows(self) -> list[dict[str, Any]]:
        """All rows, as dicts."""
        with translated_errors(self._path):
            return rows_as_dicts(self._cursor)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """Name and type of each column."""
        return list(self._cursor.description or ())


class Connection:
    """A database that any number of threads may query. Errors of DuckDB are translated (``translated_errors``).

    A cursor of DuckDB has one result at a time, so every statement has a cursor of its own.

    ``connection``: the first cursor. ``path``: the file that messages name. ``on_cursor``: statements to run on each
    further cursor, because temporary definitions and the default schema belong to a cursor.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path, on_cursor: Sequence[str] = ()) -> None:
        self.path = path
        self._first, self._on_cursor = connection, tuple(on_cursor)
        # Lists and sets are changed by single calls, which threads cannot divide: a cursor may be given back while the
        # garbage collector runs, where a lock could be held by the same thread.
        self._free = [connection]
        self._busy: set[duckdb.DuckDBPyConnection] = set()
        self._making = Lock()

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Statement:
        """Run a statement."""
        return Statement(self, statement, parameters)

    def rows(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """All rows of a statement, as dicts."""
        return self.execute(statement, parameters).rows()

    def batches(self, statement: str, rows: int, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """The result of a statement as Arrow batches of ``rows`` rows; at least one batch, which may be empty."""
        import pyarrow as pa

        cursor, give_back = self.cursor()
        try:
            with translated_errors(self.path):
                relation = cursor.sql(statement, params=list(parameters) or None)
                # DuckDB 1.4 has only the older of the two names.
                open_reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
                reader = open_reader(rows)
                is_empty = True
                for batch in reader:
                    is_empty = False
                    yield batch
                if is_empty:
                    yield pa.RecordBatch.from_pylist([], schema=reader.schema)
        finally:
            give_back(cursor)

    def cursor(self) -> tuple[duckdb.DuckDBPyConnection, Callable[[duckdb.DuckDBPyConnection], None]]:
        """A cursor that no other statement uses, and the function that gives it back."""
        with translated_errors(self.path):
            try:
                cursor = self._free.pop()
            except IndexError:
                with self._making:
                    cursor = self._first.cursor()
                    for statement in self._on_cursor:
                        cursor.execute(statement)
        self._busy.add(cursor)
        return cursor, self._give_back

    def _give_back(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._busy.discard(cursor)
        self._free.append(cursor)

    def interrupt(self) -> None:
        """Cancel every statement that runs now: each raises KeyboardInterrupt in its thread."""
        for cursor in list(self._busy):
            cursor.interrupt()

    def close(self) -> None:
        """Close the file. No statement of another thread may be running."""
        self._first.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows_as_dicts(cursor: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """The remaining rows of a statement, as dicts."""
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Within the block, errors of DuckDB about the file at ``path`` are translated.

    They become AtlasError, OSError for a full disk, or KeyboardInterrupt for Ctrl-C. Other errors are not changed.
    """
    try:
        yield
    except Exception as error:
        translated = _translated(error, path)
        if translated is error:
            raise
        raise translated from error


def is_held(error: Exception) -> bool:
    """Whether DuckDB refuses a file because another program, or another connection of this one, writes to it."""
    return any(words in str(error) for words in ("Could not set lock on file", "Unique file handle conflict"))


def _translated(error: Exception, path: Path) -> BaseException:
    import duckdb

    if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
        return KeyboardInterrupt()  # DuckDB raises this if Ctrl-C is pressed during a statement
    if not isinstance(error, duckdb.Error):
        return error
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    sentence = text.partition(" Error: ")[2] or text
    if isinstance(error, duckdb.InterruptException):
        return KeyboardInterrupt()
    if "No space left on device" in text:
        return OSError(errno.ENOSPC, "No space left on device", str(path))
    if isinstance(error, duckdb.ConnectionException) and "closed" in text:
        return AtlasError("This atlas is closed.", "Open it again: query.Atlas(folder).")
    if isinstance(error, duckdb.OutOfMemoryException):
        return AtlasError(f"{path} needs more memory than is available.", "Close other programs and try again.")
    if is_held(error):
        holder = re.search(r"PID (\d+)", str(error))
        by = f" (process {holder[1]})" if holder else ""
        return AtlasError(f"{path} is open for writing in another program{by}.", "Close it there and try again.")
    if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException | duckdb.ConstraintException):
        return AtlasError(f"A value does not fit into {path}: {sentence}", "Run with --debug, and report it.")
    if "Invalid unicode" in text:  # a text of the file, not of the statement
        return AtlasError(f"{path} is damaged (it holds a text that is not UTF-8).", mending(path.parent, _REPAIR))
    statement_errors = (
        duckdb.ParserException, duckdb.BinderException, duckdb.SyntaxException, duckdb.InvalidInputException,
        duckdb.PermissionException, duckdb.NotImplementedException,
    )  # fmt: skip
    if isinstance(error, statement_errors):
        return AtlasError(f"The statement cannot be run: {sentence}", "See: query sql --help")
    if isinstance(error, duckdb.TransactionException | duckdb.ConnectionException) or any(
        os.strerror(number) in text for number in _TEMPORARY
    ):
        return AtlasError(f"{path} cannot be read now ({sentence.rstrip('.')}).", "Try again.")
    return AtlasError(f"{path} is damaged ({sentence.rstrip('.')}).", mending(path.parent, _REPAIR))


# Models that a user named, and that could not be indexed, are found by their full id only and never suggested.
NOT_A_FAILED_ADD = "(status = 'indexed' OR claimed_by IS NULL OR claimed_by NOT IN ('user', 'folder'))"


def model_ending_in(connection: Connection, name: str) -> str | None:
    """The listed id that ends in ``name``, after its owner or its source.

    None if there is no such id, or if ``name`` includes an owner or a source. Raises AtlasError if there are several.
    """
    if "/" in name or ":" in name:
        return None
    rows = connection.rows(
        "SELECT DISTINCT model FROM fine_tunes "
        "WHERE lower(model) = lower($1) OR ends_with(lower(model), ':' || lower($1)) "
        f"OR (ends_with(lower(model), '/' || lower($1)) AND {NOT_A_FAILED_ADD}) ORDER BY model",
        [name],
    )
    if len(rows) > 1:
        names = ", ".join(row["model"] for row in rows[:_NAMED]) + (" …" if len(rows) > _NAMED else "")
        raise AtlasError(f"{len(rows)} models are called {name}: {names}.", "Add the owner: OWNER/NAME.")
    return str(rows[0]["model"]) if rows else None


def indexed_models(connection: Connection, names: Sequence[str], base: str | None = None) -> list[dict[str, Any]]:
    """Model, base and read (sample or full) of the indexed models with these names, all of one base.

    ``base``: the canonical id of their base, if it is known. Raises AtlasError if a model is not indexed, and if they
    belong to several bases.
    """
    rows = []
    for name in names:
        typed = ModelRef.parse(name).id
        matches: list[dict[str, Any]] = []
        for spelled in dict.fromkeys((typed, with_dots(typed))):
            matches = matches or connection.rows(
                'SELECT model, base, "read" FROM models WHERE lower(model) = lower($model) '
                "AND base = coalesce($base, base)",
                {"model": model_ending_in(connection, spelled) or spelled, "base": base},
            )
        if not matches:
            near = nearest(typed, [row["model"] for row in connection.rows("SELECT DISTINCT model FROM models")])
            hint = f"Did you mean {' or '.join(near)}?" if near else "List its models: `query models`"
            raise AtlasError(f"{name} is not indexed in this atlas.", hint)
        rows += matches
    if len(bases := sorted({str(row["base"]) for row in rows})) > 1:
        raise AtlasError(f"These models belong to several bases: {', '.join(bases)}.", "Choose one with `base`.")
    return rows


def base_named(connection: Connection, name: str) -> str:
    """The canonical id of a base, from any of its ids, its address, or the name after the owner if it is unique.

    Raises AtlasError if there is no such base.
    """
    rows = connection.rows("SELECT base, aliases FROM bases ORDER BY base")
    typed = typed_id(name).lower()
    for spelled in dict.fromkeys((typed, with_dots(typed))):
        for row in rows:
            if spelled in {alias.lower() for alias in (row["base"], *row["aliases"])}:
                return str(row["base"])
        ending = [str(row["base"]) for row in rows if row["base"].lower().endswith(f"/{spelled}")]
        if len(ending) == 1:
            return ending[0]
    bases = ", ".join(row["base"] for row in rows) or "none"
    near = nearest(typed, [row["base"] for row in rows])
    hint = f"Did you mean {' or '.join(near)}?" if near else Text("Add it: ", Call("build", name))
    raise AtlasError(f"{name!r} is not a base of this atlas; its bases: {bases}.", hint)


def published_bases(connection: Connection, base: str | None = None) -> list[dict[str, Any]]:
    """Base, commit, model_type and rank of every published base, or only of ``base``."""
    return connection.rows(
        'SELECT base, "commit", model_type, rank FROM bases JOIN representations USING (base) '
        "WHERE representation = 'input' AND base = coalesce($base, base) ORDER BY base",
        {"base": base},
    )
