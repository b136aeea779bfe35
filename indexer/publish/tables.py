"""The tables of the database that a publish works on: rows out, rows in, many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]


class Tables:
    """One open connection, inside a publish's transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        """Run a statement whose result nobody needs."""
        self.connection.execute(statement, dict(parameters) if isinstance(parameters, Mapping) else list(parameters))

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows: a result half read blocks the connection."""
        return self.connection.execute(statement, list(parameters)).fetchall()

    def first(self, statement: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row, None where there is none."""
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

    def delete(self, tables: Iterable[str], model_ids: Sequence[int] | NDArray[np.int64], condition: str = "") -> None:
        """Remove the rows of some models; ``condition`` narrows it ("AND …", trusted SQL)."""
        if not len(model_ids):
            return
        with self.listed(model_ids):
            for table in tables:
                self.connection.execute(
                    f"DELETE FROM {table} WHERE model_id IN (SELECT model_id FROM listed) {condition}"
                )

    def indexed(self, base: str) -> dict[str, tuple[int, str]]:
        """Of the indexed models of a base, by name: the id, and the name of the record."""
        rows = self.rows(
            "SELECT model, model_id, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed'", [base]
        )
        return {model: (model_id, key) for model, model_id, key in rows}

    def delete_of_base(self, table: str, base: str) -> None:
        """Remove the rows of a base's models, and those whose models are gone."""
        self.run(
            f"DELETE FROM {table} WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?) "
            "OR model_id NOT IN (SELECT model_id FROM fine_tunes)",
            [base],
        )

    def listed(self, model_ids: Sequence[int] | NDArray[np.int64]) -> _Listed:
        """For the length of a block a table ``listed(model_id)``."""
        return _Listed(self.connection, np.asarray(model_ids, dtype=np.int64))


class _Listed:
    def __init__(self, connection: duckdb.DuckDBPyConnection, model_ids: NDArray[np.int64]) -> None:
        self.connection, self.model_ids = connection, model_ids

    def __enter__(self) -> None:
        import pyarrow

        self.connection.register("listed", pyarrow.table({"model_id": self.model_ids}))

    def __exit__(self, *ending: object) -> None:
        self.connection.unregister("listed")
