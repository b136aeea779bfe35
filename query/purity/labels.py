"""Scores of label sets on a fixed order of neighbours: the observed labels, any permutation, confused datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from query.purity.result import Confusion, DatasetPurity
from query.statistics.authors import AuthorRuns
from query.statistics.neighbours import Booleans, Integers, Order, codes_of, count_matches, marked

Floats = npt.NDArray[np.float64]

# After these shares of the models, ``reaches`` checks whether the rest can still matter.
_SHARES = np.array([1 / 6, 1 / 2])
_ROUNDING = 1e-9  # far more than the rounding error of a mean
_BLOCK = 1 << 22  # pairs of models in memory at a time


class LabelledOrder:
    """Scores label sets of the models: the observed ones, and any permutation of them.

    Label sets are reduced to the datasets that can match at all (found in more than one group of ``excluded``) and
    numbered: the ``kind`` of a model. ``strata`` (n,): labels are permuted only among models of one stratum.
    ``is_split``: an author's models with one label are then a sweep in each stratum, not one over all.
    """

    def __init__(
        self,
        order: Order,
        excluded: Integers,
        labels: list[frozenset[str]],
        k: int | None,
        strata: Integers | None = None,
        is_split: bool = False,
    ) -> None:
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

        keys: Sequence[Hashable] = labels
        if is_split and strata is not None:
            keys = list(zip(labels, strata.tolist(), strict=True))
        self.sweeps = AuthorRuns(excluded, keys, strata)
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

    def excess(self, sweep_kinds: Integers) -> float:
        """The mean of purity minus chance if the sweeps have these kinds; 0 if no model is scored."""
        _, _, purity, chance = self.evaluate(sweep_kinds)
        return float((purity - chance).mean()) if len(purity) else 0.0

    def reaches(self, sweep_kinds: Integers, least: float) -> bool:
        """Whether the mean of purity minus chance is at least ``least`` if the sweeps have these kinds.

        Exact, but usually without counting all models: those with the fewest neighbours are counted first, and counting
        stops when the mean would be too small even if all the others matched.
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

    def excesses(self, sweep_kinds: Integers) -> Floats:
        """(draws,) the mean of purity minus chance for each row of ``sweep_kinds`` (draws, sweeps); 0 with none scored.

        The same as from ``evaluate``, for many permutations of a small population at once.
        """
        draws, sweeps, count = len(sweep_kinds), self.sweeps, len(self.order)
        width = len(self.share)
        share = self.share.astype(np.float64)
        flat = (sweep_kinds + width * np.arange(draws)[:, None]).ravel()
        of_kind = np.bincount(flat, weights=np.tile(sweeps.sizes, draws), minlength=draws * width).reshape(draws, width)
        own_pairs = self.share[sweep_kinds[:, self.own_left], sweep_kinds[:, self.own_right]]
        starts = np.searchsorted(self.own_left, np.arange(len(sweeps.sizes)), sorter=self._by_left)
        own = np.add.reduceat((own_pairs * sweeps.sizes[self.own_right])[:, self._by_left], starts, axis=1)
        everyone = np.take_along_axis(of_kind @ share, sweep_kinds, axis=1)
        matching = (everyone - own).astype(np.intp)[:, sweeps.of_model]
        limits = matching if self.looked_at is None else np.broadcast_to(self.looked_at, matching.shape)
        limits = np.where(matching > 0, limits, 0)
        reach = int(limits.max(initial=0))
        # Most of the time goes into reading and writing these arrays: small numbers, with draws side by side.
        kinds = np.full((count + 1, draws), width - 1, np.uint8 if width <= 256 else np.uint32)
        kinds[:count] = sweep_kinds.T[sweeps.of_model]
        mine, counted = (
            kinds[:count],
            np.ascontiguousarray(limits.T.astype(np.uint16 if count < 1 << 16 else np.uint32)),
        )
        hits = np.zeros_like(counted)
        for rank, near in enumerate(self.order[:, :reach].T):
            theirs = kinds[near]
            matches = theirs == mine if self.is_one_each else self.share[mine, theirs]
            matches &= counted > rank
            hits += matches
        gains = hits.T / np.maximum(limits, 1) - np.where(matching > 0, matching / np.maximum(self.pool, 1), 0)
        return gains.sum(axis=1) / np.maximum((matching > 0).sum(axis=1), 1)

    @cached_property
    def _by_left(self) -> Integers:
        return np.argsort(self.own_left, kind="stable")

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


