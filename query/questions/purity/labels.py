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
    """The positions of an author's own models in the lists of that author's models, before their removal.

    Args:
        order: lists of neighbours without the models of the row's own group of ``excluded``.
        excluded: (n,) groups of models.
        owners: (n,) the author of each model; a group belongs to one author.
    """

    def __init__(self, order: Order, excluded: Integers, owners: Integers) -> None:
        self.excluded, self.count = excluded, len(order)
        owner_of = np.append(owners, -1)
        step = max(1, _BLOCK // max(1, self.count))
        flat_places = []
        for start in range(0, self.count, step):
            tile = slice(start, start + step)
            rows, columns = np.nonzero(owner_of[order[tile]] == owners[tile, None])
            flat_places.append((rows + start) * (self.count + 1) + columns)
        # One ascending array for all lists: the positions in list f are offset by f · (n + 1).
        self.places: Integers = np.concatenate([np.zeros(0, dtype=np.intp), *flat_places])
        self.starts = np.arange(self.count) * (self.count + 1)
        self.first = np.searchsorted(self.places, self.starts)

    def before(self, limits: Integers) -> Integers:
        """How many own models are among the first ``limits`` (…, n) of each list."""
        return np.searchsorted(self.places, self.starts + limits) - self.first


class _Groups:
    """The groups of models that are not candidates for each other; ``parts``: the parts of sweeps in a group."""

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

    Label sets are reduced to the datasets that can match in any permutation, and numbered: the ``kind`` of a model.

    Args:
        order: all candidates of each model, nearest first.
        excluded: (n,) models of one group are not candidates for each other.
        labels: the label set of each model.
        k: the number of nearest candidates to look at; None: as many as match (m_f).
        strata: (n,) labels are permuted only among sweeps of one stratum.
        is_split: an author's models with one label are then a sweep in each stratum, instead of one sweep.
        owners: (n,) the authors whose sweeps are permuted (``AuthorRuns``), by default ``excluded``; a group of
            ``excluded`` belongs to one owner.
        own_places: for ``excess``, if ``order`` lacks the models of a model's owner, but those in other groups of
            ``own_places.excluded`` count among its m_f nearest.
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
        own_places: OwnPlaces | None = None,
    ) -> None:
        self.order, self.excluded, self.labels, self.k = order, excluded, labels, k
        self.own_places = own_places
        owners = excluded if owners is None else owners
        finest = excluded if own_places is None else own_places.excluded
        # Among candidates of one owner, the size of a sweep decides whether its models match each other.
        is_finer = len(np.unique(finest)) > len(np.unique(owners))
        dataset_owners = {(name, owner) for owner, names in zip(owners.tolist(), labels, strict=True) for name in names}
        holders = Counter(name for name, _ in dataset_owners)
        self.names = sorted(name for name, count in holders.items() if count > 1 or is_finer)
        number = {name: index for index, name in enumerate(self.names)}
        reduced = [tuple(sorted(number[name] for name in names if name in number)) for names in labels]
        self.kinds = codes_of(reduced)
        self.kind_labels = list(dict.fromkeys(reduced))
        # The index n, which fills the ends of lists, has a kind of its own without datasets.
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
        self.own_groups = None if own_places is None else _Groups(own_places.excluded, self.sweeps)
        self.pool = self.groups.pool
        widest = (self.own_groups or self.groups).pool
        self.looked_at = None if k is None else np.minimum(k, widest)

    def matching(
        self, sweep_kinds: Integers, counted: Booleans | None = None, groups: _Groups | None = None
    ) -> Integers:
        """(n,) m_f: how many candidates share a dataset with each model if the sweeps have these kinds.

        ``counted`` (n,): which models count; by default all. ``groups``: by default those of ``excluded``.
        """
        groups = self.groups if groups is None else groups
        weights = np.ones(len(self.order)) if counted is None else counted.astype(np.float64)
        kinds = sweep_kinds[self.sweeps.of_model]
        of_kind = np.bincount(kinds, weights=weights, minlength=len(self.share))
        # How many models share a dataset with each kind, including the models of this kind.
        all_matches = np.bincount(self.share_left, weights=of_kind[self.share_right], minlength=len(of_kind))
        of_part = sweep_kinds[groups.sweep]
        sizes = np.bincount(groups.parts.of_model, weights=weights, minlength=len(of_part))
        own_group = np.bincount(
            groups.left, weights=self.share[of_part[groups.left], of_part[groups.right]] * sizes[groups.right]
        )
        return (all_matches[kinds] - own_group[groups.parts.of_model]).astype(np.intp)

    def evaluate(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Floats, Floats]:
        """The scored models, and the number of neighbours, the purity and the chance of each."""
        matching = self.matching(sweep_kinds)
        scored = np.flatnonzero(matching)
        limits = matching if self.looked_at is None else self.looked_at
        hits = self._hits(sweep_kinds[self.sweeps.of_model], scored, limits[scored], matching[scored])
        return scored, limits[scored], hits / limits[scored], matching[scored] / self.pool[scored]

    # ---- the statistic that is compared with permutations

    def neighbour_counts(self, sweep_kinds: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """The scored models, and for each the numbers that ``excess`` needs.

        Returns:
            The scored models (m,); the number of their neighbours that count (m_f or k); the number of those by other
            authors; the number of candidates by other authors that match.
        """
        other_matches = self.matching(sweep_kinds)
        all_matches = other_matches if self.own_groups is None else self.matching(sweep_kinds, groups=self.own_groups)
        scored = np.flatnonzero(all_matches)
        limits = all_matches if self.looked_at is None else self.looked_at
        by_others = limits if self.own_places is None else limits - self.own_places.before(limits)
        return scored, limits[scored], by_others[scored], other_matches[scored]

    def excess(self, sweep_kinds: Integers) -> float:
        """How far the share of matches by others is above chance if the sweeps have these kinds: a mean over models.

        Some of a model's m_f (or k) nearest may be by its own author. These count neither as matches nor as neighbours
        that can match by chance, whatever their labels: (matches by others - neighbours by others × share of candidates
        by others that match) / m_f. Without such models this is purity minus chance. 0 if no model is scored.
        """
        scored, limits, by_others, other_matches = self.neighbour_counts(sweep_kinds)
        if not len(scored):
            return 0.0
        hits = self._hits(sweep_kinds[self.sweeps.of_model], scored, by_others, other_matches)
        chance = by_others / limits * (other_matches / np.maximum(self.pool[scored], 1))
        return float((hits / limits - chance).mean())

    def reaches(self, sweep_kinds: Integers, least: float) -> bool:
        """Whether ``excess`` is at least ``least`` if the sweeps have these kinds.

        Exact, but usually without counting all models. It begins with the models that have the fewest neighbours, and
        stops when the mean would be too small even if all the remaining models matched.
        """
        scored, limits, by_others, other_matches = self.neighbour_counts(sweep_kinds)
        if not len(scored):
            return least <= 0
        kinds = sweep_kinds[self.sweeps.of_model]
        chance = by_others / limits * (other_matches / np.maximum(self.pool[scored], 1))
        cost = np.minimum(by_others, len(kinds) - by_others)
        turns = np.argsort(cost, kind="stable")
        hits, start = np.minimum(by_others, other_matches).astype(np.float64), 0
        for end in [*(_SHARES * len(turns)).astype(np.intp).tolist(), len(turns)]:
            block = turns[start:end]
            hits[block] = self._hits(kinds, scored[block], by_others[block], other_matches[block])
            reached = float((hits / limits - chance).mean())
            if reached < least - _ROUNDING:
                return False
            start = end
        return reached >= least

    def excesses(self, sweep_kinds: Integers) -> Floats:
        """(draws,) ``excess`` for each row of ``sweep_kinds`` (draws, sweeps), for small populations.

        It has the results of ``excess``, and is faster for many permutations.
        """
        draws, sweeps, count = len(sweep_kinds), self.sweeps, len(self.order)
        width = len(self.share)
        share = self.share.astype(np.float64)
        flat = (sweep_kinds + width * np.arange(draws)[:, None]).ravel()
        of_kind = np.bincount(flat, weights=np.tile(sweeps.sizes, draws), minlength=draws * width).reshape(draws, width)
        matches_of_kind = np.take_along_axis(of_kind @ share, sweep_kinds, axis=1)[:, sweeps.of_model]

        def matching(groups: _Groups) -> Integers:
            of_part = sweep_kinds[:, groups.sweep]
            pairs = self.share[of_part[:, groups.left], of_part[:, groups.right]] * groups.parts.sizes[groups.right]
            own_group = np.add.reduceat(pairs, groups.starts, axis=1)
            return (matches_of_kind - own_group[:, groups.parts.of_model]).astype(np.intp)

        other_matches = matching(self.groups)
        all_matches = other_matches if self.own_groups is None else matching(self.own_groups)
        limits = all_matches if self.looked_at is None else np.broadcast_to(self.looked_at, all_matches.shape)
        limits = np.where(all_matches > 0, limits, 0)
        by_others = limits if self.own_places is None else limits - self.own_places.before(limits)
        reach = int(by_others.max(initial=0))
        # Reading and writing these arrays takes most of the time, hence small dtypes, and draws in the last axis.
        kinds = np.full((count + 1, draws), width - 1, np.uint8 if width <= 256 else np.uint32)
        kinds[:count] = sweep_kinds.T[sweeps.of_model]
        own_kinds = kinds[:count]
        counted = np.ascontiguousarray(by_others.T.astype(np.uint16 if count < 1 << 16 else np.uint32))
        hits = np.zeros_like(counted)
        for rank, neighbours in enumerate(self.order[:, :reach].T):
            near_kinds = kinds[neighbours]
            matches = near_kinds == own_kinds if self.is_one_each else self.share[own_kinds, near_kinds]
            matches &= counted > rank
            hits += matches
        width_of = np.maximum(limits, 1)
        gains = hits.T / width_of - by_others / width_of * (other_matches / np.maximum(self.pool, 1))
        return gains.sum(axis=1) / np.maximum((all_matches > 0).sum(axis=1), 1)

    def matches(self, kinds: Integers) -> Callable[[Integers, Order], Booleans]:
        """A function of rows and their neighbours (rows, width): which of them match if models have these kinds."""
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
        # A pass for a single kind looks up one number for each neighbour, not two, which pays for kinds of many models.
        kind_of = np.append(kinds, len(self.kind_labels))
        hits = np.empty(len(rows), dtype=np.intp)
        many = np.bincount(kinds[rows], weights=np.minimum(limits, len(kinds) - limits)) > 8000
        for kind in np.flatnonzero(many):
            of_kind = np.flatnonzero(kinds[rows] == kind)
            matching = self.share[kind].take(kind_of)
            hits[of_kind] = count_matches(self.order, rows[of_kind], limits[of_kind], totals[of_kind], marked(matching))
        remaining = np.flatnonzero(~many[kinds[rows]])
        hits[remaining] = count_matches(self.order, rows[remaining], limits[remaining], totals[remaining], is_match)
        return hits

    def dataset_scores(self) -> Iterator[DatasetPurity]:
        """The score of each dataset, among all candidates."""
        holders: dict[str, list[int]] = {}
        for position, names in enumerate(self.labels):
            for name in names:
                holders.setdefault(name, []).append(position)
        for name in self.names:
            members = np.array(holders[name], dtype=np.intp)
            matching = len(members) - np.bincount(self.excluded[members])[self.excluded[members]]
            limits = matching if self.looked_at is None else self.looked_at[members]
            is_scored = matching > 0
            if not is_scored.any():
                continue
            marks = np.zeros(len(self.order) + 1, bool)
            marks[members] = True
            hits = count_matches(self.order, members[is_scored], limits[is_scored], matching[is_scored], marked(marks))
            chance = matching[is_scored] / self.pool[members[is_scored]]
            yield DatasetPurity(name, len(hits), float(np.mean(hits / limits[is_scored])), float(np.mean(chance)))


# ---- confused datasets: the neighbours that do not match, compared with chance


def confused_pairs(trial: LabelledOrder) -> tuple[Confusion, ...]:
    """All pairs of datasets with any confusion; notable ones first, then by how far both shares exceed chance.

    Counts are summed over the models of a dataset. A neighbour counts once for every dataset that it names.
    """
    from scipy.sparse import csr_array

    names = sorted({name for names in trial.labels for name in names})
    number_of = {name: column for column, name in enumerate(names)}
    pairs = [(row, number_of[name]) for row, datasets in enumerate(trial.labels) for name in datasets]
    rows, columns = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    # (models, datasets): 1 if the model names the dataset.
    member = csr_array((np.ones(len(pairs)), (rows, columns)), (len(trial.labels), len(names)))
    counts = np.zeros((len(names), len(names)))
    expected = np.zeros_like(counts)
    totals = np.zeros(len(names))
    for rows, missed, unmatched in _misses(trial):
        # (rows, datasets): neighbours and candidates that do not match, by the datasets they name.
        mistaken, choices = missed @ member, unmatched @ member
        missed_count, choice_count = missed.sum(axis=1), unmatched.sum(axis=1)
        by_dataset = member[rows].T
        totals += by_dataset @ missed_count
        counts += by_dataset @ mistaken
        expected += by_dataset @ (choices * (missed_count / np.maximum(choice_count, 1))[:, None])
    totals = np.maximum(totals, 1)
    confusions = []
    for first, second in combinations(range(len(names)), 2):
        forward_count, backward_count = counts[first, second], counts[second, first]
        if forward_count + backward_count:
            confusions.append(
                Confusion(
                    dataset=names[first],
                    taken_for=names[second],
                    neighbours=int(forward_count),
                    share=float(forward_count / totals[first]),
                    chance=float(expected[first, second] / totals[first]),
                    back_neighbours=int(backward_count),
                    back_share=float(backward_count / totals[second]),
                    back_chance=float(expected[second, first] / totals[second]),
                    is_notable=bool(
                        forward_count > expected[first, second] and backward_count > expected[second, first]
                    ),
                )
            )

    def lift(pair: Confusion) -> float:
        directions = ((pair.share, pair.chance), (pair.back_share, pair.back_chance))
        return min(share / chance if chance > 0 else 0.0 for share, chance in directions)

    return tuple(sorted(confusions, key=lambda pair: (not pair.is_notable, -lift(pair), pair.dataset, pair.taken_for)))


def _misses(trial: LabelledOrder) -> Iterator[tuple[Integers, Floats, Floats]]:
    """Blocks of scored models, with masks (rows, models) of their neighbours and candidates that do not match."""
    matching = trial.matching(trial.sweep_kinds)
    limits = matching if trial.looked_at is None else trial.looked_at
    scored = np.flatnonzero(matching)
    count = len(trial.order)
    is_match = trial.matches(trial.kinds)
    positions = np.arange(count)
    step = max(1, _BLOCK // count)
    for rows in (scored[start : start + step] for start in range(0, len(scored), step)):
        candidates = trial.excluded[rows, None] != trial.excluded[None, :]
        unmatched = candidates & ~is_match(rows, np.broadcast_to(positions, candidates.shape))
        is_near = np.zeros((len(rows), count + 1), dtype=bool)  # the last column is for no model
        lists = trial.order[rows].astype(np.intp)
        np.put_along_axis(is_near, lists, positions < limits[rows, None], axis=1)
        yield rows, (is_near[:, :count] & unmatched).astype(np.float64), unmatched.astype(np.float64)
