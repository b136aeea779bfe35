"""Exact nearest neighbours, block by block, ties by id: of some models, and whom they push out of others' lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import Masks
from indexer.vectors.search import TIE_DIGITS
from indexer.vectors.segments import OpenSegment, Vectors

# Numbers of the similarity matrix held at once: 64 MB.
BLOCK = 1 << 24

# Bytes of stored vectors that are multiplied at once.
COPIED_BYTES = 32 << 20

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


def rows_at_once(segments: Sequence[OpenSegment]) -> int:
    """Rows of the similarity matrix that are held at once."""
    return max(1, BLOCK // max(1, sum(one.segment.file.count for one in segments)))


class _Columns:
    """The columns of the similarity matrix: every stored vector of every segment."""

    def __init__(self, segments: Sequence[OpenSegment]) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.ids = np.concatenate([none, *(one.stored.ids for one in segments)])
        self.is_gone = np.concatenate(
            [none.astype(bool), *(np.isin(one.stored.ids, one.segment.removed) for one in segments)]
        )
        self.masks = segments[0].masks if segments else Masks.none()
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
        similarities = _similarities(block, segments, columns)
        lists.append(_nearest_in(similarities, block.ids, columns.ids, k))
        if edges is not None:
            rows, places = np.nonzero(similarities >= edges)
            entering.append(Pairs(columns.ids[places], block.ids[rows], similarities[rows, places]))
    return Pairs.together(lists), Pairs.together(entering)


def _edges(columns: _Columns, known: Known) -> NDArray[np.float32]:
    """(columns,) how near a model must be to enter that column's list; infinite where there is no list to enter."""
    edges = np.full(len(columns.ids), np.inf, dtype=np.float32)
    if len(known.owners):
        places = np.searchsorted(known.owners, columns.ids).clip(max=len(known.owners) - 1)
        is_known = (known.owners[places] == columns.ids) & ~columns.is_gone
        # Not −inf, which is what no neighbour at all looks like.
        edges[is_known] = np.maximum(known.last[places[is_known]] - _NEAR, -2.0)
    return edges


def _similarities(block: Vectors, segments: Sequence[OpenSegment], columns: _Columns) -> NDArray[np.float32]:
    """(block, columns) similarities; −inf where a column counts no more or is the row itself."""
    similarities = np.empty((len(block), len(columns.ids)), dtype=np.float32)
    length = block.matrix.shape[1]
    step = max(1, COPIED_BYTES // (4 * length))
    aligned = np.empty((step, length), dtype=np.float32)
    place = 0
    for one in segments:
        for start in range(0, len(one.stored), step):
            stored = one.stored.matrix[start : start + step]
            # In a FAISS file numbers lie at odd places: NumPy would copy the whole of them for each product.
            np.copyto(aligned[: len(stored)], stored)
            np.matmul(block.matrix, aligned[: len(stored)].T, out=similarities[:, place : place + len(stored)])
            place += len(stored)
    if columns.masks.blocks:
        similarities /= columns.masks.divisors(block.matrix, columns.ids)
    np.clip(similarities, -1.0, 1.0, out=similarities)
    similarities[:, columns.is_gone] = -np.inf
    similarities[columns.places(block.ids)] = -np.inf
    return similarities


def _nearest_in(similarities: NDArray[np.float32], ids: NDArray[np.int64], columns: NDArray[np.int64], k: int) -> Pairs:
    count = similarities.shape[1]
    edge = np.full((len(ids), 1), -2.0, dtype=np.float32)
    if k < count:
        edge = np.maximum(edge, np.partition(similarities, count - k, axis=1)[:, count - k, None] - _NEAR)
    rows, places = np.nonzero(similarities >= edge)
    pairs, _ = Pairs(ids[rows], columns[places], similarities[rows, places]).first(k)
    return pairs
