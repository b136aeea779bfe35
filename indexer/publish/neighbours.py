"""Exact nearest neighbours, tile by tile, ties by id: of some models, and whom they push out of others' lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import Masks
from indexer.vectors.search import TIE_DIGITS
from indexer.vectors.segments import OpenSegment, Vectors, rows_of_block

# The similarity matrix is computed in tiles of at most so many rows and columns: 32 MB. Of many rows each stored vector
# is widened from 16 bits once for all; with 167 instead of 2,044 that takes as long as the products.
ROWS = 2048
COLUMNS = 4096

# Bytes of stored vectors that are multiplied at once.
COPIED_BYTES = 32 << 20

# Pairs kept for each place of a list before those that fell out are dropped.
SLACK = 4

# A similarity below all there are: of a list that is not full.
_NOT_FULL = -2.0

# Similarities this near to each other may be ties after rounding.
_NEAR = 2 * 10.0**-TIE_DIGITS


@dataclass(frozen=True)
class Pairs:
    """Who is near whom: three columns of equal length."""

    owner: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    similarity: NDArray[np.float32]

    @classmethod
    def together(cls, parts: Iterable[Pairs]) -> Pairs:
        """All pairs of several."""
        parts = [cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)), *parts]
        return cls(
            np.concatenate([part.owner for part in parts]),
            np.concatenate([part.neighbour for part in parts]),
            np.concatenate([part.similarity for part in parts]),
        )

    def first(self, k: int) -> tuple[Pairs, NDArray[np.int32]]:
        """The k nearest of each owner, by owner and nearness, ties by id; and their ranks from 1.

        Equal vectors can differ in the last bits of their products, so similarities that agree to TIE_DIGITS
        digits are ties.
        """
        order = np.lexsort((self.neighbour, -np.round(self.similarity, TIE_DIGITS), self.owner))
        owner = self.owner[order]
        starts = np.searchsorted(owner, owner, side="left")
        rank = np.arange(1, len(order) + 1) - starts
        kept = order[rank <= k]
        return (
            Pairs(self.owner[kept], self.neighbour[kept], self.similarity[kept]),
            rank[rank <= k].astype(np.int32),
        )


@dataclass(frozen=True)
class Known:
    """Lists that exist: their owners (ascending), and how near the last entry of each full list is (else −inf)."""

    owners: NDArray[np.int64]
    last: NDArray[np.float32]


def rows_at_once(length: int) -> int:
    """Rows of the similarity matrix of vectors of ``length`` numbers that are computed at once."""
    return min(ROWS, rows_of_block(length))


class _Columns:
    """The columns of the similarity matrix: every stored vector of every segment."""

    def __init__(self, segments: Sequence[OpenSegment]) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.ids = np.concatenate([none, *(one.stored.ids for one in segments)])
        self.is_gone = np.concatenate(
            [none.astype(bool), *(np.isin(one.stored.ids, one.segment.removed) for one in segments)]
        )
        self.masks = segments[0].masks if segments else Masks.none()
        self.kinds = self.masks.kinds_of(self.ids)
        self._by_id = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._by_id]

    def places(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(rows, columns): for each row of ``ids`` every column of that model."""
        starts = np.searchsorted(self._sorted, ids, side="left")
        stops = np.searchsorted(self._sorted, ids, side="right")
        columns = [self._by_id[start:stop] for start, stop in zip(starts, stops, strict=True)]
        rows = np.repeat(np.arange(len(ids)), stops - starts)
        return rows, np.concatenate([np.zeros(0, dtype=np.intp), *columns])


