"""The backgrounds table: how similar strangers are, by pair of groups. Made anew with the centre."""

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

# Models of a group that are compared with those of another, drawn at random where there are more: half a million pairs.
MOST_MODELS = 1_024

Ids = NDArray[np.int64]


def renew_null_similarity(tables: Tables, base: str, representation: str, index: VectorIndex) -> None:
    """Write the distributions anew for all pairs of groups that have enough pairs of strangers.

    Strangers: by different authors, and naming data sets of which none is the same. Models that name none may well
    share theirs, and do not count; nor do copies, unrelated models and repeats.
    """
    tables.run("DELETE FROM null_similarity WHERE base = ? AND representation = ?", [base, representation])
    people = _People(tables, base)
    drawn = {group: _drawn(people.ids[people.groups == group], f"{base}|{group}") for group in GROUPS}
    for place, one in enumerate(GROUPS):
        for other in GROUPS[place:]:
            found = Background.of(_similarities(index, people, drawn[one], drawn[other], one == other))
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


class _People:
    """Whose models count: ``ids`` ascending, with their groups, authors and data sets."""

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

    def are_strangers(self, mine: Ids, theirs: Ids) -> NDArray[np.bool_]:
        """(a, b): whether the authors differ and no data set is the same."""
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


def _similarities(index: VectorIndex, people: _People, mine: Ids, theirs: Ids, is_same: bool) -> NDArray[np.float32]:
    """Of all pairs of strangers, each once."""
    first = index.rows(mine)
    second = first if is_same else index.rows(theirs)
    if not len(first) or not len(second):
        return np.zeros(0, dtype=np.float32)
    counts = people.are_strangers(first.ids, second.ids)
    if is_same:
        counts = np.triu(counts, 1)
    similarities = first.matrix @ second.matrix.T / index.masks.divisors(first.matrix, second.ids)
    return np.clip(similarities[counts], -1.0, 1.0)
