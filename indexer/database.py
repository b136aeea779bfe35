"""The published database, opened by the indexer itself: to look after it, not to ask questions of it."""

from __future__ import annotations

from typing import Any

from indexer.atlas import AtlasFolder
from indexer.opening.connection import Connection
from indexer.opening.reading import Reading


def reader(folder: AtlasFolder) -> Reading:
    """The published database, read-only.

    Raises AtlasError where it cannot be opened, is of another schema, or holds what schema.sql does not make.
    """
    return Reading(folder.database)


def rows_of(connection: Connection, statement: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """All rows of one of our own statements, as dicts."""
    cursor = connection.execute(statement, list(parameters))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
