"""The table neighbours: exact nearest neighbours, of which a publish updates only the lists that change.

Similarities are computed in tiles, with ties broken by id; for new models also which existing lists they enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import NEIGHBOURS
from indexer.publish.tables import Tables
from indexer.vectors.masks import Masks
from indexer.vectors.search import TIE_DIGITS, VectorIndex
from indexer.vectors.segments import OpenSegment, Vectors, blocks, rows_of_block

# If the share of new models is larger, all lists are recomputed: most of them change anyway.
MOST_NEW = 0.5

# Largest tile of the similarity matrix: 32 MB. With many rows a stored vector is widened from 16 bits only once for
# all of them; with 167 rows instead of 2,044 the widening takes as long as the products.
ROWS = 2048
COLUMNS = 4096

# Bytes of stored vectors that are multiplied at a time.
COPIED_BYTES = 32 << 20

# Candidate pairs per list entry that are collected before the worse ones are dropped.
SLACK = 4

# Below every similarity: the last entry of a list that is not full.
_NOT_FULL = -2.0

# Similarities this close to each other may be ties after rounding.
_NEAR = 2 * 10.0**-TIE_DIGITS

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Pairs of similar models: three columns of equal length."""

    owner: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    similarity: NDArray[np.float32]

    @classmethod
    def together(cls, parts: Iterable[Pairs]) -> Pairs:
        """Concatenate the pairs of all parts."""
        parts = [cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)), *parts]
        return cls(
            np.concatenate([part.owner for part in parts]),
            np.concatenate([part.neighbour for part in parts]),
            np.concatenate([part.similarity for part in parts]),
        )

    def first(self, k: int) -> tuple[Pairs, NDArray[np.int32]]:
        """The k nearest of each owner, sorted by owner and rank with ties broken by id; and the ranks, from 1.

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
    segments: Sequence[OpenSegment],
    asked: Iterable[Vectors],
    k: int,
    known: tuple[Ids, NDArray[np.float32]] | None = None,
) -> tuple[Pairs, Pairs]:
    """The k nearest neighbours of every asked vector; and for ``known`` lists, the asked models that enter them.

    ``known``: owners of existing lists (ascending), and the similarity of the last entry, −2 if the list is not full.
    The models that enter them are pairs (owner, asked model) at least as similar. Asked models have no known lists.
    """
    columns = _Columns(segments)
    edges = None
    if known is not None:
        # (columns,) the similarity needed to enter the list of each column; infinite if there is no known list.
        owners, last = known
        edges = np.full(len(columns.ids), np.inf, dtype=np.float32)
        if len(owners):
            places = np.searchsorted(owners, columns.ids).clip(max=len(owners) - 1)
            is_known = (owners[places] == columns.ids) & ~columns.is_gone
            # Not −inf, which marks pairs that are not neighbours.
            edges[is_known] = np.maximum(last[places[is_known]] - _NEAR, _NOT_FULL)
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


def _tiles(
    block: Vectors, segments: Sequence[OpenSegment], columns: _Columns
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Columns and the (block, columns) similarities, −inf for removed vectors and for a model with itself."""
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
            # The numbers in a FAISS file are not aligned: NumPy would copy all of them for each product.
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
    """The k nearest of each of the models ``ids`` (n,) among the tiles seen so far."""

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
            # Keep the k nearest; from now on pairs must be as similar as the last entry of a full list.
            found, rank = Pairs.together(self._found).first(self._k)
            last = rank == self._k
            self._edges[found.owner[last], 0] = found.similarity[last] - _NEAR
            self._found, self._count = [found], len(rank)

    def pairs(self) -> Pairs:
        """The lists, sorted by owner and rank."""
        found, _ = Pairs.together(self._found).first(self._k)
        return Pairs(self._ids[found.owner], found.neighbour, found.similarity)


