"""Scores of label sets on a fixed order of neighbours: the observed labels, any permutation, confused datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from query.questions.purity.result import Confusion, DatasetPurity
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import Booleans, Integers, Order, codes_of, count_matches, marked

Floats = npt.NDArray[np.float64]

# After these shares of the models, ``reaches`` checks whether the rest can still matter.
_SHARES = np.array([1 / 6, 1 / 2])
_ROUNDING = 1e-9  # far more than the rounding error of a mean
_BLOCK = 1 << 22  # pairs of models in memory at a time


class OwnPlaces:
    """Where the models of a model's own author stand in its list, for lists from which they are then removed.

    ``order``: lists without the models of the row's own group of ``excluded`` (n,). ``owners`` (n,): the author of
    each model, who has whole groups of ``excluded``.
    """

    def __init__(self, order: Order, excluded: Integers, owners: Integers) -> None:
        self.excluded, self.count = excluded, len(order)
        owner_of = np.append(owners, -1)
        step = max(1, _BLOCK // max(1, self.count))
        found = []
        for start in range(0, self.count, step):
            part = slice(start, start + step)
            rows, places = np.nonzero(owner_of[order[part]] == owners[part, None])
            found.append((rows + start) * (self.count + 1) + places)
        # One ascending array for all lists, in which those of row f begin at f · (n + 1).
        self.places: Integers = np.concatenate([np.zeros(0, dtype=np.intp), *found])
        self.starts = np.arange(self.count) * (self.count + 1)
        self.first = np.searchsorted(self.places, self.starts)

    def before(self, limits: Integers) -> Integers:
        """How many of them are among the first ``limits`` (…, n) of each list."""
        return np.searchsorted(self.places, self.starts + limits) - self.first


class _Groups:
    """The groups of models that are no candidates for each other; a group's part of a sweep has ``sizes`` models."""

    def __init__(self, excluded: Integers, sweeps: AuthorRuns) -> None:
        self.parts = AuthorRuns(excluded, sweeps.of_model.tolist())
        self.sweep: Integers = sweeps.of_model[self.parts.first]
        # All pairs of parts of one group, by the first of the two.
        left = np.concatenate([np.repeat(parts, len(parts)) for parts in self.parts.lists])
        right = np.concatenate([np.tile(parts, len(parts)) for parts in self.parts.lists])
        turn = np.argsort(left, kind="stable")
        self.left, self.right = left[turn], right[turn]
        self.starts = np.searchsorted(self.left, np.arange(len(self.parts.sizes)))
        self.pool: Integers = len(excluded) - np.bincount(excluded)[excluded]  # |C_f|


