"""``python -m scripts.scale.steps STEP FOLDER COUNT``: one step in a process of its own; prints its figures as JSON.

FOLDER is an atlas and COUNT a number of questions, or (steps ``vectors_…``) FOLDER holds COUNT vectors and nothing else:
no listing, no records, no models.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from indexer.atlas import NEIGHBOURS, STORAGE_VERSION, schema_sql
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, VectorWriter
from indexer.records.representation import DEFAULT, representation_named
from indexer.vectors.centre import Centre
from indexer.vectors.published import Published, read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import blocks
from query import Atlas
from scripts.scale.likeness import as_published, centre_of_drawn
from scripts.scale.making import BASE, RANK
from scripts.scale.population import Floats, Population, draw_labels

WHERE = "downloads > 20"
QUERIES = 200
# Of vectors alone: the centre is that of the first models (more would hardly change it), and vectors drawn at once.
_CENTRED, _AT_ONCE = 8_192, 2_048


def ask(atlas: Atlas, question: str, count: int) -> dict[str, float]:
    """Time ``count`` questions about random models; the first answer, which opens the files, is not counted."""
    asked: dict[str, Callable[[str], object]] = {
        "stored": lambda model: atlas.similar(model, 10),
        "search": lambda model: atlas.similar(model, NEIGHBOURS + 1),  # more than the database stores
        "other_authors": lambda model: atlas.similar(model, 10, other_authors=True),
        "where": lambda model: atlas.similar(model, 10, where=WHERE),
    }
    rows = atlas.rows("SELECT model FROM models WHERE NOT is_copy ORDER BY hash(model) LIMIT ?", [count + 1])
    return _timed(asked[question], [row["model"] for row in rows])


def recall(atlas: Atlas, count: int) -> dict[str, float]:
    """Recall of searches for ``count`` random models."""
    index = atlas.index(atlas.base_named(None))
    chosen = np.random.default_rng(0).choice(index.ids, min(count, len(index)), replace=False)
    return {"recall_at_10": recall_of(index, index.rows(chosen).matrix)}


def recall_of(index: VectorIndex, queries: Floats, k: int = 10) -> float:
    """Share of the k nearest by brute force that a search finds; equal similarities count as equal."""
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for block in blocks((segment.vectors() for segment in index.segments), 8_192):
        likeness = queries @ block.matrix.T / index.masks.divisors(queries, block.ids)
        best = -np.partition(-np.hstack([best, likeness]), k - 1, axis=1)[:, :k]
    least = best.min(axis=1) - 1e-6
    found = [index.search(query, k) for query in queries]
    return float(np.mean([[one >= edge for _, one in row] for row, edge in zip(found, least, strict=True)]))


def vectors_written(root: Path, count: int) -> dict[str, float | str]:
    """Publish ``count`` vectors: seconds without drawing them, and bytes."""
    (population, centre), drawing = _population(count), 0.0
    representation = representation_named(DEFAULT)
    with duckdb.connect(
        str(root / "vectors.duckdb"), config={"storage_compatibility_version": STORAGE_VERSION}
    ) as connection:
        connection.execute(schema_sql())
        started = time.perf_counter()
        tables = Tables(connection)
        tables.run("BEGIN")
        stored = PublishedVectors(root, tables, BASE, representation, RANK, lambda line: print(line, file=sys.stderr))
        writer = VectorWriter(root, BASE, representation, centre.version, population.blocks)
        for start in range(0, count, _AT_ONCE):
            begun = time.perf_counter()
            stop = min(start + _AT_ONCE, count)
            vectors = population.vectors(start, stop)
            drawing += time.perf_counter() - begun
            is_adapter = population.labels.is_adapter[start:stop]
            writer.add_all(np.arange(start, stop), as_published(vectors, population.blocks, is_adapter, centre))
        stored.change(writer, [])
        tables.run("COMMIT")
    seconds = time.perf_counter() - started - drawing
    published = _published(root)
    figures: dict[str, float | str] = {
        "write_seconds": seconds,
        "vectors_bytes": sum(segment.file.size for segment in published.segments),
        "index_type": published.compressed.factory if published.compressed else "exact",
    }
    if published.compressed and published.compressed.file and published.compressed.recall is not None:
        figures |= {
            "compressed_bytes": published.compressed.file.size,
            "recall_at_publish": published.compressed.recall,
        }
    return figures


def vectors_searched(root: Path, count: int) -> dict[str, float]:
    """Time searches, and measure their recall, with vectors that are not among the ``count`` published ones."""
    population, centre = _population(count)
    drawn, is_adapter = population.vectors(count, count + 2 * QUERIES), population.labels.is_adapter[count:]
    queries = as_published(drawn, population.blocks, is_adapter, centre)
    queries = queries[queries.any(axis=1)][:QUERIES]
    index = _published(root).opened(root)
    found = _timed(lambda query: index.search(query, 10), [queries[0], *queries])
    return {f"search_{name}": value for name, value in found.items()} | {"recall_at_10": recall_of(index, queries)}


def _timed(ask: Callable[[Any], object], asked: Sequence[Any]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds; the first one is not counted."""
    seconds = []
    for one in asked:
        started = time.perf_counter()
        ask(one)
        seconds.append(time.perf_counter() - started)
    return {f"p{percent}": float(np.percentile(1000 * np.array(seconds[1:]), percent)) for percent in (50, 99)}


def _population(count: int) -> tuple[Population, Centre]:
    """The published models and those that are searched for; the centre as a publish computes it, without repeats."""
    labels = draw_labels(count + 2 * QUERIES, 0)
    population, first = Population(labels, 0), min(count, _CENTRED)
    is_original = labels.original[:first] == np.arange(first)
    return population, centre_of_drawn(population.vectors(0, first), population.blocks, labels, is_original)


def _published(root: Path) -> Published:
    with duckdb.connect(str(root / "vectors.duckdb"), read_only=True) as connection:
        found = read_published(connection, BASE, DEFAULT)
    assert found is not None
    return found


def main() -> None:
    step, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    alone = {"vectors_written": vectors_written, "vectors_searched": vectors_searched}
    if step in alone:
        print(json.dumps(alone[step](folder, count)))
        return
    with Atlas(folder) as atlas:
        print(json.dumps(recall(atlas, count) if step == "recall" else ask(atlas, step, count)))


if __name__ == "__main__":
    main()
