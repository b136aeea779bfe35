"""The table neighbours: exact nearest neighbours. A publish updates only the lists that change.

Similarities are computed in tiles. The same pass finds the existing lists that new models enter. Near ties are computed
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import NEIGHBOURS
from indexer.publish.tables import Tables
from indexer.vectors.search import VectorIndex
from indexer.vectors.stored import Vectors, blocks, positions, rows_of_block
from indexer.vectors.table import by_output
from indexer.vectors.ties import NEAR, Exact, nearest_first

# If the share of new models is larger, all lists are recomputed: most of them change anyway.
_MOST_NEW = 0.5

# Largest tile of the similarity matrix: 32 MB. With many rows a stored vector is widened from 16 bits only once for
# all of them; with 167 rows instead of 2,044 the widening takes as long as the products.
ROWS = 2048
COLUMNS = 4096

# Bytes of stored vectors that are multiplied at a time.
_COPIED_BYTES = 32 << 20

# Candidate pairs per list entry that are collected before the worse ones are dropped.
SLACK = 4

# Below every similarity: the last entry of a list that is not full.
_NOT_FULL = -2.0

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Pairs of similar models: three columns of equal length."""

    owner: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    similarity: NDArray[np.float32]

    @classmethod
    def together(cls, pair_sets: Iterable[Pairs]) -> Pairs:
        """Concatenate the pairs of all parts."""
        pair_sets = [cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)), *pair_sets]
        return cls(
            np.concatenate([pairs.owner for pairs in pair_sets]),
            np.concatenate([pairs.neighbour for pairs in pair_sets]),
            np.concatenate([pairs.similarity for pairs in pair_sets]),
        )

    def first(self, k: int, exact: Exact) -> tuple[Pairs, NDArray[np.int32]]:
        """The k nearest of each owner, sorted by owner and rank with ties broken by id; and the ranks, from 1.

        ``exact(owners, neighbours)`` computes the similarities of those that may be among them.
        """
        nearest_pairs, rank, similarity = nearest_first(self.owner, self.neighbour, self.similarity, k, exact)
        return Pairs(self.owner[nearest_pairs], self.neighbour[nearest_pairs], similarity), rank

    def ranked(self) -> tuple[Pairs, NDArray[np.int32]]:
        """Complete lists, each in order, sorted by owner; and the ranks, from 1."""
        order = np.argsort(self.owner, kind="stable")
        owner = self.owner[order]
        rank = np.arange(1, len(order) + 1) - np.searchsorted(owner, owner, side="left")
        return Pairs(owner, self.neighbour[order], self.similarity[order]), rank.astype(np.int32)


def nearest(
    index: VectorIndex,
    queries: Iterable[Vectors],
    k: int,
    existing: tuple[Ids, NDArray[np.float32]] | None = None,
) -> tuple[Pairs, Pairs]:
    """The k nearest neighbours of every query; and the pairs (owner, query) by which queries enter ``existing`` lists.

    - ``queries``: input sides of models of the index, which have no existing lists.
    - ``existing``: owners of lists (ascending), and the similarity of the last entry of each, −2 if the list is not
      full. A query enters a list if it is at least as similar as the last entry.
    """
    sides = [_Columns(index)] if index.outputs is None else [_Columns(index), _Columns(index.outputs)]
    lists: list[Pairs] = []
    entering: list[Pairs] = []
    for block in queries:
        table = index.table(block.ids)
        nearest_lists = _Lists(block.ids, k, partial(index.exact, table))
        for is_output, side in enumerate(sides):
            matrix = table.outputs if is_output else block.matrix
            assert matrix is not None
            for ids, similarities, edges in side.tiles(block.ids, matrix, side.edges(existing)):
                if table.groups is not None:
                    if is_output:
                        are_pairs = similarities > -np.inf
                        similarities = np.where(are_pairs, similarities, -np.inf)
                    compares_output = by_output(table.groups[:, None], index.adapters.codes(ids)[None, :])
                    similarities[compares_output != is_output] = -np.inf
                nearest_lists.take(similarities, ids)
                if edges is not None:
                    rows, columns = np.nonzero(similarities >= edges)
                    entering.append(Pairs(ids[columns], block.ids[rows], similarities[rows, columns]))
        lists.append(nearest_lists.pairs())
    return Pairs.together(lists), Pairs.together(entering)


