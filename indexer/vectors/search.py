"""Search: the nearest of all vectors that count, over every segment, with the compressed index where there is one.

Similarities are always exact. Without a compressed index every vector is compared; with one, it proposes
candidates, and only those are compared, together with the vectors it does not know yet.

FAISS compares whole vectors. Where a vector is blocks, of which some models changed only some, its inner products are
divided by the blocks that both have (``indexer.vectors.masks``): models for whom that number is the same are searched
together, each such class by itself, so that the nearest of all are among the nearest of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.candidates import one_thread
from indexer.vectors.masks import Masks, changed_blocks, divisors, shared_blocks
from indexer.vectors.segments import OpenSegment, Vectors, ascending, id_selector, joined, positions

if TYPE_CHECKING:
    from indexer.vectors.candidates import CompressedSearch

# More results than asked for, among which ties at the cut are settled by id.
TIES = 64

# Digits to which float32 similarities are told apart.
TIE_DIGITS = 6

# Comparing this many bytes of vectors is instant: 0.15 s for a gigabyte in memory, by one thread.
INSTANT_BYTES = 640 << 20

# A compressed index keeps its promise for so many results. For more of them in proportion more candidates are compared,
# but no more than so many for each: where 1,000 are compared for ten, 5,100 would be for 51. Of 100,000 models 856 of
# them, for 200, find .95 of the 51 nearest.
PROMISED_AT, EACH_MORE = 10, 16

# So many more candidates are asked for than are to be compared, as some of them, the asked model first, do not count.
SLACK = 1.02

Found = list[tuple[int, float]]

# Ids and their similarities.
_Compared = tuple[NDArray[np.int64], NDArray[np.float32]]


class VectorIndex:
    """All vectors of one base and representation. ``compressed`` knows those of segments marked so.

    ``masks``: which blocks each model changed.
    """

    def __init__(
        self,
        segments: Sequence[OpenSegment],
        length: int,
        compressed: CompressedSearch | None = None,
        masks: Masks | None = None,
    ) -> None:
        self.segments = segments
        self.length = length
        self.compressed = compressed
        self.masks = masks or Masks.none()

    def __len__(self) -> int:
        return sum(one.segment.count for one in self.segments)

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """Ids of all models that have a vector, ascending."""
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *(one.ids for one in self.segments)]))

    def vectors(self) -> Vectors:
        """A copy of all vectors."""
        return joined([one.vectors() for one in self.segments], self.length)

    def rows(self, ids: Sequence[int] | NDArray[np.int64]) -> Vectors:
        """A copy of the vectors of those of ``ids`` that have one."""
        wanted = ascending(ids)
        return joined([one.rows(wanted) for one in self.segments], self.length)

    def search(
        self, query: NDArray[np.float32], k: int, allowed: Sequence[int] | NDArray[np.int64] | None = None
    ) -> Found:
        """The k nearest (id, similarity) of one vector, ties by id; ``allowed`` restricts to these ids.

        k come back where k exist, whatever the index.
        """
        chosen = None if allowed is None else ascending(allowed)
        if k < 1 or not len(self) or (chosen is not None and not len(chosen)):
            return []
        if self.compressed is None or self._is_instant(chosen):
            return _nearest(self._exactly(self.segments, query, k, chosen), k)
        return _nearest(self._with_candidates(self.compressed, query, k, chosen), k)

    def shared(self, query: NDArray[np.float32], ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64] | None:
        """(n,) how many blocks one vector shares with each of these models; None where there are no blocks."""
        if not self.masks.blocks:
            return None
        mine = changed_blocks(query[None, :], self.masks.blocks)
        return shared_blocks(mine, self.masks.rows(np.asarray(ids, dtype=np.int64)))[0].astype(np.int64)

    def _is_instant(self, allowed: NDArray[np.int64] | None) -> bool:
        count = len(self) if allowed is None else min(len(allowed), len(self))
        each = self.segments[0].segment.file.number_bytes if self.segments else 4
        return each * count * self.length <= INSTANT_BYTES

    def _exactly(
        self, segments: Sequence[OpenSegment], query: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None
    ) -> list[_Compared]:
        """A few more than k of each segment, so that among equal similarities at the cut the smallest ids are kept."""
        counting = [one for one in segments if one.segment.count]
        found = []
        for divisor, kinds in self._classes(query):
            for one in counting:
                ids, products = _search(one, query, min(k + TIES, one.segment.count), allowed, kinds)
                found.append((ids, np.clip(products / divisor, -1.0, 1.0)))
        return found

    def _classes(self, query: NDArray[np.float32]) -> list[tuple[float, NDArray[np.bool_] | None]]:
        """Kinds of models by what their inner product with the query is divided by; None stands for all models."""
        masks = self.masks
        if not masks.blocks:
            return [(1.0, None)]
        mine = changed_blocks(query[None, :], masks.blocks)
        each = divisors(shared_blocks(mine, masks.kinds), masks.blocks)[0]
        found = np.unique(each)
        return [(float(one), None if len(found) == 1 else each == one) for one in found]

    def _compared(self, one: OpenSegment, query: NDArray[np.float32], ids: NDArray[np.int64]) -> _Compared:
        """Those of some models that count in a segment, by FAISS, which reads 16-bit numbers where they lie."""
        there = ids[np.isin(ids, one.stored.ids, assume_unique=True)]
        if not len(there):
            return there, np.zeros(0, np.float32)
        found, products = _search(one, query, len(there), there, None)
        return found, np.clip(products / self.masks.divisors(query[None, :], found)[0], -1.0, 1.0)

    def _with_candidates(
        self, compressed: CompressedSearch, query: NDArray[np.float32], k: int, allowed: NDArray[np.int64] | None
    ) -> list[_Compared]:
        """Candidates that count and are allowed, compared exactly; ever more of them until there are enough."""
        covered = [one for one in self.segments if one.segment.in_compressed]
        others = [one for one in self.segments if not one.segment.in_compressed]
        known = sum(one.segment.count for one in covered)
        share = 1.0 if allowed is None else len(allowed) / max(len(self), 1)
        more = max(0, k - PROMISED_AT)
        enough = compressed.fewest + min(compressed.fewest * more // PROMISED_AT, EACH_MORE * more)
        wanted = enough if allowed is None else math.ceil(SLACK * enough / min(share, 1.0)) + PROMISED_AT
        while wanted < known // 2:
            proposed = np.unique(compressed.candidates(query, wanted))
            if allowed is not None:
                proposed = allowed[positions(allowed, proposed)]
            compared = [self._compared(one, query, proposed) for one in covered]
            if sum(len(ids) for ids, _ in compared) >= enough:
                return compared + self._exactly(others, query, k, allowed)
            wanted *= 4
        return self._exactly(self.segments, query, k, allowed)


def _search(
    one: OpenSegment,
    query: NDArray[np.float32],
    count: int,
    allowed: NDArray[np.int64] | None,
    kinds: NDArray[np.bool_] | None,
) -> _Compared:
    """At most ``count`` by FAISS, of the models of some ``kinds`` (of its masks), with their inner products."""
    import faiss

    removed = one.segment.removed
    selector: Any = None
    if kinds is not None:
        ids = one.stored.ids if allowed is None else allowed
        ids = ids[kinds[one.masks.kinds_of(ids)]]
        ids = np.setdiff1d(ids, removed, assume_unique=True) if len(removed) else ids
        if not len(ids):
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        selector = id_selector(ids)
    elif allowed is not None:
        selector = faiss.IDSelectorBatch(np.setdiff1d(allowed, removed, assume_unique=True))
    elif len(removed):
        gone = faiss.IDSelectorBatch(removed)
        selector = faiss.IDSelectorNot(gone)
    parameters = faiss.SearchParameters(sel=selector) if selector is not None else None  # type: ignore[call-arg]
    with one_thread():
        (similarities,), (ids,) = one.index.search(query[None, :], count, params=parameters)
    return ids[ids >= 0], similarities[ids >= 0]  # −1 where there are fewer


def _nearest(found: Sequence[_Compared], k: int) -> Found:
    """The k nearest of all, ties by id."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(part for part, _ in found)])
    similarities = np.concatenate([np.zeros(0, dtype=np.float32), *(part for _, part in found)])
    order = np.lexsort((ids, -np.round(similarities.astype(np.float64), TIE_DIGITS)))[:k]
    return list(zip(ids[order].tolist(), similarities[order].tolist(), strict=True))
