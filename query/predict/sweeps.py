"""Who may say what a model was tuned on, and how near each of them is: the votes of the vectors.

A *sweep* is all models of one author with one set of datasets, heard once, through its member nearest to the
model asked about: a sweep of a hundred runs is one opinion. Measured on 67 real fine-tunes of seven authors in
six representations, one vote a sweep had a lower out-of-author log loss than one vote for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.statistics.author_runs import AuthorRuns
from query.statistics.likeness import similarities
from query.statistics.neighbours import Booleans, Integers, codes_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float32]

SHARPNESS = 3  # power of a vote; with 1 the many who are far outvote the few who are near
_BLOCK = 1 << 23  # similarities held at a time


class DatasetRuns(AuthorRuns):
    """The sweeps among n models, labelled by what each model is tuned on; -1 for a model that names no dataset.

    A model of several datasets gives each an equal share; a collection (``glue``) beside one of its tasks
    (``glue/mrpc``) gets none. ``answers``: all datasets, sorted.
    """

    def __init__(self, authors: Sequence[str], datasets: Sequence[frozenset[str]]) -> None:
        super().__init__(codes_of(authors), [own_datasets(names) or None for names in datasets])
        self.answers: tuple[str, ...] = tuple(sorted({name for names in self.labels for name in names}))

    @cached_property
    def shares(self) -> csr_array:
        """(sweeps, answers): the share of each dataset in what a sweep says; rows sum to 1."""
        from scipy.sparse import csr_array

        column = {name: number for number, name in enumerate(self.answers)}
        columns = [column[name] for names in self.labels for name in names]
        sizes = [len(names) for names in self.labels]
        weights = np.repeat([1 / size for size in sizes], sizes).astype(np.float32)
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.intp)])
        return csr_array((weights, np.array(columns, dtype=np.intp), starts), (len(self.labels), len(self.answers)))

    @cached_property
    def parents(self) -> dict[int, int]:
        """Answer → the collection it is a task of, where that is an answer too."""
        column = {name: number for number, name in enumerate(self.answers)}
        found = {number: column.get(name.rpartition("/")[0]) for name, number in column.items()}
        return {task: parent for task, parent in found.items() if parent is not None}

    @cached_property
    def kin(self) -> csr_array:
        """(sweeps, sweeps), not zero where two say the same dataset, or one a task of what the other says."""
        from scipy.sparse import csr_array, eye_array

        size = len(self.answers)
        pairs = np.array(list(self.parents.items()), dtype=np.intp).reshape(-1, 2)
        tasks = csr_array((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), (size, size))
        related = eye_array(size, dtype=np.float32, format="csr") + tasks + tasks.T
        return (self.shares @ related @ self.shares.T).tocsr()

    def allowed(self, rows: Integers, withheld: Integers, is_hidden: bool = False) -> Booleans:
        """(rows, sweeps): who may speak of each model: nobody of its own author, nor of the authors ``withheld``.

        ``is_hidden``: nor anyone who names one of its datasets, as if no one else knew them.
        """
        free = ~np.isin(self.author, withheld)
        allowed: Booleans = free[None, :] & (self.author[None, :] != self.authors[rows][:, None])
        if is_hidden:
            own = self.of_model[rows]
            allowed &= (self.kin[own].toarray() == 0) | (own < 0)[:, None]
        return allowed


def own_datasets(names: frozenset[str]) -> tuple[str, ...]:
    """A model's datasets, sorted, without the collections of which it names a task."""
    return tuple(sorted(name for name in names if not any(other.startswith(f"{name}/") for other in names)))


@dataclass(frozen=True)
class Nearness:
    """For each of some models all sweeps, nearest first: (rows, sweeps) numbers and similarities, descending."""

    order: NDArray[np.int32]
    similarity: Floats

    def at(self, places: Integers) -> Nearness:
        """Those of some of the models."""
        return Nearness(self.order[places], self.similarity[places])


def nearness(vectors: Floats, rows: Integers, sweeps: DatasetRuns, blocks: int = 0) -> Nearness:
    """How near every sweep is: the similarity of its nearest member. Ties go to the sweep that comes first."""
    members = np.flatnonzero(sweeps.of_model >= 0)
    members = members[np.argsort(sweeps.of_model[members], kind="stable")]
    starts = np.searchsorted(sweeps.of_model[members], np.arange(len(sweeps.labels)))
    order = np.empty((len(rows), len(starts)), dtype=np.int32)
    similarity = np.empty(order.shape, dtype=np.float32)
    step = max(1, _BLOCK // max(1, len(members)))
    for start in range(0, len(rows) if len(starts) else 0, step):
        block = slice(start, start + step)
        nearest = np.maximum.reduceat(similarities(vectors[rows[block]], vectors[members], blocks), starts, axis=1)
        order[block] = np.argsort(-nearest, axis=1, kind="stable")
        similarity[block] = np.take_along_axis(nearest, order[block], axis=1)
    return Nearness(order, similarity)


@dataclass(frozen=True)
class Votes:
    """What the vectors say of some models. ``weights`` (rows, sweeps, sparse): the vote of each that was heard.

    ``prominence`` (rows,): ln of how far the nearest sweep stands above the middle of all sweeps, in units of
    the distance from the middle to the lower quartile; 0 where there are too few sweeps to say.
    """

    weights: csr_array
    prominence: NDArray[np.float64]


def cast_votes(near: Nearness, allowed: Booleans, k: int) -> Votes:
    """The votes of the ``k`` nearest sweeps that are ``allowed`` (rows, sweeps).

    A vote is ((s - m) / (s₁ - m))³, no less than 0: s the sweep's similarity, s₁ the nearest one's, m the median
    over all allowed sweeps. So the nearest has one vote whatever the level of the similarities is, which is
    lower throughout for an adapter than for a full fine-tune. Where nothing stands out, every vote is 1.
    """
    from scipy.sparse import csr_array

    heard = np.take_along_axis(allowed, near.order, axis=1)
    place = np.cumsum(heard, axis=1, dtype=np.int32)
    counts = heard.sum(axis=1)
    first = _value_at(near.similarity, place, np.minimum(1, counts))
    middle = (
        _value_at(near.similarity, place, (counts + 1) // 2) + _value_at(near.similarity, place, counts // 2 + 1)
    ) / 2
    low = _value_at(near.similarity, place, (3 * counts + 3) // 4)
    row, column = np.nonzero(heard & (place <= k))
    lead = first - middle
    above = np.maximum(near.similarity[row, column] - middle[row], 0)
    stands_out = lead > 1e-6
    weight = np.where(stands_out[row], (above / np.where(stands_out, lead, 1)[row]) ** SHARPNESS, 1)
    prominence = np.where(counts > 0, np.log((lead + 1e-4) / (middle - low + 1e-4)), 0)
    weights = csr_array((weight.astype(np.float32), (row, near.order[row, column])), allowed.shape)
    return Votes(weights, prominence.astype(np.float64))


def _value_at(similarity: Floats, place: NDArray[np.int32], wanted: Integers) -> Floats:
    """The similarity of the sweep in place ``wanted`` (from 1) among those heard; 0 where none is heard."""
    if not place.shape[1]:
        return np.zeros(len(place), dtype=np.float32)
    column = np.minimum((place < wanted[:, None]).sum(axis=1), place.shape[1] - 1)
    found: Floats = np.where(place[:, -1] > 0, similarity[np.arange(len(place)), column], 0)
    return found
