"""Compressed indexes: RaBitQ codes (Gao & Long, 2024) of 1 or 2 bits per number, and their measured recall.

Cosines are ordered by inner product. The codes have no centre and no inverted lists: one centre for all vectors keeps
their order better than one for each list. Of 100,000 vectors of 8,208 numbers with the statistics of real models
(scripts/scale), RaBitQ finds .97 of the ten nearest among 1,000 candidates in 32 ms, RaBitQ2 .985 among 200 in 75 ms.
Product quantisation, scalar quantisation and principal components with the same memory found .79 to .87.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.vectors.candidates import CANDIDATES, CompressedSearch, one_thread
from indexer.vectors.choice import COMPRESSED
from indexer.vectors.form import rabitq_bytes
from indexer.vectors.masks import Masks
from indexer.vectors.recall import ask, recall, sample
from indexer.vectors.segments import Part, blocks

# Models whose neighbours are searched to measure the recall: its standard error is about .005.
QUERIES = 256

# Largest training sample, in vectors and in bytes.
SAMPLE = 20_000
SAMPLE_BYTES = 512 << 20

# Memory limit in bytes, if the caller does not give one.
MEMORY = 1 << 30


@dataclass(frozen=True, eq=False)
class Compressed:
    """A trained and measured index.

    ``factory``: one of COMPRESSED. ``candidates``: how many are compared exactly for ten results. ``recall``: the
    recall@10 of ``queries`` models of the atlas.
    """

    index: Any
    factory: str
    candidates: int
    recall: float
    queries: int


def index_bytes(factory: str, length: int, count: int) -> int:
    """Bytes of a compressed index of ``count`` vectors of ``length`` numbers, with their ids."""
    return count * (rabitq_bytes(COMPRESSED[factory], length) + 8)


def check_size(factory: str, length: int, count: int, memory: int) -> None:
    """Raises AtlasError if ``count`` vectors are too few for a compressed index, or too many for ``memory`` bytes."""
    if count < 2:
        raise AtlasError(f"The index {factory} needs at least 2 vectors; there are {count}.", "Choose `exact`.")
    needed = index_bytes(factory, length, count)
    if needed > memory:
        raise AtlasError(
            f"The index {factory} takes {needed:,} bytes for {count:,} vectors; {memory:,} are allowed.",
            "Allow it more memory, or choose `exact`.",
        )


def compress(
    parts: Sequence[Part],
    factory: str,
    promised: float,
    seed: int = 0,
    memory: int = MEMORY,
    masks: Masks | None = None,
) -> Compressed:
    """Train an index on a sample of the vectors, add all of them, and measure its recall.

    ``factory``: one of COMPRESSED. The index proposes as few candidates as give the ``promised`` recall, or the most
    there are if none do. The same seed gives the same index.

    Raises AtlasError if there are too few vectors, or if the index needs more than ``memory`` bytes.
    """
    count, length = sum(len(part.ids) for part in parts), _length(parts)
    check_size(factory, length, count, memory)
    with _faiss_errors(factory):
        index = _trained(factory, parts, seed)
        for block in blocks(parts):
            index.add_with_ids(block.matrix, block.ids)
    return _measured(Compressed(index, factory, CANDIDATES[0], 0.0, 0), parts, promised, seed, masks)


def extend(
    compressed: Compressed,
    parts: Sequence[Part],
    all_parts: Sequence[Part],
    promised: float,
    seed: int = 0,
    masks: Masks | None = None,
) -> Compressed:
    """Add ``parts`` without training, and measure the recall over ``all_parts``, which include them.

    The index is changed in place. It must not be memory-mapped: FAISS would end the process. It never proposes fewer
    candidates than before.
    """
    with _faiss_errors(compressed.factory):
        for block in blocks(parts):
            compressed.index.add_with_ids(block.matrix, block.ids)
    return _measured(compressed, all_parts, promised, seed, masks)


def _trained(factory: str, parts: Sequence[Part], seed: int) -> Any:
    """An empty index, trained on a sample."""
    import faiss

    length = parts[0].length
    wanted = min(SAMPLE, SAMPLE_BYTES // (4 * length), sum(len(part.ids) for part in parts))
    drawn: NDArray[np.float32] = np.empty((wanted, length), dtype=np.float32)
    start = 0
    for block in sample(parts, wanted, seed):
        drawn[start : start + len(block)] = block.matrix
        start += len(block)
    index = faiss.index_factory(length, factory, faiss.METRIC_INNER_PRODUCT)
    with one_thread():
        index.train(drawn)
    return faiss.IndexIDMap(index)


def _measured(made: Compressed, parts: Sequence[Part], promised: float, seed: int, masks: Masks | None) -> Compressed:
    """The recall with the fewest candidates that give the ``promised`` one, else with the most."""
    questions = ask(parts, QUERIES, seed, masks)
    search = CompressedSearch(made.index, masks=masks)
    candidates, found = made.candidates, 0.0
    for candidates in [number for number in CANDIDATES if number >= made.candidates] or [made.candidates]:
        found = recall(questions, search.candidates, candidates, parts, masks)
        if found >= promised:
            break
    return replace(made, candidates=candidates, recall=found, queries=len(questions.ids))


def _length(parts: Sequence[Part]) -> int:
    if not sum(len(part.ids) for part in parts):
        raise AtlasError("There are no vectors to build an index from.")
    return parts[0].length


@contextmanager
def _faiss_errors(factory: str) -> Iterator[None]:
    """Raise errors of FAISS as one line."""
    try:
        yield
    except MemoryError as error:
        raise AtlasError(f"There is not enough memory for the index {factory}.", "Choose `exact`.") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split()).rpartition("Error: ")[2].rpartition("failed: ")[2][:200]
        raise AtlasError(f"FAISS cannot build the index {factory}: {reason}", "Choose `auto` or `exact`.") from error