# ---- which datasets are taken for which: the neighbours that do not match, compared with chance


def confused_pairs(trial: LabelledOrder) -> tuple[Confusion, ...]:
    """All pairs of datasets with any confusion; notable ones first, then by how far both shares exceed chance.

    Counts are pooled over the models of a dataset, and a neighbour counts once for every dataset that it names.
    """
    from scipy.sparse import csr_array

    names = sorted({name for names in trial.labels for name in names})
    number_of = {name: column for column, name in enumerate(names)}
    pairs = [(row, number_of[name]) for row, found in enumerate(trial.labels) for name in found]
    rows, columns = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    # (models, datasets): 1 if the model names the dataset.
    member = csr_array((np.ones(len(pairs)), (rows, columns)), (len(trial.labels), len(names)))
    counts = np.zeros((len(names), len(names)))
    expected = np.zeros_like(counts)
    totals = np.zeros(len(names))
    for rows, missed, others in _misses(trial):
        # (rows, datasets): neighbours and candidates that do not match, by the datasets they name.
        found, open_to = missed @ member, others @ member
        number, choice = missed.sum(axis=1), others.sum(axis=1)
        of = member[rows].T
        totals += of @ number
        counts += of @ found
        expected += of @ (open_to * (number / np.maximum(choice, 1))[:, None])
    totals = np.maximum(totals, 1)
    confusions = []
    for one, other in combinations(range(len(names)), 2):
        there, back = counts[one, other], counts[other, one]
        if there + back:
            confusions.append(
                Confusion(
                    dataset=names[one],
                    taken_for=names[other],
                    neighbours=int(there),
                    share=float(there / totals[one]),
                    chance=float(expected[one, other] / totals[one]),
                    back_neighbours=int(back),
                    back_share=float(back / totals[other]),
                    back_chance=float(expected[other, one] / totals[other]),
                    is_notable=bool(there > expected[one, other] and back > expected[other, one]),
                )
            )

    def lift(pair: Confusion) -> float:
        both = ((pair.share, pair.chance), (pair.back_share, pair.back_chance))
        return min(share / chance if chance > 0 else 0.0 for share, chance in both)

    return tuple(sorted(confusions, key=lambda one: (not one.is_notable, -lift(one), one.dataset, one.taken_for)))


def _misses(trial: LabelledOrder) -> Iterator[tuple[Integers, Floats, Floats]]:
    """Scored models, and (rows, models) which of their neighbours and which of their candidates do not match."""
    matching = trial.matching(trial.sweep_kinds)
    limits = matching if trial.looked_at is None else trial.looked_at
    scored = np.flatnonzero(matching)
    count = len(trial.order)
    is_match = trial.matches(trial.kinds)
    everyone = np.arange(count)
    step = max(1, _BLOCK // count)
    for rows in (scored[start : start + step] for start in range(0, len(scored), step)):
        candidates = trial.excluded[rows, None] != trial.excluded[None, :]
        others = candidates & ~is_match(rows, np.broadcast_to(everyone, candidates.shape))
        near = np.zeros((len(rows), count + 1), dtype=bool)  # the last column stands for no model
        lists = trial.order[rows].astype(np.intp)
        np.put_along_axis(near, lists, everyone < limits[rows, None], axis=1)
        yield rows, (near[:, :count] & others).astype(np.float64), others.astype(np.float64)