class _Columns:
    """The stored vectors of one side, which are the columns of a similarity matrix."""

    def __init__(self, index: VectorIndex) -> None:
        self.vectors, self.masks = index.opened.vectors, index.masks
        self.kinds = self.masks.kinds_of(self.vectors.ids)

    def edges(self, existing: tuple[Ids, NDArray[np.float32]] | None) -> NDArray[np.float32] | None:
        """(columns,) the similarity needed to enter the list of each column; infinite without an existing list."""
        if existing is None:
            return None
        owners, last = existing
        ids = self.vectors.ids
        edges = np.full(len(ids), np.inf, dtype=np.float32)
        if len(owners):
            owner_rows = np.searchsorted(owners, ids).clip(max=len(owners) - 1)
            has_list = owners[owner_rows] == ids
            # Not −inf, which marks pairs that are not neighbours.
            edges[has_list] = np.maximum(last[owner_rows[has_list]] - NEAR, _NOT_FULL)
        return edges

    def tiles(
        self, ids: Ids, matrix: NDArray[np.float32], edges: NDArray[np.float32] | None
    ) -> Iterator[tuple[Ids, NDArray[np.float32], NDArray[np.float32] | None]]:
        """Yield the columns in tiles: their ids, their similarities with (n, d) vectors, and their edges.

        −inf for a model with itself; ``ids`` (n,) ascending are those of the vectors.
        """
        length = matrix.shape[1]
        step = max(1, min(COLUMNS, _COPIED_BYTES // (4 * length)))
        aligned = np.empty((step, length), dtype=np.float32)
        divisors = self.masks.divisors_by_kind(matrix)
        # The columns of the same models, and their rows.
        own_columns = positions(self.vectors.ids, ids)
        own_rows = positions(ids, self.vectors.ids[own_columns])
        for start in range(0, len(self.vectors), step):
            stored_rows = self.vectors.stored[start : start + step]
            tile = slice(start, start + len(stored_rows))
            # The numbers in a FAISS file are not aligned: NumPy would copy all of them for each product.
            np.copyto(aligned[: len(stored_rows)], stored_rows)
            similarities = matrix @ aligned[: len(stored_rows)].T
            if self.masks.blocks:
                similarities /= divisors[:, self.kinds[tile]]
            np.clip(similarities, -1.0, 1.0, out=similarities)
            is_here = (own_columns >= tile.start) & (own_columns < tile.stop)
            similarities[own_rows[is_here], own_columns[is_here] - tile.start] = -np.inf
            yield self.vectors.ids[tile], similarities, None if edges is None else edges[tile]


class _Lists:
    """The k nearest of each of the models ``ids`` (n,) among the tiles seen so far."""

    def __init__(self, ids: NDArray[np.int64], k: int, exact: Exact) -> None:
        self._ids = ids
        self._k = k
        self._exact = exact  # takes positions in ``ids``, and ids
        self._edges = np.full((len(ids), 1), _NOT_FULL, dtype=np.float32)
        self._pairs: list[Pairs] = []
        self._count = 0

    def take(self, similarities: NDArray[np.float32], neighbours: NDArray[np.int64]) -> None:
        """(n, m) similarities with ``neighbours`` (m,)."""
        count, edges = len(neighbours), self._edges
        if self._k < count and (edges == _NOT_FULL).any():
            kth = np.partition(similarities, count - self._k, axis=1)[:, count - self._k, None]
            edges = np.maximum(edges, kth - NEAR)
        rows, columns = np.nonzero(similarities >= edges)
        self._pairs.append(Pairs(rows, neighbours[columns], similarities[rows, columns]))
        self._count += len(rows)
        most = SLACK * self._k * len(self._ids)
        if self._count > most:
            self._keep(Pairs.together(self._pairs))
            if self._count > most:  # there are many near ties
                nearest_pairs, _ = Pairs.together(self._pairs).first(self._k, self._exact)
                self._keep(nearest_pairs)

    def _keep(self, pairs: Pairs) -> None:
        """Keep the pairs that may be among the k nearest; later pairs must be as similar as the k-th of a list."""
        order = np.lexsort((-pairs.similarity, pairs.owner))
        owner, owners = pairs.owner[order], np.arange(len(self._ids))
        starts, stops = np.searchsorted(owner, owners, "left"), np.searchsorted(owner, owners, "right")
        full_owners = np.flatnonzero(stops - starts >= self._k)
        self._edges[full_owners, 0] = pairs.similarity[order[starts[full_owners] + self._k - 1]] - NEAR
        rows = np.flatnonzero(pairs.similarity >= self._edges[pairs.owner, 0])
        self._pairs = [Pairs(pairs.owner[rows], pairs.neighbour[rows], pairs.similarity[rows])]
        self._count = len(rows)

    def pairs(self) -> Pairs:
        """The lists, in the order of ``ids`` and of rank."""
        pairs, _ = Pairs.together(self._pairs).first(self._k, self._exact)
        return Pairs(self._ids[pairs.owner], pairs.neighbour, pairs.similarity)


def renew_neighbours(
    tables: Tables, base: str, representation: str, index: VectorIndex, added: Ids, removed: Ids
) -> None:
    """Update the lists of one base and representation to the vectors in ``index``.

    ``added``: models with a new vector. ``removed``: models whose former vector is no longer valid (a replaced vector
    is both). Their own lists are rewritten, and so are lists that name a removed model or that an added model enters;
    no others.
    """
    step = min(ROWS, rows_of_block(index.length))
    if len(added) > _MOST_NEW * len(index):
        tables.run(
            "DELETE FROM neighbours WHERE representation = ? AND model_id IN "
            "(SELECT model_id FROM fine_tunes WHERE base = ?)",
            [representation, base],
        )
        # Block by block, so that memory stays bounded.
        for block in blocks(index.opened.vectors, step):
            _insert(tables, representation, nearest(index, [block], NEIGHBOURS)[0])
        return
    with tables.listed(removed):
        naming = tables.arrays(
            "SELECT DISTINCT model_id::BIGINT AS model_id FROM neighbours WHERE representation = ? "
            "AND neighbour_id IN (SELECT model_id FROM listed)",
            [representation],
        )["model_id"]
    recomputed = np.union1d(added, np.setdiff1d(naming, removed))
    # The lists that are not recomputed. A model without neighbours has no rows yet.
    unchanged = tables.arrays(
        "SELECT owners.model_id::BIGINT AS model_id, CASE WHEN count(similarity) < ? THEN -2 "
        "ELSE min(similarity) END::FLOAT AS last FROM (SELECT model_id FROM fine_tunes WHERE base = ?) AS owners "
        "LEFT JOIN (FROM neighbours WHERE representation = ?) AS lists USING (model_id) "
        "GROUP BY ALL ORDER BY ALL",
        [NEIGHBOURS, base, representation],
    )
    is_unchanged = np.isin(unchanged["model_id"], recomputed, invert=True)
    lists, found_entering = [], []
    for owner_ids_of_pass, existing in (
        (added, (unchanged["model_id"][is_unchanged], unchanged["last"][is_unchanged])),
        (np.setdiff1d(recomputed, added), None),
    ):
        queries = (
            index.rows(owner_ids_of_pass[start : start + step]) for start in range(0, len(owner_ids_of_pass), step)
        )
        new_lists, entering = nearest(index, queries, NEIGHBOURS, existing)
        lists.append(new_lists)
        found_entering.append(entering)
    # The complete new lists that models enter; a tie with the last entry may not enter.
    changed = Pairs.together(found_entering)
    if len(changed.owner):
        with tables.listed(np.unique(changed.owner)):
            former_lists = tables.arrays(
                "SELECT model_id::BIGINT AS owner, neighbour_id::BIGINT AS neighbour, similarity FROM neighbours "
                "WHERE representation = ? AND model_id IN (SELECT model_id FROM listed)",
                [representation],
            )

        def exact(owners: Ids, near: Ids) -> NDArray[np.float64]:
            new_lists = np.empty(len(owners))
            for start in range(0, len(owners), step):
                tile = slice(start, start + step)
                owner_ids, row = np.unique(owners[tile], return_inverse=True)
                new_lists[tile] = index.exact(index.table(owner_ids), row, near[tile])
            return new_lists

        longer, _ = Pairs.together([Pairs(**former_lists), changed]).first(NEIGHBOURS, exact)
        entered = np.unique(longer.owner[np.isin(longer.neighbour, changed.neighbour)])
        is_changed = np.isin(longer.owner, entered)
        changed = Pairs(longer.owner[is_changed], longer.neighbour[is_changed], longer.similarity[is_changed])
    with tables.listed(np.unique(np.concatenate([recomputed, removed, changed.owner]))):
        tables.run(
            "DELETE FROM neighbours WHERE representation = ? AND model_id IN (SELECT model_id FROM listed)",
            [representation],
        )
    _insert(tables, representation, Pairs.together([*lists, changed]))


def _insert(tables: Tables, representation: str, lists: Pairs) -> None:
    pairs, rank = lists.ranked()
    tables.insert_columns(
        "neighbours",
        {
            "representation": np.full(len(rank), representation),
            "model_id": pairs.owner,
            "rank": rank,
            "neighbour_id": pairs.neighbour,
            "similarity": pairs.similarity,
        },
    )
