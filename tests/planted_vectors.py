"""Vectors put into a database the way a publish does it, without records behind them."""

from __future__ import annotations

from pathlib import Path

import duckdb

from indexer.publish.neighbours import NeighbourTable
from indexer.publish.tables import Tables
from indexer.publish.vectors import Change, PublishedVectors, VectorWriter
from indexer.records.representation import representation_named
from indexer.vectors.choice import IndexChoice
from indexer.vectors.segments import Vectors


def publish_vectors(
    connection: duckdb.DuckDBPyConnection, folder: Path, base: str, name: str, vectors: Vectors, *,
    stale: tuple[int, ...] = (), choice: IndexChoice | None = None, neighbours: bool = True, said: list[str] | None = None,
) -> Change | None:  # fmt: skip
    """Add ``vectors`` (those of ``stale`` ids count no more), and bring the neighbours up to date."""
    tables = Tables(connection)
    representation = representation_named(name)
    published = PublishedVectors(
        folder, tables, base, representation, 8, (said if said is not None else []).append, choice
    )
    incoming = VectorWriter(folder, base, representation)
    for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
        incoming.add(model_id, vector)
    change = published.change(incoming, stale)
    if change is not None and neighbours:
        NeighbourTable(tables, base, name).change(change.index, change.added, change.removed)
    return change
