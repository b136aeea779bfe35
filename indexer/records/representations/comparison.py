"""Vectors opened as their representation compares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from indexer.records.representations.registry import REPRESENTATIONS
from indexer.vectors.published import read_published, with_output_sides

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection
    from indexer.vectors.search import VectorIndex


def as_compared(
    index: VectorIndex, connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str, root: Path
) -> VectorIndex:
    """The vectors of a base, with those by which the representation compares adapters.

    Raises AtlasError if their file is damaged.
    """
    known = REPRESENTATIONS.get(representation)
    if known is None or known.adapters_by is None:
        return index
    return with_output_sides(index, connection, read_published(connection, base, known.adapters_by), root)
