"""The null distribution of similarity between unrelated models, per pair of groups.

Recomputed whenever the centre changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.publish.tables import Tables
from indexer.vectors.background import Background
from indexer.vectors.centre import GROUPS
from indexer.vectors.search import VectorIndex

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Largest sample of a group: half a million pairs within a group.
MOST_MODELS = 1_024

Ids = NDArray[np.int64]


def renew_null_similarity(tables: Tables, base: str, representation: str, index: VectorIndex) -> None:
    """Rewrite the distributions of all pairs of groups that have enough pairs of unrelated models.

    Unrelated models are by different authors and name datasets, none in common. Models that name none are left out,
    because they may share one, and so are copies, models unrelated to the base and duplicates.
    """
    tables.run("DELETE FROM null_similarity WHERE base = ? AND representation = ?", [base, representation])
    models = _Models(tables, base)
    drawn = {group: _drawn(models.ids[models.groups == group], f"{base}|{group}") for group in GROUPS}
    for place, one in enumerate(GROUPS):
        for other in GROUPS[place:]:
            found = Background.of(_similarities(index, models, drawn[one], drawn[other], one == other))
            if found is not None:
                count = len(found.shares)
                tables.insert_columns(
                    "null_similarity",
                    {
                        "base": [base] * count,
                        "representation": [representation] * count,
                        "one_group": [one] * count,
                        "other_group": [other] * count,
                        "pairs": [found.pairs] * count,
                        "similarity": found.similarities,
                        "share": found.shares,
                    },
                )


class _Models:
    """The models that are compared: ``ids`` ascending, with their groups, authors and datasets."""

    def __init__(self, tables: Tables, base: str) -> None:
        rows = tables.rows(
            "SELECT model_id, vector_group, author, datasets FROM models WHERE base = ? AND NOT is_copy "
            "AND NOT is_unrelated AND duplicate_of IS NULL AND len(datasets) > 0 ORDER BY model_id",
            [base],
        )
        self.ids: Ids = np.array([row[0] for row in rows], dtype=np.int64)
        self.groups = np.array([row[1] for row in rows], dtype=object)
        authors: dict[str, int] = {}
        self.authors = np.array([authors.setdefault(row[2], len(authors)) for row in rows], dtype=np.int64)
        self.datasets: list[Sequence[str]] = [row[3] for row in rows]

    def are_unrelated(self, mine: Ids, theirs: Ids) -> NDArray[np.bool_]:
        """(a, b): whether the authors differ and no dataset is the same."""
        rows, columns = (np.searchsorted(self.ids, ids) for ids in (mine, theirs))
        names: dict[str, int] = {}
        for row in {*rows.tolist(), *columns.tolist()}:
            for name in self.datasets[row]:
                names.setdefault(name, len(names))
        first, second = (_named([self.datasets[row] for row in one.tolist()], names) for one in (rows, columns))
        shared = (first @ second.T).toarray() > 0
        return (self.authors[rows][:, None] != self.authors[columns][None, :]) & ~shared


def _named(datasets: Sequence[Sequence[str]], names: dict[str, int]) -> csr_array:
    from scipy.sparse import csr_array

    pairs = [(row, names[name]) for row, held in enumerate(datasets) for name in held]
    places = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return csr_array((np.ones(len(pairs), np.float32), (places[0], places[1])), shape=(len(datasets), len(names)))


def _drawn(ids: Ids, seed: str) -> Ids:
    """At most MOST_MODELS of them, the same in every publish of the same models."""
    if len(ids) <= MOST_MODELS:
        return ids
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    return np.sort(np.random.default_rng(number).choice(ids, MOST_MODELS, replace=False))


def _similarities(index: VectorIndex, models: _Models, mine: Ids, theirs: Ids, is_same: bool) -> NDArray[np.float32]:
    """The similarities of all pairs of unrelated models, each pair once."""
    first = index.rows(mine)
    second = first if is_same else index.rows(theirs)
    if not len(first) or not len(second):
        return np.zeros(0, dtype=np.float32)
    counts = models.are_unrelated(first.ids, second.ids)
    if is_same:
        counts = np.triu(counts, 1)
    similarities = first.matrix @ second.matrix.T / index.masks.divisors(first.matrix, second.ids)
    return np.clip(similarities[counts], -1.0, 1.0)
