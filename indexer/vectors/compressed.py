"""Compressed indexes: trained on a sample, filled, and searched as thoroughly as the promised recall asks for.

Cosines are ordered by inner product throughout. The first step of most is a projection on the leading directions of
the vectors' *uncentred* second moment, which of all projections keeps inner products best (Eckart & Young, 1936):
what is lost of <q, x> is the product of two remainders, near zero for strangers. Neither holds for the usual pair of
centred PCA and Euclidean distance, which prefers vectors that lost much: on 100,000 vectors at 128 numbers it finds
.95 of the ten nearest among 200 candidates, this .98; among 50 candidates .87 and .95.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.vectors.candidates import CANDIDATES, CompressedSearch, one_thread
from indexer.vectors.directions import leading_directions
from indexer.vectors.factories import POINTS_PER_CENTROID, SAMPLE_BYTES, Factory, read_factory
from indexer.vectors.masks import Masks
from indexer.vectors.recall import ask, recall, sample
from indexer.vectors.segments import Part, blocks

# Models that ask for their neighbours when recall is measured: its standard error is then about .005.
QUERIES = 256

# Vectors to train on; what they take after projection is bounded, too (SAMPLE_BYTES).
SAMPLE = 20_000

# Vectors for each direction that is to be found in them, at least.
FEWEST_EACH = 4

# Bytes of a compressed index, where the caller does not say.
MEMORY = 1 << 30

# Graph search: the candidates kept while walking, tried in this order.
WALKS = (256, 512, 1024, 2048)

# Codes that a graph search compares for each candidate that it keeps, about.
GRAPH_STEP = 16

# Inverted lists: visiting starts at this part of them and doubles until all are visited.
FIRST_VISITED = 32


@dataclass(frozen=True, eq=False)
class Compressed:
    """A trained and measured index.

    ``parameters``: for the search ("nprobe=32"; empty where the type has none). ``candidates``: how many are compared
    exactly for ten results. ``recall``: recall@10 of ``queries`` models of the atlas.
    """

    index: Any
    factory: str
    parameters: str
    candidates: int
    recall: float
    queries: int


def compress(
    parts: Sequence[Part],
    factory: str,
    promised: float,
    seed: int = 0,
    memory: int = MEMORY,
    masks: Masks | None = None,
) -> Compressed:
    """Train ``factory`` on a sample of the vectors, add them all, and tune the search until ``promised`` is kept.

    The recall is that of the first search parameters that keep the promise, or of the most thorough ones where none
    do. One seed gives one index, but for a graph built by several threads.

    Raises AtlasError for a factory string that is not understood, needs more vectors, or more than ``memory`` bytes.
    """
    count, length = sum(len(part.ids) for part in parts), _length(parts)
    asked = read_factory(factory, length)
    asked.check(count, memory)
    with _plainly(factory):
        index = _trained(asked, parts, seed)
        for block in blocks(parts):
            index.add_with_ids(block.matrix, block.ids)
    made = Compressed(index, factory, "", CANDIDATES[0], 0.0, 0)
    return _measured(made, asked, _settings(asked), parts, promised, seed, masks)


def extend(
    compressed: Compressed,
    parts: Sequence[Part],
    all_parts: Sequence[Part],
    promised: float,
    seed: int = 0,
    masks: Masks | None = None,
) -> Compressed:
    """Add ``parts`` without training, and measure the recall over ``all_parts``, in which they are included.

    The index is changed in place, so it must not be a mapped one: FAISS ends the process there. The search becomes
    more thorough where the promise asks for it, never less.
    """
    asked = read_factory(compressed.factory, _length(all_parts))
    with _plainly(compressed.factory):
        for block in blocks(parts):
            compressed.index.add_with_ids(block.matrix, block.ids)
    settings = _settings(asked)
    if compressed.parameters in settings:
        settings = settings[settings.index(compressed.parameters) :]
    return _measured(compressed, asked, settings, all_parts, promised, seed, masks)


def _trained(asked: Factory, parts: Sequence[Part], seed: int) -> Any:
    """The empty index; of its sample only projected vectors are held all at once."""
    import faiss

    fewest = POINTS_PER_CENTROID * asked.centroids
    wanted = max(fewest, min(SAMPLE, SAMPLE_BYTES // (4 * asked.kept)))
    if 4 * wanted * asked.kept > SAMPLE_BYTES:
        raise AtlasError(
            f"The index {asked.text} needs {fewest:,} vectors of {asked.kept:,} numbers to be trained on: too many.",
            "Take smaller numbers in it, or put PCA256 in front.",
        )
    directions = _directions(parts, asked, wanted, seed) if asked.principal else None
    drawn = np.empty((min(wanted, sum(len(part.ids) for part in parts)), asked.kept), dtype=np.float32)
    start = 0
    for block in sample(parts, wanted, seed):
        stop = start + len(block)
        drawn[start:stop] = block.matrix if directions is None else block.matrix @ directions.T
        start = stop
    index = faiss.index_factory(asked.kept, asked.rest, faiss.METRIC_INNER_PRODUCT)
    with one_thread():
        index.train(drawn)
    if directions is not None:
        index = faiss.IndexPreTransform(_projection(directions), index)
    return faiss.IndexIDMap(index)


def _directions(parts: Sequence[Part], asked: Factory, wanted: int, seed: int) -> NDArray[np.float32]:
    """(m, d) leading directions of the sample, or of less of it where it would be long to read again and again."""
    wanted = min(wanted, max(FEWEST_EACH * asked.principal, SAMPLE_BYTES // (4 * asked.length)))
    return leading_directions(
        lambda: (block.matrix for block in sample(parts, wanted, seed)), asked.length, asked.principal, seed
    )


def _projection(directions: NDArray[np.float32]) -> Any:
    import faiss

    projection = faiss.LinearTransform(directions.shape[1], directions.shape[0])
    faiss.copy_array_to_vector(directions.ravel(), projection.A)
    projection.is_trained = True
    return projection


def _settings(asked: Factory) -> list[str]:
    """Search parameters from the quickest to the most thorough."""
    if asked.graph:
        return [f"efSearch={kept}" for kept in WALKS]
    visited = max(1, asked.lists // FIRST_VISITED)
    settings = []
    while visited < asked.lists:
        settings.append(f"nprobe={visited}")
        visited *= 2
    return [*settings, f"nprobe={asked.lists}"] if asked.lists else [""]


def _measured(
    made: Compressed,
    asked: Factory,
    settings: Sequence[str],
    parts: Sequence[Part],
    promised: float,
    seed: int,
    masks: Masks | None,
) -> Compressed:
    """Its recall with those candidates and settings that keep the promise and look at fewest bytes.

    That with the most of both where nothing keeps it. What was stored before is never made less thorough.
    """
    questions = ask(parts, QUERIES, seed, masks)

    def share(parameters: str, candidates: int) -> float:
        search = CompressedSearch(made.index, parameters, masks=masks)
        return recall(questions, search.candidates, candidates, parts, masks)

    numbers = [number for number in CANDIDATES if number >= made.candidates] or [made.candidates]
    kept: list[tuple[float, str, int, float]] = []
    for candidates in numbers:
        found = share(settings[-1], candidates)
        if found < promised and candidates != numbers[-1]:
            continue
        parameters, found = _quickest(settings, found, promised, partial(share, candidates=candidates))
        cost = _bytes_looked_at(asked, parameters, candidates, int(made.index.ntotal))
        kept.append((cost, parameters, candidates, found))
    _, parameters, candidates, found = min(kept)
    return replace(made, parameters=parameters, candidates=candidates, recall=found, queries=len(questions.ids))


def _quickest(
    settings: Sequence[str], thorough: float, promised: float, share: Callable[[str], float]
) -> tuple[str, float]:
    """The first of ``settings`` whose recall is ``promised``, and that; recall grows along them to ``thorough``."""
    low, high, found = 0, len(settings) - 1, thorough
    while thorough >= promised and low < high:
        middle = (low + high) // 2
        less = share(settings[middle])
        if less >= promised:
            high, found = middle, less
        else:
            low = middle + 1
    return settings[high], found


def _bytes_looked_at(asked: Factory, parameters: str, candidates: int, count: int) -> float:
    """What one search reads: the codes that it visits, and its candidates' vectors, of 16-bit numbers."""
    number = int(parameters.partition("=")[2] or 1)
    if asked.lists:
        visited = count * number / asked.lists
    else:
        visited = number * GRAPH_STEP if asked.graph else count
    return visited * asked.bytes_each + 2 * candidates * asked.length


def _length(parts: Sequence[Part]) -> int:
    if not sum(len(part.ids) for part in parts):
        raise AtlasError("There are no vectors to make an index of.")
    return parts[0].length


@contextmanager
def _plainly(factory: str) -> Iterator[None]:
    """What FAISS throws, as one line."""
    try:
        yield
    except MemoryError as error:
        raise AtlasError(f"There is not enough memory for the index {factory}.", "Take a smaller one.") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split()).rpartition("Error: ")[2].rpartition("failed: ")[2][:200]
        raise AtlasError(f"FAISS cannot build the index {factory}: {reason}", "Take `auto`, or another.") from error
