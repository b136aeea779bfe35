"""Compressed indexes: RaBitQ codes (Gao & Long, 2024) of 1 or 2 bits per number, and their measured recall.

A compressed index proposes candidates, which are then compared exactly. It does not know which models were removed or
filtered out: the caller drops invalid candidates and asks for more. An id that was added twice does no harm.

Cosines are ordered by inner product. The codes have no centre and no inverted lists: one centre for all vectors keeps
their order better than one for each list. Of 100,000 vectors of 8,208 numbers with the statistics of real models
(studies/scale), RaBitQ finds .97 of the ten nearest among 1,000 candidates in 32 ms, RaBitQ2 .985 among 200 in 75 ms.
Product quantisation, scalar quantisation and principal components with the same memory found .79 to .87.

Recall@10 is that of candidates followed by exact comparison, measured by brute force over every vector, and by score
instead of id: if the tenth neighbour of a model ties with the eleventh, either is right (Aumüller, Bernhardsson &
Faithfull, 2017, "ANN-Benchmarks").
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.machine import processors
from indexer.vectors.choice import COMPRESSED
from indexer.vectors.files import VectorFile, rabitq_bytes
from indexer.vectors.masks import Masks
from indexer.vectors.segments import Vectors, blocks, id_selector, one_thread, positions, rows_of_block

# Candidates that are compared exactly for ten results: 200, or 1,000 (4 ms more) if the requested recall needs it.
CANDIDATES = (200, 1000)

# Codes per thread for which starting it is worth the time.
CODES_A_THREAD = 4096

# Models whose neighbours are searched to measure the recall: its standard error is about .005.
QUERIES = 256

# The number of nearest models that recall counts.
_AT = 10

# Cosines this close to each other are equal in float32.
_TIE = 2e-6

# Largest training sample, in vectors and in bytes.
SAMPLE = 20_000
_SAMPLE_BYTES = 512 << 20

# Memory limit in bytes, if the caller does not give one.
MEMORY = 1 << 30


@dataclass(frozen=True, eq=False)
class Compressed:
    """A compressed index and its measured recall.

    ``factory``: one of COMPRESSED. ``candidates``: how many are compared exactly for ten results. ``recall``: the
    recall@10 of ``queries`` models. ``trained_on``: the number of models when it was trained; ``vectors``: the number
    of codes in it. ``file``: None if it is not published. ``index``: that of FAISS, if it is in memory.
    """

    factory: str
    trained_on: int
    candidates: int
    recall: float = 0.0
    queries: int = 0
    vectors: int = 0
    file: VectorFile | None = None
    index: Any = None


def index_bytes(factory: str, length: int, count: int) -> int:
    """Bytes of a compressed index of ``count`` vectors of ``length`` numbers, with their ids."""
    return count * (rabitq_bytes(COMPRESSED[factory], length) + 8)


def compress(
    parts: Sequence[Vectors],
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
    import faiss

    count = sum(len(part) for part in parts)
    if count < 2:
        raise AtlasError(f"The index {factory} needs at least 2 vectors; there are {count}.", "Choose `exact`.")
    length = parts[0].length
    needed = index_bytes(factory, length, count)
    if needed > memory:
        raise AtlasError(
            f"The index {factory} takes {needed:,} bytes for {count:,} vectors; {memory:,} are allowed.",
            "Allow it more memory, or choose `exact`.",
        )
    with _faiss_errors(factory):
        drawn: NDArray[np.float32] = np.empty((min(SAMPLE, _SAMPLE_BYTES // (4 * length), count), length), np.float32)
        start = 0
        for block in sample(parts, len(drawn), seed):
            drawn[start : start + len(block)] = block.matrix
            start += len(block)
        index = faiss.index_factory(length, factory, faiss.METRIC_INNER_PRODUCT)
        with one_thread():
            index.train(drawn)
        del drawn
        with_ids = faiss.IndexIDMap(index)
        for block in blocks(parts):
            with_ids.add_with_ids(block.matrix, block.ids)
    return _measured(Compressed(factory, count, CANDIDATES[0], index=with_ids), parts, promised, seed, masks)


def extend(
    compressed: Compressed,
    parts: Sequence[Vectors],
    all_parts: Sequence[Vectors],
    promised: float,
    masks: Masks | None = None,
) -> Compressed:
    """Add ``parts`` without training, and measure the recall over ``all_parts``, which include them.

    The index is changed in place. It must not be memory-mapped: FAISS would end the process. It never proposes fewer
    candidates than before.
    """
    with _faiss_errors(compressed.factory):
        for block in blocks(parts):
            compressed.index.add_with_ids(block.matrix, block.ids)
    return _measured(compressed, all_parts, promised, seed=0, masks=masks)


def _measured(
    made: Compressed, parts: Sequence[Vectors], promised: float, seed: int, masks: Masks | None
) -> Compressed:
    """The recall with the fewest candidates that give the ``promised`` one, else with the most."""
    questions = draw_questions(parts, QUERIES, seed, masks)
    search = CompressedSearch(made.index, masks=masks)
    candidates, found = made.candidates, 0.0
    for candidates in [number for number in CANDIDATES if number >= made.candidates] or [made.candidates]:
        found = recall(questions, search.candidates, candidates, parts, masks)
        if found >= promised:
            break
    return replace(
        made, candidates=candidates, recall=found, queries=len(questions.ids), vectors=int(made.index.ntotal)
    )


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


@dataclass(frozen=True, eq=False)
class Questions:
    """Models whose nearest neighbours are known: ``ids`` (q,) and ``vectors`` (q, d).

    ``last`` (q,): the similarity of the last of the ``at`` nearest other models.
    """

    ids: NDArray[np.int64]
    vectors: NDArray[np.float32]
    last: NDArray[np.float32]
    at: int


def sample(parts: Sequence[Vectors], count: int, seed: int) -> Iterator[Vectors]:
    """At most ``count`` vectors drawn without replacement, as copies of a block at a time, in the order of parts."""
    total = sum(len(part) for part in parts)
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))
    start = 0
    for part in parts:
        here = drawn[(drawn >= start) & (drawn < start + len(part))] - start
        rows = rows_of_block(part.length)
        for first in range(0, len(here), rows):
            chosen = here[first : first + rows]
            yield Vectors(part.ids[chosen], part.copied(chosen))
        start += len(part)


def draw_questions(parts: Sequence[Vectors], count: int, seed: int, masks: Masks | None = None) -> Questions:
    """Draw at most ``count`` questions from the vectors and answer them exactly, in blocks (no id twice in parts)."""
    drawn = list(sample(parts, count, seed))
    ids = np.concatenate([block.ids for block in drawn])
    vectors = np.concatenate([block.matrix for block in drawn])
    at = min(_AT, sum(len(part) for part in parts) - 1)
    nearest = np.full((len(ids), at), -np.inf, dtype=np.float32)
    for block in blocks(parts) if at else ():
        cosines = vectors @ block.matrix.T
        if masks is not None:
            cosines /= masks.divisors(vectors, block.ids)
        cosines[ids[:, None] == block.ids[None, :]] = -np.inf
        both = np.concatenate([nearest, cosines], axis=1)
        nearest = np.partition(both, -at, axis=1)[:, -at:]
    return Questions(ids, vectors, nearest.min(axis=1) if at else np.zeros(len(ids), np.float32), at)


def recall(
    questions: Questions,
    propose: Callable[[NDArray[np.float32], int], NDArray[np.int64]],
    candidates: int,
    parts: Sequence[Vectors],
    masks: Masks | None = None,
) -> float:
    """Share of the nearest that is among ``candidates`` proposed ones, compared exactly; 0 for a single model.

    A proposed id that no part contains is not replaced. A search would ask for more, so its recall is at least this.
    """
    if not questions.at:
        return 0.0
    found = 0
    for model_id, vector, last in zip(questions.ids, questions.vectors, questions.last, strict=True):
        proposed = propose(vector, candidates + 1)
        others = np.sort(proposed[proposed != model_id][:candidates])
        places = [positions(part.ids, others) for part in parts]
        cosines = np.concatenate([part.copied(here) @ vector for part, here in zip(parts, places, strict=True)])
        if masks is not None:
            known = np.concatenate([part.ids[here] for part, here in zip(parts, places, strict=True)])
            cosines /= masks.divisors(vector[None, :], known)[0]
        found += min(int((cosines >= last - _TIE).sum()), questions.at)
    return found / (questions.at * len(questions.ids))


class CompressedSearch:
    """Proposes candidates from a compressed index. ``fewest``: how many are compared exactly for ten results."""

    def __init__(self, index: Any, fewest: int = CANDIDATES[0], masks: Masks | None = None) -> None:
        import faiss

        self.index = index
        self.fewest = fewest
        self.masks = masks or Masks.none()
        # Ranges of ids with about equally many codes, one per thread; empty if one thread is enough.
        self._ranges: list[tuple[int, int]] = []
        threads = min(processors(), int(index.ntotal) // CODES_A_THREAD)
        if threads > 1:
            inner = faiss.downcast_index(index)
            assert isinstance(inner, faiss.IndexIDMap)
            ids = faiss.vector_to_array(inner.id_map)
            edges = np.sort(ids)[np.arange(1, threads) * len(ids) // threads].tolist()
            self._ranges = list(itertools.pairwise([np.iinfo(np.int64).min, *edges, np.iinfo(np.int64).max]))

    def candidates(self, query: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """At most ``count`` distinct ids for one vector (d,); fewer if the index has fewer.

        If some models lack blocks, half of the candidates are taken from the models that share fewer blocks with the
        query than complete models do, and half from the others. A single ranking would propose almost only one kind:
        by the products of whole vectors the complete models, and by similarity the others, because the error of a
        code is divided by the number of shared blocks too.
        """
        import faiss

        masks, total = self.masks, int(self.index.ntotal)
        fewer = np.zeros(0, dtype=np.int64)
        if masks.blocks and not masks.are_all_full:
            shared = masks.divisors_by_kind(query[None, :])[0]
            fewer = masks.ids[shared[masks.places] < shared[0]]
        if not len(fewer):
            return self._nearest(query, min(count, total), None)
        those = id_selector(fewer)
        others = max(0, total - len(fewer))
        # Half each; if one part has fewer models, the rest come from the other.
        of_fewer = min(len(fewer), max(count // 2, count - others))
        of_others = min(others, count - of_fewer)
        return np.concatenate(
            [
                self._nearest(query, of_others, faiss.IDSelectorNot(those)),
                self._nearest(query, of_fewer, those),
            ]
        )

    def _nearest(self, query: NDArray[np.float32], count: int, selector: Any) -> NDArray[np.int64]:
        """At most ``count`` of the selected ids (None: of all), nearest first."""
        import faiss

        if not self._ranges:
            return self._proposed(query, count, selector)[0]

        def of_range(ids: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
            within = faiss.IDSelectorRange(*ids)
            return self._proposed(query, count, within if selector is None else faiss.IDSelectorAnd(selector, within))

        # The threads end with the search: a process forked from this one could not use a pool that is kept.
        with ThreadPoolExecutor(len(self._ranges)) as threads:
            found = list(threads.map(of_range, self._ranges))
        ids, products = (np.concatenate(one) for one in zip(*found, strict=True))
        return ids[np.argsort(-products, kind="stable")[:count]]

    def _proposed(
        self, query: NDArray[np.float32], count: int, selector: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Distinct ids and their approximate inner products."""
        import faiss

        if count < 1:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        asked = np.ascontiguousarray(query[None, :], dtype=np.float32)
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        with one_thread():
            (products,), (proposed,) = self.index.search(asked, count, params=parameters)
        products, proposed = products[proposed >= 0], proposed[proposed >= 0]
        once = np.sort(np.unique(proposed, return_index=True)[1])
        return proposed[once], products[once]
