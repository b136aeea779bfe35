"""A connection whose every failure is ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from indexer.database.failures import failures_told

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


class Connection:
    """A DuckDB connection to the file at ``path``, of which nothing of DuckDB's own comes out but rows.

    It raises what :func:`indexer.database.failures.as_ours` makes of DuckDB's failures.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Connection:
        """Run a statement; its rows are fetched from this connection."""
        with failures_told(self.path):
            self._connection.execute(statement, parameters or None)
        return self

    def interrupt(self) -> None:
        """End what another thread runs on this connection: it raises there."""
        self._connection.interrupt()

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, None after the last."""
        with failures_told(self.path):
            return self._connection.fetchone()

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        """At most ``count`` rows more."""
        with failures_told(self.path):
            return self._connection.fetchmany(count)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        with failures_told(self.path):
            return self._connection.fetchall()

    def rows(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """All rows of one of our own statements, as dicts."""
        cursor = self.execute(statement, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def fetchnumpy(self) -> dict[str, Any]:
        """All rows that are left, as arrays by column."""
        with failures_told(self.path):
            return dict(self._connection.fetchnumpy())

    def batches(self, statement: str, rows: int) -> Iterator[pa.RecordBatch]:
        """The answer to one of our own statements as Arrow, ``rows`` at a time; at least one batch, maybe empty."""
        import pyarrow as pa

        with failures_told(self.path):
            found = self._connection.sql(statement)
            # DuckDB 1.4 calls it by another name.
            reader = (
                found.to_arrow_reader(rows) if hasattr(found, "to_arrow_reader") else found.fetch_arrow_reader(rows)
            )
            is_empty = True
            for batch in reader:
                is_empty = False
                yield batch
            if is_empty:
                yield pa.RecordBatch.from_pylist([], schema=reader.schema)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """Name and type of each column of the last statement."""
        with failures_told(self.path):
            return list(self._connection.description or ())

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
