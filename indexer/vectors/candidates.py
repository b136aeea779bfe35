"""Candidates from a compressed index: a small index proposes models that are then compared exactly.

A compressed index does not know which models were removed or filtered out: the caller drops invalid candidates and
asks for more. An id that was added twice does no harm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.machine import processors
from indexer.vectors.masks import Masks
from indexer.vectors.segments import id_selector

# Candidates that are compared exactly for ten results: 200, or 1,000 (4 ms more) if the requested recall needs it.
CANDIDATES = (200, 1000)

# Codes per thread for which starting it is worth the time.
CODES_A_THREAD = 4096


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

        If some models lack blocks, half of the candidates are models that share fewer blocks with the query than
        complete models do, and the rest are others. Ranked by the products of whole vectors nearly all candidates
        would be of the latter; ranked by similarity, which divides the error of a code by the number of shared blocks,
        nearly all of the former.
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


@contextmanager
def one_thread() -> Iterator[None]:
    """FAISS on one thread: many small steps take three times as long on two, and longer on a busy machine."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