class NeighbourTable:
    """The lists of one base and representation."""

    def __init__(self, tables: Tables, base: str, representation: str) -> None:
        self.tables = tables
        self.base = base
        self.representation = representation

    def change(self, index: VectorIndex, added: Ids, removed: Ids) -> None:
        """Update the lists to the vectors in ``index``.

        ``added``: models with a new vector. ``removed``: models whose former vector is no longer valid (a replaced
        vector is both). Their own lists are rewritten, and so are lists that name a removed model or that an added
        model enters; no others.
        """
        step = min(ROWS, rows_of_block(index.length))
        if len(added) > MOST_NEW * len(index):
            self.tables.run(
                "DELETE FROM neighbours WHERE representation = ? AND model_id IN "
                "(SELECT model_id FROM fine_tunes WHERE base = ?)",
                [self.representation, self.base],
            )
            # Block by block, so that memory stays bounded.
            for block in blocks((one.vectors() for one in index.segments), step):
                self._insert(nearest(index.segments, [block], NEIGHBOURS)[0])
            return
        with self.tables.listed(removed):
            naming = self.tables.arrays(
                "SELECT DISTINCT model_id::BIGINT AS model_id FROM neighbours WHERE representation = ? "
                "AND neighbour_id IN (SELECT model_id FROM listed)",
                [self.representation],
            )["model_id"]
        again = np.union1d(added, np.setdiff1d(naming, removed))
        # The lists that are not recomputed. A model without neighbours has no rows yet.
        others = self.tables.arrays(
            "SELECT owners.model_id::BIGINT AS model_id, CASE WHEN count(similarity) < ? THEN -2 "
            "ELSE min(similarity) END::FLOAT AS last FROM (SELECT model_id FROM fine_tunes WHERE base = ?) AS owners "
            "LEFT JOIN (FROM neighbours WHERE representation = ?) AS lists USING (model_id) "
            "GROUP BY ALL ORDER BY ALL",
            [NEIGHBOURS, self.base, self.representation],
        )
        stays = np.isin(others["model_id"], again, invert=True)
        lists, entering = [], []
        for chosen, known in (
            (added, (others["model_id"][stays], others["last"][stays])),
            (np.setdiff1d(again, added), None),
        ):
            asked = (index.rows(chosen[start : start + step]) for start in range(0, len(chosen), step))
            found, pushed = nearest(index.segments, asked, NEIGHBOURS, known)
            lists.append(found)
            entering.append(pushed)
        changed = self._with_entering(Pairs.together(entering))
        with self.tables.listed(np.unique(np.concatenate([again, removed, changed.owner]))):
            self.tables.run(
                "DELETE FROM neighbours WHERE representation = ? AND model_id IN (SELECT model_id FROM listed)",
                [self.representation],
            )
        self._insert(Pairs.together([*lists, changed]))

    def _with_entering(self, entering: Pairs) -> Pairs:
        """The complete new lists that the pairs enter (a tie with the last entry may not enter)."""
        if not len(entering.owner):
            return entering
        with self.tables.listed(np.unique(entering.owner)):
            old = self.tables.arrays(
                "SELECT model_id::BIGINT AS owner, neighbour_id::BIGINT AS neighbour, similarity FROM neighbours "
                "WHERE representation = ? AND model_id IN (SELECT model_id FROM listed)",
                [self.representation],
            )
        lists, _ = Pairs.together([Pairs(**old), entering]).first(NEIGHBOURS)
        entered = np.unique(lists.owner[np.isin(lists.neighbour, entering.neighbour)])
        is_changed = np.isin(lists.owner, entered)
        return Pairs(lists.owner[is_changed], lists.neighbour[is_changed], lists.similarity[is_changed])

    def _insert(self, lists: Pairs) -> None:
        pairs, rank = lists.first(NEIGHBOURS)
        self.tables.insert_columns(
            "neighbours",
            {
                "representation": np.full(len(rank), self.representation),
                "model_id": pairs.owner,
                "rank": rank,
                "neighbour_id": pairs.neighbour,
                "similarity": pairs.similarity,
            },
        )
