"""Sweeps: the models of one author with one set of datasets, which share one vote."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from query.models.population import own_datasets
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import Booleans, Integers, codes_of

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Reals = NDArray[np.float64]


class DatasetRuns(AuthorRuns):
    """The sweeps among n models, labelled by their datasets; -1 for a model that names no dataset.

    The datasets of a model have equal shares; a collection (``glue``) has none if one of its tasks (``glue/mrpc``) is
    named too.

    Attributes:
        answers: all datasets, sorted.
        parents: from a task to its collection, as columns of ``answers``, if both are answers.
    """

    def __init__(self, authors: Sequence[str], datasets: Sequence[frozenset[str]]) -> None:
        super().__init__(codes_of(authors), [own_datasets(names) or None for names in datasets])
        self.answers: tuple[str, ...] = tuple(sorted({name for names in self.labels for name in names}))
        self._column = {name: number for number, name in enumerate(self.answers)}
        collections = {number: self._column.get(name.rpartition("/")[0]) for name, number in self._column.items()}
        self.parents = {task: parent for task, parent in collections.items() if parent is not None}

    @cached_property
    def shares(self) -> csr_array:
        """(sweeps, answers): the share of each dataset in the label of a sweep; rows sum to 1."""
        from scipy.sparse import csr_array

        columns = [self._column[name] for names in self.labels for name in names]
        sizes = [len(names) for names in self.labels]
        weights = np.repeat([1 / size for size in sizes], sizes).astype(np.float32)
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.intp)])
        return csr_array((weights, np.array(columns, dtype=np.intp), starts), (len(self.labels), len(self.answers)))

    @cached_property
    def related(self) -> csr_array:
        """(sweeps, sweeps), not zero if two name the same dataset, or one a task of the other's collection."""
        from scipy.sparse import csr_array, eye_array

        size = len(self.answers)
        pairs = np.array(list(self.parents.items()), dtype=np.intp).reshape(-1, 2)
        tasks = csr_array((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), (size, size))
        same_or_task = eye_array(size, dtype=np.float32, format="csr") + tasks + tasks.T
        return (self.shares @ same_or_task @ self.shares.T).tocsr()

    def allowed(self, rows: Integers, withheld: Sequence[int], is_hidden: bool = False) -> Booleans:
        """(rows, sweeps): which sweeps may vote on each model: those of other authors who are not ``withheld``.

        ``is_hidden``: exclude the sweeps that name one of its datasets, too, as if no other author used them.
        """
        free = ~np.isin(self.author, np.array(withheld, dtype=np.intp))
        allowed: Booleans = free[None, :] & (self.author[None, :] != self.authors[rows][:, None])
        if is_hidden:
            sweep = self.of_model[rows]
            allowed &= (self.related[sweep].toarray() == 0) | (sweep < 0)[:, None]
        return allowed

    def truth(self, rows: Integers, present: Booleans) -> Reals:
        """(rows, answers): the share of each answer in a model's datasets, 0 where it is not ``present``.

        A task that is not present counts as its collection.
        """
        sweep = self.of_model[rows]
        truth = np.zeros(present.shape)
        truth[sweep >= 0] = self.shares[sweep[sweep >= 0]].toarray()
        for task, parent in sorted(self.parents.items(), key=lambda pair: -self.answers[pair[0]].count("/")):
            missing = np.where(present[:, task], 0, truth[:, task])
            truth[:, parent] += missing
            truth[:, task] -= missing
        return np.where(present, truth, 0)
