"""Candidates from a compressed index: small enough for memory, it proposes what is then compared exactly.

A compressed index knows nothing of withdrawn models and filters: whoever asks it drops what does not count and asks
for more. So every FAISS type serves, and an id that was added twice is harmless.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.machine import processors
from indexer.vectors.masks import Masks, changed_blocks, divisors, shared_blocks
from indexer.vectors.segments import only

# Ids and about their inner products.
_Proposed = tuple[NDArray[np.int64], NDArray[np.float32]]

# Candidates compared exactly for ten results at least: 200, or 1,000 (4 ms more) where the promise asks for it.
CANDIDATES = (200, 1000)

# Where models lack blocks and an index cannot be asked for some of them alone, so many times more are proposed: a whole
# vector's product favours those that lack none. Of 100,000 models 2 finds .968 of the 10 nearest, 4 .977.
WIDER = 2

# A thread is worth its start for so many codes that are compared one after the other.
CODES_A_THREAD = 4096


class CompressedSearch:
    """Candidates from a compressed index; ``fewest`` are to be compared for ten results.

    It sets ``parameters`` in the index itself: one of these, one index.
    """

    def __init__(self, index: Any, parameters: str, fewest: int = CANDIDATES[0], masks: Masks | None = None) -> None:
        import faiss

        self.index = index
        self.fewest = fewest
        self.masks = masks or Masks.none()
        if parameters:
            faiss.ParameterSpace().set_index_parameters(index, parameters)  # type: ignore[arg-type]
        self._lists = faiss.try_extract_index_ivf(index)
        self._visited = int(self._lists.nprobe) if self._lists is not None else 0
        is_scanned = _is_scanned(_innermost(index))
        self._is_selective = self._lists is not None or is_scanned
        self._stretches = _stretches(index) if is_scanned else []

    def candidates(self, query: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """At most ``count`` ids for one vector (d,), none twice.

        Fewer where the index holds fewer, or a graph's walk ends. Where the inverted lists that are to be visited hold
        fewer, more of them are visited. Where some models lack blocks, half are of those that share fewer with the
        query, the rest of the others: by the products of whole vectors the others would be nearly all of them, and by
        likeness, which divides a code's error by fewer blocks, those that share fewer.
        """
        masks, everyone = self.masks, _Chosen(None, int(self.index.ntotal))
        lacking = bool(masks.blocks) and not masks.are_all_full
        if lacking and not self._is_selective:
            ids, products = self._proposed(query, WIDER * count, everyone)
            likeness = products / masks.divisors(query[None, :], ids)[0]
            return ids[np.argsort(-likeness, kind="stable")[:count]]
        parts = self._by_shared(query, everyone) if lacking else [everyone]
        wanted = _shared_out(count, [part.count for part in parts])
        return np.concatenate([self._of_part(query, *one) for one in zip(wanted, parts, strict=True)])

    def _of_part(self, query: NDArray[np.float32], count: int, part: _Chosen) -> NDArray[np.int64]:
        """At most ``count`` ids, nearest first; codes that are compared one after the other by several threads."""
        if not self._stretches:
            return self._proposed(query, count, part)[0]
        pieces = [part.within(stretch) for stretch in self._stretches]
        # Threads of this search: kept ones would be missing in a process that was forked from this one.
        with ThreadPoolExecutor(len(pieces)) as threads:
            found = list(threads.map(lambda piece: self._proposed(query, count, piece), pieces))
        ids, products = (np.concatenate(one) for one in zip(*found, strict=True))
        return ids[np.argsort(-products, kind="stable")[:count]]

    def _by_shared(self, query: NDArray[np.float32], everyone: _Chosen) -> list[_Chosen]:
        """All models in two parts: those that share as many blocks with the query as whole ones do, and the others."""
        import faiss

        masks = self.masks
        mine = changed_blocks(query[None, :], masks.blocks)
        shared = divisors(shared_blocks(mine, masks.kinds), masks.blocks)[0]
        fewer = masks.ids[shared[masks.places] < shared[0]]
        if not len(fewer):
            return [everyone]
        these = only(fewer)
        others = max(0, everyone.count - len(fewer))
        return [_Chosen(faiss.IDSelectorNot(these), others), _Chosen(these, len(fewer))]

    def _proposed(self, query: NDArray[np.float32], count: int, of: _Chosen) -> _Proposed:
        """Ids and about their inner products."""
        count = min(count, of.count)
        if count < 1:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        asked = np.ascontiguousarray(query[None, :], dtype=np.float32)
        # Of a part some may be in segments that the index does not know.
        enough = count if of.selector is None else min(count, -(-of.count // 2))
        for visited in self._numbers_of_lists(count, of.count):
            with one_thread():
                (products,), (proposed,) = self.index.search(asked, count, params=self._parameters(visited, of))
            products, proposed = products[proposed >= 0], proposed[proposed >= 0]
            if len(proposed) >= enough:
                break
        once = np.sort(np.unique(proposed, return_index=True)[1])
        return proposed[once], products[once]

    def _parameters(self, visited: int, of: _Chosen) -> Any:
        import faiss

        if self._lists is not None:
            return faiss.SearchParametersIVF(sel=of.selector, nprobe=visited)  # type: ignore[call-arg]
        return None if of.selector is None else faiss.SearchParameters(sel=of.selector)  # type: ignore[call-arg]

    def _numbers_of_lists(self, count: int, size: int) -> Iterator[int]:
        """Lists to visit for ``count`` of ``size`` vectors: as many as they fill on average, then ever more of them."""
        if self._lists is None:
            yield 0
            return
        filled = math.ceil(count * self._lists.nlist / max(1, size))
        visited = min(max(self._visited, filled), self._lists.nlist)
        while visited < self._lists.nlist:
            yield visited
            visited *= 2
        yield self._lists.nlist


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Some of the models, about how many; ``selector``: FAISS's, None for all."""

    selector: Any
    count: int

    def within(self, stretch: tuple[int, int]) -> _Chosen:
        """Those of them with an id from the first number to before the second: all of them, for all that is known."""
        import faiss

        some = faiss.IDSelectorRange(*stretch)
        both = some if self.selector is None else faiss.IDSelectorAnd(self.selector, some)
        return _Chosen(both, self.count)