def nearest(
    segments: Sequence[OpenSegment], asked: Iterable[Vectors], k: int, known: Known | None = None
) -> tuple[Pairs, Pairs]:
    """The k nearest others of every asked vector; and, for lists that are ``known``, the asked ones that enter them.

    The second are pairs (owner of a known list, asked model) not farther than the list's last entry; asked models
    have no known lists.
    """
    columns = _Columns(segments)
    edges = _edges(columns, known) if known is not None else None
    lists: list[Pairs] = []
    entering: list[Pairs] = []
    for block in asked:
        mine = _Lists(block.ids, k)
        for tile, similarities in _tiles(block, segments, columns):
            mine.take(similarities, columns.ids[tile])
            if edges is not None:
                rows, places = np.nonzero(similarities >= edges[tile])
                entering.append(Pairs(columns.ids[tile][places], block.ids[rows], similarities[rows, places]))
        lists.append(mine.pairs())
    return Pairs.together(lists), Pairs.together(entering)


def _edges(columns: _Columns, known: Known) -> NDArray[np.float32]:
    """(columns,) how near a model must be to enter that column's list; infinite where there is no list to enter."""
    edges = np.full(len(columns.ids), np.inf, dtype=np.float32)
    if len(known.owners):
        places = np.searchsorted(known.owners, columns.ids).clip(max=len(known.owners) - 1)
        is_known = (known.owners[places] == columns.ids) & ~columns.is_gone
        # Not −inf, which is what no neighbour at all looks like.
        edges[is_known] = np.maximum(known.last[places[is_known]] - _NEAR, _NOT_FULL)
    return edges


def _tiles(
    block: Vectors, segments: Sequence[OpenSegment], columns: _Columns
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Columns and the (block, these) similarities; −inf where a column counts no more or is the row itself."""
    length = block.matrix.shape[1]
    step = max(1, min(COLUMNS, COPIED_BYTES // (4 * length)))
    aligned = np.empty((step, length), dtype=np.float32)
    rows, places = columns.places(block.ids)
    by_kind = columns.masks.divisors_by_kind(block.matrix)
    before = 0
    for one in segments:
        for start in range(0, len(one.stored), step):
            stored = one.stored.matrix[start : start + step]
            tile = slice(before + start, before + start + len(stored))
            # In a FAISS file numbers lie at odd places: NumPy would copy the whole of them for each product.
            np.copyto(aligned[: len(stored)], stored)
            similarities = block.matrix @ aligned[: len(stored)].T
            if columns.masks.blocks:
                similarities /= by_kind[:, columns.kinds[tile]]
            np.clip(similarities, -1.0, 1.0, out=similarities)
            similarities[:, columns.is_gone[tile]] = -np.inf
            is_here = (places >= tile.start) & (places < tile.stop)
            similarities[rows[is_here], places[is_here] - tile.start] = -np.inf
            yield tile, similarities
        before += len(one.stored)


class _Lists:
    """The k nearest of each of the models ``ids`` (n,), of the tiles of similarities that were taken so far."""

    def __init__(self, ids: NDArray[np.int64], k: int) -> None:
        self._ids = ids
        self._k = k
        self._edges = np.full((len(ids), 1), _NOT_FULL, dtype=np.float32)
        self._found: list[Pairs] = []
        self._count = 0

    def take(self, similarities: NDArray[np.float32], others: NDArray[np.int64]) -> None:
        """(n, m) similarities with ``others`` (m,)."""
        count, edges = len(others), self._edges
        if self._k < count and (edges == _NOT_FULL).any():
            kth = np.partition(similarities, count - self._k, axis=1)[:, count - self._k, None]
            edges = np.maximum(edges, kth - _NEAR)
        rows, places = np.nonzero(similarities >= edges)
        self._found.append(Pairs(rows, others[places], similarities[rows, places]))
        self._count += len(rows)
        if self._count > SLACK * self._k * len(self._ids):
            self._drop()

    def _drop(self) -> None:
        """Keep the lists alone; from now on only what is as near as the last of a full one counts."""
        found, rank = Pairs.together(self._found).first(self._k)
        last = rank == self._k
        self._edges[found.owner[last], 0] = found.similarity[last] - _NEAR
        self._found, self._count = [found], len(rank)

    def pairs(self) -> Pairs:
        """The lists, by owner and nearness."""
        found, _ = Pairs.together(self._found).first(self._k)
        return Pairs(self._ids[found.owner], found.neighbour, found.similarity)