class LabelledOrder:
    """Scores label sets of the models: the observed ones, and any permutation of them.

    ``order``: all candidates of each model, nearest first. ``excluded`` (n,): models of one group are no candidates for
    each other. ``owners`` (n,): whose sweeps are permuted (``AuthorRuns``), by default ``excluded``; an owner has whole
    groups of ``excluded``. ``strata`` (n,): labels are permuted only among sweeps of one stratum. ``is_split``: an
    author's models with one label are then a sweep in each stratum, not one over all.

    Label sets are reduced to the datasets that can match in any permutation, and numbered: the ``kind`` of a model.

    ``own``: for ``excess``, if ``order`` lacks the models of a model's owner, but those in other groups of
    ``own.excluded`` count among its m_f nearest.
    """

    def __init__(
        self,
        order: Order,
        excluded: Integers,
        labels: list[frozenset[str]],
        k: int | None,
        strata: Integers | None = None,
        is_split: bool = False,
        *,
        owners: Integers | None = None,
        own: OwnPlaces | None = None,
    ) -> None:
        self.order, self.excluded, self.labels, self.k, self.own = order, excluded, labels, k, own
        owners = excluded if owners is None else owners
        finest = excluded if own is None else own.excluded
        # Among candidates of one owner, the size of a sweep decides whether its models match each other.
        is_finer = len(np.unique(finest)) > len(np.unique(owners))
        held = {(name, owner) for owner, names in zip(owners.tolist(), labels, strict=True) for name in names}
        holders = Counter(name for name, _ in held)
        self.names = sorted(name for name, count in holders.items() if count > 1 or is_finer)
        number = {name: index for index, name in enumerate(self.names)}
        reduced = [tuple(sorted(number[name] for name in names if name in number)) for names in labels]
        self.kinds = codes_of(reduced)
        self.kind_labels = list(dict.fromkeys(reduced))
        # n, which fills the ends of lists, has a kind of its own that shares nothing.
        self.share = np.zeros((len(self.kind_labels) + 1,) * 2, bool)
        carriers: list[list[int]] = [[] for _ in self.names]
        for kind, datasets in enumerate(self.kind_labels):
            for dataset in datasets:
                carriers[dataset].append(kind)
        for kinds in carriers:
            self.share[np.ix_(kinds, kinds)] = True
        self.share_left, self.share_right = (pairs.astype(np.int32) for pairs in np.nonzero(self.share))
        self.is_one_each = bool((self.share_left == self.share_right).all())

        keys: Sequence[Hashable] = labels
        if is_split and strata is not None:
            keys = list(zip(labels, strata.tolist(), strict=True))
        self.sweeps = AuthorRuns(owners, keys, strata)
        self.sweep_kinds = self.kinds[self.sweeps.first]
        self.groups = _Groups(excluded, self.sweeps)
        self.own_groups = None if own is None else _Groups(own.excluded, self.sweeps)
        self.pool = self.groups.pool
        widest = (self.own_groups or self.groups).pool
        self.looked_at = None if k is None else np.minimum(k, widest)

    def matching(
        self, sweep_kinds: Integers, counted: Booleans | None = None, groups: _Groups | None = None
    ) -> Integers:
        """m_f: how many candidates share a dataset with each model if the sweeps have these kinds.

        ``counted`` (n,): which models count; by default all. ``groups``: other ones than those of ``excluded``.
        """
        groups = self.groups if groups is None else groups
        weights = np.ones(len(self.order)) if counted is None else counted.astype(np.float64)
        kinds = sweep_kinds[self.sweeps.of_model]
        of_kind = np.bincount(kinds, weights=weights, minlength=len(self.share))
        # How many models share a dataset with each kind, including those of the kind itself.
        everyone = np.bincount(self.share_left, weights=of_kind[self.share_right], minlength=len(of_kind))
        of_part = sweep_kinds[groups.sweep]
        sizes = np.bincount(groups.parts.of_model, weights=weights, minlength=len(of_part))
        own = np.bincount(
            groups.left, weights=self.share[of_part[groups.left], of_part[groups.right]] * sizes[groups.right]
        )
        return (everyone[kinds] - own[groups.parts.of_model]).astype(np.intp)

    def evaluate(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Floats, Floats]:
        """The scored models, and the number of neighbours, the purity and the chance of each."""
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        limits = matching if self.looked_at is None else self.looked_at
        hits = self._hits(sweep_kinds[self.sweeps.of_model], scored, limits[scored], matching[scored])
        return scored, limits[scored], hits / limits[scored], matching[scored] / self.pool[scored]

    # ---- the statistic that is compared with permutations

    def asked(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """The scored models; how many of their neighbours count; how many of these are others'; others that match."""
        others = self.matching(sweep_kinds)
        every = others if self.own_groups is None else self.matching(sweep_kinds, groups=self.own_groups)
        scored = np.flatnonzero(every)
        limits = every if self.looked_at is None else self.looked_at
        theirs = limits if self.own is None else limits - self.own.before(limits)
        return scored, limits[scored], theirs[scored], others[scored]

    def excess(self, sweep_kinds: Integers) -> float:
        """How far the share of matches by others is above chance if the sweeps have these kinds: a mean over models.

        Of the m_f nearest of a model (or k) some may be its own author's. They neither count as matches nor as places
        that can be matched by chance, whatever their labels: (matches by others - others among them × share of others
        that match) / m_f. Without such models this is purity minus chance. 0 if no model is scored.
        """
        scored, limits, theirs, others = self.asked(sweep_kinds)
        if not len(scored):
            return 0.0
        hits = self._hits(sweep_kinds[self.sweeps.of_model], scored, theirs, others)
        chance = theirs / limits * (others / np.maximum(self.pool[scored], 1))
        return float((hits / limits - chance).mean())

    def reaches(self, sweep_kinds: Integers, least: float) -> bool:
        """Whether ``excess`` is at least ``least`` if the sweeps have these kinds.

        Exact, but usually without counting all models: those with the fewest neighbours are counted first, and counting
        stops when the mean would be too small even if all the others matched.
        """
        scored, limits, theirs, others = self.asked(sweep_kinds)
        if not len(scored):
            return least <= 0
        kinds = sweep_kinds[self.sweeps.of_model]
        chance = theirs / limits * (others / np.maximum(self.pool[scored], 1))
        cost = np.minimum(theirs, len(kinds) - theirs)
        turns = np.argsort(cost, kind="stable")
        hits, start = np.minimum(theirs, others).astype(np.float64), 0
        for end in [*(_SHARES * len(turns)).astype(np.intp).tolist(), len(turns)]:
            part = turns[start:end]
            hits[part] = self._hits(kinds, scored[part], theirs[part], others[part])
            reached = float((hits / limits - chance).mean())
            if reached < least - _ROUNDING:
                return False
            start = end
        return reached >= least

    def excesses(self, sweep_kinds: Integers) -> Floats:
        """(draws,) ``excess`` for each row of ``sweep_kinds`` (draws, sweeps).

        The same, for many permutations of a small population at once.
        """
        draws, sweeps, count = len(sweep_kinds), self.sweeps, len(self.order)
        width = len(self.share)
        share = self.share.astype(np.float64)
        flat = (sweep_kinds + width * np.arange(draws)[:, None]).ravel()
        of_kind = np.bincount(flat, weights=np.tile(sweeps.sizes, draws), minlength=draws * width).reshape(draws, width)
        everyone = np.take_along_axis(of_kind @ share, sweep_kinds, axis=1)[:, sweeps.of_model]

        def matching(groups: _Groups) -> Integers:
            of_part = sweep_kinds[:, groups.sweep]
            pairs = self.share[of_part[:, groups.left], of_part[:, groups.right]] * groups.parts.sizes[groups.right]
            own = np.add.reduceat(pairs, groups.starts, axis=1)
            return (everyone - own[:, groups.parts.of_model]).astype(np.intp)

        others = matching(self.groups)
        every = others if self.own_groups is None else matching(self.own_groups)
        limits = every if self.looked_at is None else np.broadcast_to(self.looked_at, every.shape)
        limits = np.where(every > 0, limits, 0)
        theirs = limits if self.own is None else limits - self.own.before(limits)
        reach = int(theirs.max(initial=0))
        # Most of the time goes into reading and writing these arrays: small numbers, with draws side by side.
        kinds = np.full((count + 1, draws), width - 1, np.uint8 if width <= 256 else np.uint32)
        kinds[:count] = sweep_kinds.T[sweeps.of_model]
        mine = kinds[:count]
        counted = np.ascontiguousarray(theirs.T.astype(np.uint16 if count < 1 << 16 else np.uint32))
        hits = np.zeros_like(counted)
        for rank, near in enumerate(self.order[:, :reach].T):
            theirs_kinds = kinds[near]
            matches = theirs_kinds == mine if self.is_one_each else self.share[mine, theirs_kinds]
            matches &= counted > rank
            hits += matches
        width_of = np.maximum(limits, 1)
        gains = hits.T / width_of - theirs / width_of * (others / np.maximum(self.pool, 1))
        return gains.sum(axis=1) / np.maximum((every > 0).sum(axis=1), 1)

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
            if not kept.any():
                continue
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
