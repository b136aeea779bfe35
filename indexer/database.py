"""The published database, opened by the indexer itself: to look after it, not to ask questions of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from indexer.atlas import AtlasFolder, check_schema
from indexer.errors import AtlasError

if TYPE_CHECKING:
    import duckdb


def reader(folder: AtlasFolder, *, any_schema: bool = False) -> duckdb.DuckDBPyConnection:
    """The published database, read-only.

    Raises AtlasError where it cannot be opened or (unless ``any_schema`` will do) is of another schema.
    """
    import duckdb

    try:
        connection = duckdb.connect(str(folder.database), read_only=True)
    except duckdb.Error as error:
        raise AtlasError(
            f"{folder.database} cannot be opened: {str(error).splitlines()[0]}", "Run `index rebuild`."
        ) from error
    if not any_schema:
        check_schema(connection, folder.database)
    return connection


def rows_of(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: tuple[Any, ...] = ()
) -> list[dict[str, Any]]:
    """All rows of one of our own statements, as dicts."""
    cursor = connection.execute(statement, list(parameters))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
