"""The tables of the database that a publish works on: rows out, rows in, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]


class Tables:
    """The staged database of a publish. ``kept_ids``: if it starts empty, the old ids by model and base."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, kept_ids: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        self.connection = connection
        self.kept_ids = kept_ids or {}

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run a statement without a result."""
        self.connection.execute(statement, dict(parameters) if isinstance(parameters, Mapping) else list(parameters))

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows: an unfinished result blocks the connection."""
        return self.connection.execute(statement, list(parameters)).fetchall()

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row; None if there is none."""
        rows = self.rows(statement, parameters)
        return rows[0] if rows else None

    def arrays(self, statement: str, parameters: Sequence[Any] = ()) -> dict[str, NDArray[Any]]:
        """Columns of numbers by name."""
        return dict(self.connection.execute(statement, list(parameters)).fetchnumpy())

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Add rows that all have the same columns."""
        if rows:
            self.insert_columns(table, {name: [row[name] for row in rows] for name in rows[0]})

    def insert_columns(self, table: str, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Add rows given as columns of equal length."""
        import pyarrow

        if not len(next(iter(columns.values()))):
            return
        self.connection.register("incoming", pyarrow.table(dict(columns)))
        self.connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        self.connection.unregister("incoming")

    def update(self, table: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Set ``columns`` (with their types) of the models in ``rows``, where the values differ.

        ``rows`` have ``model_id`` and the columns.
        """
        types = "".join(f", {name} {kind}" for name, kind in columns.items())
        self.run(f"CREATE OR REPLACE TEMP TABLE updates (model_id INTEGER{types})")
        self.insert("updates", rows)
        values = ", ".join(f"{name} = updates.{name}" for name in columns)
        condition = " OR ".join(f"updates.{name} IS DISTINCT FROM {table}.{name}" for name in columns)
        self.run(
            f"UPDATE {table} SET {values} FROM updates WHERE updates.model_id = {table}.model_id AND ({condition})"
        )
        self.run("DROP TABLE updates")

    def delete(
        self,
        tables: Iterable[str],
        model_ids: Sequence[int] | NDArray[np.int64],
        only: Mapping[str, str] | None = None,
    ) -> None:
        """Delete the rows of some models; in a table of ``only``, just those that meet its condition."""
        if not len(model_ids):
            return
        with self.listed(model_ids):
            for table in tables:
                condition = f" AND {only[table]}" if only and table in only else ""
                self.connection.execute(
                    f"DELETE FROM {table} WHERE model_id IN (SELECT model_id FROM listed){condition}"
                )

    @contextmanager
    def listed(self, model_ids: Sequence[int] | NDArray[np.int64]) -> Iterator[None]:
        """Within the block there is a table ``listed(model_id)``."""
        import pyarrow

        self.connection.register("listed", pyarrow.table({"model_id": np.asarray(model_ids, dtype=np.int64)}))
        try:
            yield
        finally:
            self.connection.unregister("listed")
