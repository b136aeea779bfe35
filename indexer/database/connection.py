"""A DuckDB connection that raises our own errors, and what a user's name for a model or a base means in an atlas."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from indexer.atlas import mending
from indexer.errors import AtlasError
from indexer.names import LOCAL, ModelRef, nearest, without_address

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_REPAIR = "Rebuild it: index rebuild"

# Models that an error message names if a name is ambiguous.
_NAMED = 3


class Connection:
    """A DuckDB connection to the file at ``path``; errors of DuckDB are translated, see ``translated_errors``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Self:
        """Run a statement; its rows are fetched from this connection."""
        with translated_errors(self.path):
            self._connection.execute(statement, parameters or None)
        return self

    def interrupt(self) -> None:
        """Cancel the statement that another thread runs on this connection: it raises there."""
        self._connection.interrupt()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows of the last statement."""
        with translated_errors(self.path):
            return self._connection.fetchall()

    def fetchnumpy(self) -> dict[str, Any]:
        """All remaining rows of the last statement, as arrays by column."""
        with translated_errors(self.path):
            return dict(self._connection.fetchnumpy())

    def rows(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """All rows of a statement, as dicts."""
        self.execute(statement, parameters)
        with translated_errors(self.path):
            return rows_as_dicts(self._connection)

    def batches(self, statement: str, rows: int, parameters: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
        """The result of a statement as Arrow batches of ``rows`` rows; at least one batch, which may be empty."""
        import pyarrow as pa

        with translated_errors(self.path):
            found = self._connection.sql(statement, params=list(parameters) or None)
            # DuckDB 1.4 has only the older of the two names.
            open_reader = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
            reader = open_reader(rows)
            is_empty = True
            for batch in reader:
                is_empty = False
                yield batch
            if is_empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """Name and type of each column of the last statement."""
        return list(self._connection.description or ())

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

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
        ours = _translated(error, path)
        if ours is error:
            raise
        raise ours from error


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
    if isinstance(error, duckdb.IOException) and "Could not set lock on file" in text:
        holder = re.search(r"PID (\d+)", str(error))
        by = f" (process {holder[1]})" if holder else ""
        return AtlasError(f"{path} is open for writing in another program{by}.", "Close it there and try again.")
    if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException | duckdb.ConstraintException):
        return AtlasError(f"A value does not fit into {path}: {sentence}", "Run with --debug, and report it.")
    statement_errors = (
        duckdb.ParserException, duckdb.BinderException, duckdb.SyntaxException, duckdb.InvalidInputException,
        duckdb.PermissionException, duckdb.NotImplementedException,
    )  # fmt: skip
    if isinstance(error, statement_errors):
        return AtlasError(f"The statement cannot be run: {sentence}", "See: query sql --help")
    return AtlasError(f"{path} is damaged ({sentence.rstrip('.')}).", mending(path.parent, _REPAIR))


# Models that a user named, and that could not be indexed, are shown by their whole id only and never suggested.
NOT_A_FAILED_ADD = "(status = 'indexed' OR claimed_by IS NULL OR claimed_by NOT IN ('user', 'folder'))"


def model_ending_in(connection: Connection, name: str) -> str | None:
    """The listed id that is ``name`` after its owner; None if there is none, or if ``name`` includes an owner.

    Raises AtlasError if there are several.
    """
    if "/" in name or ":" in name:
        return None
    rows = connection.rows(
        "SELECT DISTINCT model FROM fine_tunes WHERE lower(model) IN (lower($1), lower($2)) "
        f"OR (ends_with(lower(model), '/' || lower($1)) AND {NOT_A_FAILED_ADD}) ORDER BY model",
        [name, LOCAL + name],
    )
    if len(rows) > 1:
        found = ", ".join(row["model"] for row in rows[:_NAMED]) + (" …" if len(rows) > _NAMED else "")
        raise AtlasError(f"{len(rows)} models are called {name}: {found}.", "Add the owner: OWNER/NAME.")
    return str(rows[0]["model"]) if rows else None


def indexed_models(connection: Connection, names: Sequence[str], base: str | None = None) -> list[dict[str, Any]]:
    """Model, base and read (sample or full) of the indexed models with these names, all of one base.

    ``base``: the canonical id of their base, if it is known. Raises AtlasError if one is not indexed, and for models of
    several bases.
    """
    rows = []
    for name in names:
        typed = ModelRef.parse(name).id
        found = connection.rows(
            'SELECT model, base, "read" FROM models WHERE lower(model) = lower($model) '
            "AND base = coalesce($base, base)",
            {"model": model_ending_in(connection, typed) or typed, "base": base},
        )
        if not found:
            near = nearest(typed, [row["model"] for row in connection.rows("SELECT DISTINCT model FROM models")])
            hint = f"Did you mean {' or '.join(near)}?" if near else "List its models: `query models`"
            raise AtlasError(f"{name} is not indexed in this atlas.", hint)
        rows += found
    if len(bases := sorted({str(row["base"]) for row in rows})) > 1:
        raise AtlasError(f"These models belong to several bases: {', '.join(bases)}.", "Choose one with `base`.")
    return rows


def base_named(connection: Connection, name: str) -> str:
    """The canonical id of a base, from any of its ids, its address, or the name after the owner if it is unique.

    Raises AtlasError if there is no such base.
    """
    rows = connection.rows("SELECT base, aliases FROM bases ORDER BY base")
    typed = without_address(name).partition("@")[0].lower()
    for spelled in dict.fromkeys((typed, typed.replace("___", "."))):  # the second is ModelScope's
        for row in rows:
            if spelled in {other.lower() for other in (row["base"], *row["aliases"])}:
                return str(row["base"])
        ending = [str(row["base"]) for row in rows if row["base"].lower().endswith(f"/{spelled}")]
        if len(ending) == 1:
            return ending[0]
    known = ", ".join(row["base"] for row in rows) or "none"
    near = nearest(typed, [row["base"] for row in rows])
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Add it: `build({name!r})`"
    raise AtlasError(f"{name!r} is not a base of this atlas; its bases: {known}.", hint)


def published_bases(connection: Connection, base: str | None = None) -> list[dict[str, Any]]:
    """Base, commit, model_type and rank of every published base, or only of ``base``."""
    return connection.rows(
        'SELECT base, "commit", model_type, rank FROM bases JOIN representations USING (base) '
        "WHERE representation = 'input' AND base = coalesce($base, base) ORDER BY base",
        {"base": base},
    )
