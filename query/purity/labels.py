"""Scores of label sets on a fixed order of neighbours: the observed labels, and any permutation of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from query.statistics.authors import AuthorRuns
from query.statistics.neighbours import Booleans, Integers, Order, codes_of, count_matches, marked

Floats = npt.NDArray[np.float64]

# After these shares of the models, ``reaches`` checks whether the rest can still matter.
_SHARES = np.array([1 / 6, 1 / 2])
_ROUNDING = 1e-9  # far more than the rounding error of a mean


@dataclass(frozen=True)
class DatasetPurity:
    """Purity over the models of one dataset, where only that dataset counts as a match."""

    dataset: str
    models: int  # scored
    purity: float
    chance: float


class LabelledOrder:
    """Scores label sets of the models: the observed ones, and any permutation of them.

    Label sets are reduced to the datasets that can match at all (found in more than one group of ``excluded``) and
    numbered: the ``kind`` of a model.
    """

    def __init__(self, order: Order, excluded: Integers, labels: list[frozenset[str]], k: int | None) -> None:
        self.order, self.excluded, self.labels, self.k = order, excluded, labels, k
        held = {(name, group) for group, names in zip(excluded.tolist(), labels, strict=True) for name in names}
        holders = Counter(name for name, _ in held)
        self.names = sorted(name for name, groups in holders.items() if groups > 1)
        number = {name: index for index, name in enumerate(self.names)}
        reduced = [tuple(sorted(number[name] for name in names if name in number)) for names in labels]
        self.kinds = codes_of(reduced)
        self.kind_labels = list(dict.fromkeys(reduced))
        # n, which fills the ends of lists, has a kind of its own that shares nothing.
        self.share = np.zeros((len(self.kind_labels) + 1,) * 2, bool)
        for dataset in range(len(self.names)):
            carriers = [kind for kind, datasets in enumerate(self.kind_labels) if dataset in datasets]
            self.share[np.ix_(carriers, carriers)] = True
        self.share_left, self.share_right = (pairs.astype(np.int32) for pairs in np.nonzero(self.share))
        self.is_one_each = bool((self.share_left == self.share_right).all())

        self.sweeps = AuthorRuns(excluded, labels)
        self.sweep_kinds = self.kinds[self.sweeps.first]
        # All pairs of sweeps of one author.
        self.own_left = np.concatenate([np.repeat(sweeps, len(sweeps)) for sweeps in self.sweeps.lists])
        self.own_right = np.concatenate([np.tile(sweeps, len(sweeps)) for sweeps in self.sweeps.lists])
        self.pool = len(order) - np.bincount(excluded)[excluded]  # |C_f|
        self.looked_at = None if k is None else np.minimum(k, self.pool)

    def matching(self, sweep_kinds: Integers, sizes: Integers | None = None) -> Integers:
        """m_f: how many candidates share a dataset with each model if the sweeps have these kinds.

        ``sizes``: how many models of each sweep count; by default all.
        """
        counted = self.sweeps.sizes if sizes is None else sizes
        of_kind = np.bincount(sweep_kinds, weights=counted, minlength=len(self.share))
        # How many models share a dataset with each kind, including those of the kind itself.
        everyone = np.bincount(self.share_left, weights=of_kind[self.share_right], minlength=len(of_kind))
        shared = self.share[sweep_kinds[self.own_left], sweep_kinds[self.own_right]]
        own = np.bincount(self.own_left, weights=shared * counted[self.own_right])
        return (everyone[sweep_kinds] - own).astype(np.intp)[self.sweeps.of_model]

    def evaluate(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Floats, Floats]:
        """The scored models, and the number of neighbours, the purity and the chance of each."""
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        limits = matching if self.looked_at is None else self.looked_at
        hits = self._hits(sweep_kinds[self.sweeps.of_model], scored, limits[scored], matching[scored])
        return scored, limits[scored], hits / limits[scored], matching[scored] / self.pool[scored]

    def reaches(self, sweep_kinds: Integers, least: float) -> bool:
        """Whether the mean of purity minus chance is at least ``least`` if the sweeps have these kinds.

        Exact, and usually without counting everything: models with the fewest neighbours are counted first, until the
        mean would be too small even if all the others matched.
        """
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        if not len(scored):
            return False
        kinds, totals = sweep_kinds[self.sweeps.of_model], matching[scored]
        limits = (matching if self.looked_at is None else self.looked_at)[scored]
        chance = totals / self.pool[scored]
        cost = np.minimum(limits, len(kinds) - limits)
        turns = np.argsort(cost, kind="stable")
        purity, start = np.ones(len(scored)), 0
        for end in [*(_SHARES * len(turns)).astype(np.intp).tolist(), len(turns)]:
            part = turns[start:end]
            purity[part] = self._hits(kinds, scored[part], limits[part], totals[part]) / limits[part]
            reached = float((purity - chance).mean())
            if reached < least - _ROUNDING:
                return False
            start = end
        return reached >= least

    def matches(self, kinds: Integers) -> Callable[[Integers, Order], Booleans]:
        """A function that says which of the (rows, width) neighbours match if models have these kinds."""
        kind_of = np.append(kinds, len(self.kind_labels)).astype(np.int32)
        if self.is_one_each:
            return lambda rows, neighbours: kind_of.take(neighbours) == kind_of[rows, None]
        width = np.intp(len(self.share))
        return lambda rows, neighbours: self.share.take(kind_of[rows, None] * width + kind_of.take(neighbours))

    def _hits(self, kinds: Integers, rows: Integers, limits: Integers, totals: Integers) -> Integers:
        """Matches among the first ``limits`` neighbours of ``rows``."""
        is_match = self.matches(kinds)
        if self.is_one_each:
            return count_matches(self.order, rows, limits, totals, is_match)
        # One look-up per neighbour is cheaper than two, but needs a separate pass for every kind.
        kind_of = np.append(kinds, len(self.kind_labels))
        hits = np.empty(len(rows), dtype=np.intp)
        many = np.bincount(kinds[rows], weights=np.minimum(limits, len(kinds) - limits)) > 8000
        for kind in np.flatnonzero(many):
            part = np.flatnonzero(kinds[rows] == kind)
            matching = self.share[kind].take(kind_of)
            hits[part] = count_matches(self.order, rows[part], limits[part], totals[part], marked(matching))
        rest = np.flatnonzero(~many[kinds[rows]])
        hits[rest] = count_matches(self.order, rows[rest], limits[rest], totals[rest], is_match)
        return hits

    def dataset_scores(self) -> Iterator[DatasetPurity]:
        """Each dataset separately, among all candidates."""
        holders: dict[str, list[int]] = {}
        for position, names in enumerate(self.labels):
            for name in names:
                holders.setdefault(name, []).append(position)
        for name in self.names:
            members = np.array(holders[name], dtype=np.intp)
            matching = len(members) - np.bincount(self.excluded[members])[self.excluded[members]]
            limits = matching if self.looked_at is None else self.looked_at[members]
            kept = matching > 0
            marks = np.zeros(len(self.order) + 1, bool)
            marks[members] = True
            hits = count_matches(self.order, members[kept], limits[kept], matching[kept], marked(marks))
            chance = matching[kept] / self.pool[members[kept]]
            yield DatasetPurity(name, len(hits), float(np.mean(hits / limits[kept])), float(np.mean(chance)))
