"""Candidates from a compressed index: a small index proposes models that are then compared exactly.

A compressed index knows nothing of withdrawn models and filters: the caller drops invalid candidates and asks for more.
An id that was added twice is harmless.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.machine import processors
from indexer.vectors.masks import Masks, changed_blocks, divisors, shared_blocks
from indexer.vectors.segments import id_selector

# Ids and their approximate inner products.
_Proposed = tuple[NDArray[np.int64], NDArray[np.float32]]

# Candidates that are compared exactly for ten results: 200, or 1,000 (4 ms more) if the requested recall needs it.
CANDIDATES = (200, 1000)

# Codes for which another thread is worth starting.
CODES_A_THREAD = 4096


class CompressedSearch:
    """Proposes candidates from a compressed index. ``fewest``: how many are compared exactly for ten results."""

    def __init__(self, index: Any, fewest: int = CANDIDATES[0], masks: Masks | None = None) -> None:
        self.index = index
        self.fewest = fewest
        self.masks = masks or Masks.none()
        self._ranges = _id_ranges(index)

    def candidates(self, query: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """At most ``count`` distinct ids for one vector (d,); fewer if the index has fewer.

        If some models lack blocks, half of the candidates are models that share fewer blocks with the query, and the
        rest are others. Ranked by the products of whole vectors nearly all candidates would be of the latter; ranked
        by similarity, which divides the error of a code by the number of shared blocks, nearly all of the former.
        """
        parts = self._parts(query)
        wanted = _equal_shares(count, [part.count for part in parts])
        return np.concatenate([self._of_part(query, *one) for one in zip(wanted, parts, strict=True)])

    def _parts(self, query: NDArray[np.float32]) -> list[_Chosen]:
        """All models; or those that share as many blocks with the query as complete ones do, and the others."""
        import faiss

        masks, everyone = self.masks, _Chosen(None, int(self.index.ntotal))
        if not masks.blocks or masks.are_all_full:
            return [everyone]
        mine = changed_blocks(query[None, :], masks.blocks)
        shared = divisors(shared_blocks(mine, masks.kinds), masks.blocks)[0]
        fewer = masks.ids[shared[masks.places] < shared[0]]
        if not len(fewer):
            return [everyone]
        these = id_selector(fewer)
        others = max(0, everyone.count - len(fewer))
        return [_Chosen(faiss.IDSelectorNot(these), others), _Chosen(these, len(fewer))]

    def _of_part(self, query: NDArray[np.float32], count: int, part: _Chosen) -> NDArray[np.int64]:
        """At most ``count`` ids, nearest first; the codes are shared among threads."""
        if not self._ranges:
            return self._proposed(query, count, part)[0]
        pieces = [part.within(ids) for ids in self._ranges]
        # Threads of this search only: a kept pool would be missing in a process that was forked from this one.
        with ThreadPoolExecutor(len(pieces)) as threads:
            found = list(threads.map(lambda piece: self._proposed(query, count, piece), pieces))
        ids, products = (np.concatenate(one) for one in zip(*found, strict=True))
        return ids[np.argsort(-products, kind="stable")[:count]]

    def _proposed(self, query: NDArray[np.float32], count: int, chosen: _Chosen) -> _Proposed:
        import faiss

        count = min(count, chosen.count)
        if count < 1:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        asked = np.ascontiguousarray(query[None, :], dtype=np.float32)
        selector = chosen.selector
        parameters = None if selector is None else faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
        with one_thread():
            (products,), (proposed,) = self.index.search(asked, count, params=parameters)
        products, proposed = products[proposed >= 0], proposed[proposed >= 0]
        once = np.sort(np.unique(proposed, return_index=True)[1])
        return proposed[once], products[once]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Some of the models: a FAISS selector (None for all) and about how many they are."""

    selector: Any
    count: int

    def within(self, ids: tuple[int, int]) -> _Chosen:
        """Those with an id in a range; how many that is, is not known."""
        import faiss

        some = faiss.IDSelectorRange(*ids)
        both = some if self.selector is None else faiss.IDSelectorAnd(self.selector, some)
        return _Chosen(both, self.count)


def _equal_shares(count: int, sizes: list[int]) -> list[int]:
    """``count`` in equal shares; what exceeds a size goes to the others."""
    fair = [min(size, count // len(sizes)) for size in sizes]
    left = count - sum(fair)
    for place, size in enumerate(sizes):
        more = min(left, size - fair[place])
        fair[place] += more
        left -= more
    return fair


def _id_ranges(index: Any) -> list[tuple[int, int]]:
    """Ranges of ids with about equally many codes, one per thread; empty if one thread is enough."""
    import faiss

    threads = min(processors(), int(index.ntotal) // CODES_A_THREAD)
    if threads < 2:
        return []
    inner = faiss.downcast_index(index)
    assert isinstance(inner, faiss.IndexIDMap)
    ids = faiss.vector_to_array(inner.id_map)
    edges = np.sort(ids)[np.arange(1, threads) * len(ids) // threads].tolist()
    return list(itertools.pairwise([np.iinfo(np.int64).min, *edges, np.iinfo(np.int64).max]))


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
