"""The neighbours table: after a change only the lists that change are computed and written again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import NEIGHBOURS
from indexer.publish.neighbours import Known, Pairs, nearest, rows_at_once
from indexer.publish.tables import Tables
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import OpenSegment, blocks

# From this share of new models on, all lists are computed again: most of them change anyway.
MOST_NEW = 0.5

Ids = NDArray[np.int64]


class NeighbourTable:
    """Lists of one base and representation."""

    def __init__(self, tables: Tables, base: str, representation: str) -> None:
        self.tables = tables
        self.base = base
        self.representation = representation

    def change(self, index: VectorIndex, added: Ids, removed: Ids) -> None:
        """Bring all lists to what ``index`` holds now.

        ``added``: models whose vector is new or another than before; ``removed``: those whose former vector counts
        no more (a replaced one is both). Their lists, lists that name a removed model, and lists that an added one
        enters are written again; no other is touched.
        """
        if len(added) > MOST_NEW * len(index):
            self._write_all(index.segments, index.length)
            return
        again = np.union1d(added, np.setdiff1d(self._owners_naming(removed), removed))
        lists, entering = self._computed(index, again, added)
        changed = self._with_entering(entering)
        self._replace(np.unique(np.concatenate([again, removed, changed.owner])), Pairs.together([lists, changed]))

    def _write_all(self, segments: Sequence[OpenSegment], length: int) -> None:
        """Every list, written as it is computed, so that memory stays bounded."""
        self.tables.run(
            "DELETE FROM neighbours WHERE representation = ? AND model_id IN "
            "(SELECT model_id FROM fine_tunes WHERE base = ?)",
            [self.representation, self.base],
        )
        for block in blocks((one.vectors() for one in segments), rows_at_once(length)):
            lists, _ = nearest(segments, [block], NEIGHBOURS)
            self._insert(lists)

    def _owners_naming(self, removed: Ids) -> Ids:
        if not len(removed):
            return np.zeros(0, dtype=np.int64)
        with self.tables.listed(removed):
            found = self.tables.arrays(
                "SELECT DISTINCT model_id::BIGINT AS model_id FROM neighbours WHERE representation = ? "
                "AND neighbour_id IN (SELECT model_id FROM listed)",
                [self.representation],
            )
        return np.sort(found["model_id"])

    def _computed(self, index: VectorIndex, again: Ids, added: Ids) -> tuple[Pairs, Pairs]:
        """Lists of the models ``again``, and which of the ``added`` enter the lists of the others."""
        others = self._known(again)
        step = rows_at_once(index.length)
        lists, entering = [], []
        for chosen, known in ((added, others), (np.setdiff1d(again, added), None)):
            asked = (index.rows(chosen[start : start + step]) for start in range(0, len(chosen), step))
            found, pushed = nearest(index.segments, asked, NEIGHBOURS, known)
            lists.append(found)
            entering.append(pushed)
        return Pairs.together(lists), Pairs.together(entering)

    def _known(self, again: Ids) -> Known:
        """The lists that stay, but for what enters them; one of a model without neighbours has no rows yet."""
        found = self.tables.arrays(
            "SELECT owners.model_id::BIGINT AS model_id, CASE WHEN count(similarity) < ? THEN -2 "
            "ELSE min(similarity) END::FLOAT AS last FROM (SELECT model_id FROM fine_tunes WHERE base = ?) AS owners "
            "LEFT JOIN (FROM neighbours WHERE representation = ?) AS lists USING (model_id) "
            "GROUP BY ALL ORDER BY ALL",
            [NEIGHBOURS, self.base, self.representation],
        )
        stays = np.isin(found["model_id"], again, invert=True)
        return Known(found["model_id"][stays], found["last"][stays])

    def _with_entering(self, entering: Pairs) -> Pairs:
        """Whole new lists of those owners whose lists the pairs enter (a tie at the edge may not)."""
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

    def _replace(self, owners: Ids, lists: Pairs) -> None:
        with self.tables.listed(owners):
            self.tables.run(
                "DELETE FROM neighbours WHERE representation = ? AND model_id IN (SELECT model_id FROM listed)",
                [self.representation],
            )
        self._insert(lists)

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
