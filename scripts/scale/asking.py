"""``python -m scripts.scale.asking ATLAS QUESTION COUNT``: ask an atlas one kind of question many times, in one process.

Prints {"seconds": […]}, or {"recall": …}; the first answer, which opens what it needs, does not count.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from indexer.atlas import NEIGHBOURS
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import blocks
from query import Atlas
from scripts.scale.population import Floats

# More models than the database holds neighbours of: these have to be searched for.
BEYOND = NEIGHBOURS + 1
WHERE = "downloads > 20"

Ask = Callable[[str], object]


def questions(atlas: Atlas) -> dict[str, Ask]:
    """What can be asked of one indexed model, by name."""
    return {
        "stored": lambda model: atlas.similar(model, 10),
        "search": lambda model: atlas.similar(model, BEYOND),
        "other_authors": lambda model: atlas.similar(model, 10, other_authors=True),
        "where": lambda model: atlas.similar(model, 10, where=WHERE),
    }


def ask(atlas: Atlas, question: str, count: int) -> list[float]:
    """Seconds of each of ``count`` questions about models chosen at random."""
    rows = atlas.rows("SELECT model FROM models WHERE NOT is_copy ORDER BY hash(model) LIMIT ?", [count + 1])
    once = questions(atlas)[question]
    seconds = []
    for row in rows:
        started = time.perf_counter()
        once(row["model"])
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def recall(atlas: Atlas, count: int) -> float:
    """Share of the 10 nearest by brute force that a search finds, over ``count`` models chosen at random."""
    base = atlas.base_named(None)
    index = atlas.index(base)
    chosen = np.random.default_rng(0).choice(index.ids, min(count, len(index)), replace=False)
    return recall_of(index, index.rows(chosen).matrix)


def recall_of(index: VectorIndex, queries: Floats, k: int = 10) -> float:
    """Share of the k nearest by brute force that a search finds; equal similarities count as equal."""
    least = np.sort(_exact_similarities(index, queries, k), axis=1)[:, 0] - 1e-6
    found = [index.search(query, k) for query in queries]
    return float(np.mean([[one >= edge for _, one in row] for row, edge in zip(found, least, strict=True)]))


def _exact_similarities(index: VectorIndex, queries: Floats, k: int, rows: int = 8_192) -> Floats:
    """(queries, k) largest similarities, every vector read, a block of rows at a time."""
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    for block in blocks((segment.vectors() for segment in index.segments), rows):
        likeness = queries @ block.matrix.T / index.masks.divisors(queries, block.ids)
        similarities = np.hstack([best, likeness])
        best = -np.partition(-similarities, k - 1, axis=1)[:, :k]
    return best


def main() -> None:
    path, question, count = sys.argv[1:]
    with Atlas(path) as atlas:
        if question == "recall":
            print(json.dumps({"recall": recall(atlas, int(count))}))
        else:
            print(json.dumps({"seconds": ask(atlas, question, int(count))}))


if __name__ == "__main__":
    main()
