"""Vectors only, as many as fit on a disk: written, added to, searched. No listing, no records, no table of models.

``python -m scripts.scale.million STEP ROOT COUNT SEED`` does one step in this process and prints its figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np

from indexer.atlas import STORAGE_VERSION, schema_sql
from indexer.publish.tables import Tables
from indexer.publish.vectors import PublishedVectors, VectorWriter
from indexer.records.representation import DEFAULT, representation_named
from indexer.vectors.centre import Centre
from indexer.vectors.published import Published, read_published
from scripts.scale.asking import recall_of
from scripts.scale.cards import BASE
from scripts.scale.centring import as_published, centre_of_drawn
from scripts.scale.child import run_module
from scripts.scale.figures import Figures, Value
from scripts.scale.labels import draw_labels
from scripts.scale.making import RANK
from scripts.scale.measuring import FEW, QUERIES, Say
from scripts.scale.population import Floats, Population

# Where a filter is tried, it lets one model in so many through.
FILTERED = 100

# The centre is that of the first so many models: of more of them it would hardly be another.
CENTRED = 8_192


def measure_vectors(root: Path, count: int, seed: int, say: Say) -> Figures:
    """Write so many vectors into ``root`` and measure what can be done with them."""
    figures = Figures()
    root.mkdir(parents=True, exist_ok=True)
    for name, what in STEPS.items():
        say(f"{count:,} vectors: {what}")
        ran = run_module("scripts.scale.million", name, str(root), str(count), str(seed))
        for key, value in ran.output.items():
            figures.put(key, value)
        if name in ("write", "add", "search"):
            figures.put(f"{name}_peak", ran.peak_bytes)
    return figures


STEPS = {
    "write": "writing them and their index",
    "add": f"{FEW} more",
    "search": "searching",
    "filtered": "searching among a few",
    "recall": "recall",
}


def step(name: str, root: Path, count: int, seed: int) -> dict[str, Value]:
    """The figures of one step."""
    if name in ("write", "add"):
        models = range(count) if name == "write" else range(count, count + FEW)
        seconds = _change(root, _population(count, seed), count, models)
        return {f"{name}_seconds": seconds} | (_sizes(root) if name == "write" else {})
    queries = _queries(count, seed)
    with _database(root) as tables:
        index = _published(tables).opened(root)
    if name == "recall":
        return {"recall_at_10": recall_of(index, queries)}
    allowed = index.ids[::FILTERED] if name == "filtered" else None
    index.search(queries[0], 10, allowed)
    milliseconds = []
    for query in queries:
        started = time.perf_counter()
        index.search(query, 10, allowed)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return {
        f"{name}_p50": float(np.percentile(milliseconds, 50)),
        f"{name}_p99": float(np.percentile(milliseconds, 99)),
    }


def _population(count: int, seed: int) -> Population:
    return Population(draw_labels(count + FEW + 2 * QUERIES, seed), seed)


def _queries(count: int, seed: int) -> Floats:
    """Vectors of models that are not there, copies of the base left out."""
    population = _population(count, seed)
    models = range(count + FEW, count + FEW + 2 * QUERIES)
    drawn = population.vectors(models.start, models.stop)
    vectors = _published_as(population, _centre(population, count), models, drawn)
    return vectors[vectors.any(axis=1)][:QUERIES]


def _centre(population: Population, count: int) -> Centre:
    """The centre of the first models, as a publish would make it: repeats have no vote."""
    first = min(count, CENTRED)
    labels = population.labels
    is_original = labels.original[:first] == np.arange(first)
    drawn = population.vectors(0, first)
    return centre_of_drawn(drawn, population.blocks, labels.is_adapter[:first], labels.author[:first], is_original)


def _published_as(population: Population, centre: Centre, models: range, drawn: Floats) -> Floats:
    is_adapter = population.labels.is_adapter[models.start : models.stop]
    return as_published(drawn, population.blocks, is_adapter, centre)


def _change(root: Path, population: Population, count: int, models: range) -> float:
    """Publish the vectors of more models; seconds of that alone, without drawing them and their centre."""
    centre = _centre(population, count)
    drawing = 0.0
    started = time.perf_counter()
    with _database(root) as tables:
        representation = representation_named(DEFAULT)
        tables.run("BEGIN")
        stored = PublishedVectors(
            root, tables, BASE, representation, RANK, lambda sentence: print(sentence, file=sys.stderr)
        )
        writer = VectorWriter(root, BASE, representation, centre.version, population.blocks)
        for start in range(models.start, models.stop, _STRETCH):
            begun = time.perf_counter()
            stretch = range(start, min(start + _STRETCH, models.stop))
            drawn = population.vectors(stretch.start, stretch.stop)
            drawing += time.perf_counter() - begun
            writer.add_all(np.arange(start, stretch.stop), _published_as(population, centre, stretch, drawn))
        stored.change(writer, [])
        tables.run("COMMIT")
    seconds = time.perf_counter() - started - drawing
    _collect(root)
    return seconds


def _collect(root: Path) -> None:
    """Remove segments that were merged into others, as a publish does."""
    with _database(root) as tables:
        named = {file.name for file in _published(tables).files}
    for path in root.glob("*.faiss"):
        if path.name not in named:
            path.unlink()


_STRETCH = 2_048


def _sizes(root: Path) -> dict[str, Value]:
    with _database(root) as tables:
        published = _published(tables)
    sizes: dict[str, Value] = {"vectors_bytes": sum(segment.file.size for segment in published.segments)}
    compressed = published.compressed
    if compressed is None or compressed.file is None:
        return sizes | {"index_type": "exact"}
    return sizes | {
        "compressed_bytes": compressed.file.size,
        "index_type": f"{compressed.factory} {compressed.parameters}".strip(),
        "recall_at_publish": compressed.recall,
    }


def _published(tables: Tables) -> Published:
    found = read_published(tables.connection, BASE, DEFAULT)
    assert found is not None
    return found


@contextmanager
def _database(root: Path) -> Iterator[Tables]:
    """The tables that name the vectors' files; those of models are there and stay empty."""
    path = root / "vectors.duckdb"
    is_new = not path.exists()
    with duckdb.connect(str(path), config={"storage_compatibility_version": STORAGE_VERSION}) as connection:
        if is_new:
            connection.execute(schema_sql())
        yield Tables(connection)


def main() -> None:
    name, root, count, seed = sys.argv[1:]
    print(json.dumps(step(name, Path(root), int(count), int(seed))))


if __name__ == "__main__":
    main()
