"""Models grouped into sweeps: the runs of one author with one label, which no test may treat as independent."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from query.statistics.neighbours import Integers, codes_of, members_of


class AuthorRuns:
    """The sweeps among n models, numbered in order of first appearance.

    ``authors`` (n,): a code for each model's author, from 0. ``of_model`` (n,): the model's sweep, -1 where its label
    is None. For each sweep ``author``, ``labels``, ``first`` (the index of its first model) and ``sizes``.
    """

    def __init__(self, authors: Integers, labels: Sequence[Hashable | None]) -> None:
        self.authors = authors
        keys = list(zip(authors.tolist(), labels, strict=True))
        labelled = np.array([row for row, (_, label) in enumerate(keys) if label is not None], dtype=np.intp)
        codes = codes_of([keys[row] for row in labelled])
        self.of_model = np.full(len(keys), -1, dtype=np.intp)
        self.of_model[labelled] = codes
        self.first = labelled[np.unique(codes, return_index=True)[1]]
        self.sizes = np.bincount(codes)
        self.author: Integers = authors[self.first]
        self.labels: list[Any] = [labels[row] for row in self.first]

    @cached_property
    def lists(self) -> list[Integers]:
        """The sweeps of every author; the authors are numbered without gaps here."""
        return members_of(codes_of(self.author.tolist()))

    @cached_property
    def strata(self) -> list[Integers]:
        """The lists of equal length, each as an array (authors, sweeps per author)."""
        lengths = sorted({len(sweeps) for sweeps in self.lists})
        return [np.array([sweeps for sweeps in self.lists if len(sweeps) == length]) for length in lengths]

    def permuted(self, carried: Integers, rng: np.random.Generator) -> Integers:
        """The labels ``carried`` (sweeps,) after one random permutation.

        An author's list of labels moves as a whole to another author with as many sweeps, and is shuffled among that
        author's sweeps. Such moves form a group in the sense of algebra, so a permutation test with them is exact
        whatever the sizes of the sweeps and however similar the models of one author are.
        """
        moved = carried.copy()
        for sweeps in self.strata:
            lists = carried[sweeps][rng.permutation(len(sweeps))]
            moved[sweeps] = rng.permuted(lists, axis=1)
        return moved

    @property
    def ways(self) -> int:
        """How many different permutations there are."""
        return math.prod(math.factorial(len(s)) * math.factorial(s.shape[1]) ** len(s) for s in self.strata)