def _shared_out(count: int, sizes: list[int]) -> list[int]:
    """``count`` in equal parts, of which none is larger than its size as long as another has room."""
    fair = [min(size, count // len(sizes)) for size in sizes]
    left = count - sum(fair)
    for place, size in enumerate(sizes):
        more = min(left, size - fair[place])
        fair[place] += more
        left -= more
    return fair


def _stretches(index: Any) -> list[tuple[int, int]]:
    """Ranges of ids that hold about equally many codes, one for each thread; none where one thread is enough."""
    import faiss

    threads = min(processors(), int(index.ntotal) // CODES_A_THREAD)
    if threads < 2:
        return []
    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    ids = faiss.vector_to_array(inner.id_map) if isinstance(inner, faiss.IndexIDMap) else np.arange(index.ntotal)
    edges = np.sort(ids)[np.arange(1, threads) * len(ids) // threads].tolist()
    return list(itertools.pairwise([np.iinfo(np.int64).min, *edges, np.iinfo(np.int64).max]))


def _innermost(index: Any) -> Any:
    """What compares codes, without the ids and projections around it."""
    import faiss

    inner = faiss.downcast_index(index)
    while isinstance(inner, faiss.IndexIDMap | faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    return inner


def _is_scanned(codes: Any) -> bool:
    """Whether it compares one code after the other, so that it can be asked for some models alone.

    Product quantizers and fast scans (FAISS 1.15) refuse to, and a walk through a graph may not come by all of them.
    """
    import faiss

    return isinstance(codes, faiss.IndexFlat | faiss.IndexScalarQuantizer | faiss.IndexRaBitQ)


@contextmanager
def one_thread() -> Iterator[None]:
    """FAISS on one thread: many small steps take three times as long on two, and far longer beside other work."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
