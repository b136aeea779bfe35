"""Sweeps: the models of one group that carry one label, which no permutation may treat as independent."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from query.statistics.neighbours import Integers, codes_of, members_of


class Sweeps:
    """Models of one group (an author) with one label are a sweep; a group's sweeps are its list.

    ``of``: the sweep of each model, numbered from 0 in order of first appearance. ``first``: a model of each.
    ``sizes``: models of each. ``lists``: of every group, its sweeps. ``strata``: (groups, sweeps each) for every
    length of list.
    """

    def __init__(self, groups: Integers, labels: Sequence[Hashable]) -> None:
        self.of = codes_of(list(zip(groups.tolist(), labels, strict=True)))
        self.sizes = np.bincount(self.of)
        self.first = np.array([members[0] for members in members_of(self.of)], dtype=np.intp)
        self.lists = members_of(groups[self.first])
        lengths = sorted({len(sweeps) for sweeps in self.lists})
        self.strata = [np.array([s for s in self.lists if len(s) == length]) for length in lengths]

    def permuted(self, carried: Integers, rng: np.random.Generator) -> Integers:
        """What each sweep carries after one random move.

        A group's list moves as a whole to another group with a list of the same length, where it meets that
        group's sweeps in random order. Such moves form a group in the sense of algebra, so a permutation test by
        them is exact whatever the sizes of the sweeps and however alike the models of one author.
        """
        moved = carried.copy()
        for sweeps in self.strata:
            lists = carried[sweeps][rng.permutation(len(sweeps))]
            moved[sweeps] = rng.permuted(lists, axis=1)
        return moved

    @property
    def ways(self) -> int:
        """How many different moves there are."""
        return math.prod(math.factorial(len(s)) * math.factorial(s.shape[1]) ** len(s) for s in self.strata)
