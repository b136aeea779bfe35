"""Statistics of models by few authors, where the models of an author resemble each other: permutations, intervals.

A *sweep* is all runs of one author with one label: no test may treat its models as independent, so permutations move
whole sweeps.

95 % intervals of means take authors (units) of unequal size as independent, not their models. A bootstrap over five to
ten authors covers the truth .74–.93 of the time instead of .95, and far less near 1. Here the variance comes from how
the mean changes without each unit in turn, unbiased if units have equal variance (after Bell & McCaffrey, 2002), with
degrees of freedom by Satterthwaite (1946), which are few if one author has most of the models. A share has Wilson's
interval (1927) with the effective number of models (Korn & Graubard, 1998; Dean & Pagano, 2015), which stays within 0
and 1 and does not shrink to a point if all models are right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, product
from typing import Any

import numpy as np
import numpy.typing as npt

from query.shared.statistics.neighbours import Integers, codes_of, members_of

Floats = npt.NDArray[np.float64]
Ends = tuple[float, float]

FEWEST_AUTHORS = 5
UNCONVINCING = 0.05  # a larger p may be chance
TOO_FEW_AUTHORS = "too_few_authors"  # the reason in JSON for an interval that is null
MOST_UNITS = 30  # authors left out one at a time; more authors are left out in groups


# ---- sweeps


class AuthorRuns:
    """The sweeps among n models, numbered in order of first appearance.

    Attributes:
        authors: (n,) a code for each model's author, from 0.
        of_model: (n,) the model's sweep, -1 if its label is None.
        author, labels, sizes: (sweeps,) of each sweep.
        first: (sweeps,) the index of each sweep's first model.
        stratum: (sweeps,) the most frequent of its models' ``strata`` (n,), the lowest if several are; 0 without them.
    """

    def __init__(self, authors: Integers, labels: Sequence[Hashable | None], strata: Integers | None = None) -> None:
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
        self.stratum: Integers = np.zeros(len(self.sizes), dtype=np.intp)
        if strata is not None:
            counts = np.zeros((len(self.sizes), int(strata.max(initial=0)) + 1), dtype=np.intp)
            np.add.at(counts, (codes, strata[labelled]), 1)
            self.stratum = counts.argmax(axis=1)

    @cached_property
    def lists(self) -> list[Integers]:
        """The sweeps of every author; the authors are numbered without gaps here."""
        return members_of(codes_of(self.author.tolist()))

    @cached_property
    def exchangeable(self) -> list[tuple[Integers, list[slice]]]:
        """The authors whose sweeps may exchange labels, group by group.

        For each group an array (authors, sweeps per author), with the sweeps of an author by stratum, and the columns
        of each stratum. Authors of one group have as many sweeps in every stratum.
        """
        groups: dict[tuple[int, ...], list[Integers]] = {}
        for sweeps in self.lists:
            ordered = sweeps[np.argsort(self.stratum[sweeps], kind="stable")]
            groups.setdefault((len(sweeps), *self.stratum[ordered].tolist()), []).append(ordered)
        groups_of_authors = []
        for profile in sorted(groups):
            stops = np.cumsum([len(list(run)) for _, run in groupby(profile[1:])]).tolist()
            columns = [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
            groups_of_authors.append((np.array(groups[profile]), columns))
        return groups_of_authors

    def permuted(self, sweep_labels: Integers, rng: np.random.Generator, count: int | None = None) -> Integers:
        """``sweep_labels`` (sweeps,) after a random permutation within strata; (count, sweeps) with a ``count``.

        An author's list of labels moves as a whole to another author with as many sweeps in every stratum, and is
        shuffled among that author's sweeps of one stratum. Such moves form a group in the sense of algebra, so a
        permutation test with them is exact whatever the sizes of the sweeps and however similar the models of one
        author are.
        """
        permuted = np.tile(sweep_labels, (1 if count is None else count, 1))
        for sweeps, columns in self.exchangeable:
            turns = np.tile(np.arange(len(sweeps)), (len(permuted), 1))
            lists = sweep_labels[sweeps][rng.permuted(turns, axis=1)]
            for stratum_columns in columns:
                lists[:, :, stratum_columns] = rng.permuted(lists[:, :, stratum_columns], axis=2)
            permuted[:, sweeps] = lists
        return permuted[0] if count is None else permuted

    @property
    def ways(self) -> int:
        """How many different permutations there are."""
        return math.prod(
            math.factorial(len(sweeps))
            * math.prod(math.factorial(stratum_columns.stop - stratum_columns.start) for stratum_columns in columns)
            ** len(sweeps)
            for sweeps, columns in self.exchangeable
        )

    def outcomes(self, sweep_labels: Integers) -> int:
        """How many different arrangements of ``sweep_labels`` the permutations lead to.

        All arrangements are equally probable: the permutations form a group, so as many of them lead to each.
        """
        number = 1
        for sweeps, columns in self.exchangeable:
            contents = [_contents(row, columns) for row in sweep_labels[sweeps].tolist()]
            number *= _orders(contents)
            number *= math.prod(_orders(part) for content in contents for part in content)
        return number

    def every(self, sweep_labels: Integers) -> Iterator[Integers]:
        """Every arrangement (sweeps,) that ``outcomes`` counts, once."""

        def arrangements(sweeps: Integers, columns: Sequence[slice]) -> Iterator[list[int]]:
            for contents in _every_order([_contents(row, columns) for row in sweep_labels[sweeps].tolist()]):
                orders = [list(_every_order(stratum_labels)) for content in contents for stratum_labels in content]
                for arrangement in product(*orders):
                    yield list(chain.from_iterable(arrangement))

        groups = self.exchangeable
        sweep_order = np.concatenate(
            [row[stratum_columns] for sweeps, columns in groups for row in sweeps for stratum_columns in columns]
        )
        for lists in product(*(list(arrangements(*group)) for group in groups)):
            arranged = sweep_labels.copy()
            arranged[sweep_order] = list(chain.from_iterable(lists))
            yield arranged

    def movable(self, sweep_labels: Integers) -> Integers:
        """The models whose label can become another in a permutation of ``sweep_labels`` (sweeps,)."""
        is_movable = np.zeros(len(sweep_labels), dtype=bool)
        for sweeps, columns in self.exchangeable:
            for stratum_columns in columns:
                is_movable[sweeps[:, stratum_columns]] = len(np.unique(sweep_labels[sweeps[:, stratum_columns]])) > 1
        return np.flatnonzero((self.of_model >= 0) & is_movable[self.of_model])


def _contents(row: Sequence[int], columns: Sequence[slice]) -> tuple[tuple[int, ...], ...]:
    """The labels of an author's sweeps, by stratum, in no order."""
    return tuple(tuple(sorted(row[stratum_columns])) for stratum_columns in columns)


def _orders(labels: Sequence[Hashable]) -> int:
    """The number of different orders of ``labels``, some of which may be equal."""
    return math.factorial(len(labels)) // math.prod(map(math.factorial, Counter(labels).values()))


def _every_order(labels: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every different order of ``labels``, in lexicographic order (Knuth, TAOCP 7.2.1.2, algorithm L)."""
    order = sorted(labels)
    while True:
        yield tuple(order)
        last = next((index for index in range(len(order) - 2, -1, -1) if order[index] < order[index + 1]), None)
        if last is None:
            return
        larger = next(index for index in range(len(order) - 1, last, -1) if order[index] > order[last])
        order[last], order[larger] = order[larger], order[last]
        order[last + 1 :] = reversed(order[last + 1 :])


# ---- intervals


def too_few(authors: int) -> str:
    """``TOO_FEW_AUTHORS`` as a sentence."""
    return f"No interval: it needs models of at least {FEWEST_AUTHORS} authors, and there are {authors}."


@dataclass(frozen=True)
class Uncertainty:
    """The standard ``error`` of a mean, and the ``quantile`` of t for 95 %."""

    error: float
    quantile: float

    def of_share(self, share: float, models: float) -> Ends:
        """The interval of a mean of values in [0, 1]; never narrower than for independent yes-or-no values."""
        count = share * (1 - share) / self.error**2 if self.error > 0 else np.inf
        return wilson(share, max(min(count, models), 1e-9), self.quantile)

    def of_loss(self, mean: float) -> Ends:
        """The interval of a mean of values in [0, ∞): symmetric for its logarithm."""
        factor = float(np.exp(min(self.quantile * self.error / mean, 50.0))) if mean > 0 else 1.0
        return mean / factor, mean * factor


def uncertainty(weights: Floats, changes: Floats) -> Uncertainty:
    """From each unit's share in a mean (summing to 1) and how much the mean falls when the unit is left out.

    If units are independent, the change is w_i/(1 - w_i) · (m_i - mean), with m_i the mean of unit i.
    """
    from scipy.special import stdtrit

    square = float(weights @ weights)
    room = 1 - 2 * weights + square  # of (m_i - mean)² in units of the variance of m_i
    scale = np.where(room > 0, weights**2 / np.maximum(room, 1e-12), 0)
    variance = float(np.where(room > 0, (1 - weights) ** 2 / np.maximum(room, 1e-12), 0) @ changes**2)
    return Uncertainty(float(np.sqrt(variance)), float(stdtrit(_freedom(weights, scale, square), 0.975)))


def _freedom(weights: Floats, scale: Floats, square: float) -> float:
    """2 E²/Var of Σ scale_i (m_i - mean)² for independent normal m_i of equal variance: tr(M)²/tr(M²).

    M = Rᵀ diag(scale) R with R = I - 1 wᵀ, computed without an array of units × units.
    """
    total, along, norm = scale.sum(), scale @ weights, scale @ scale
    trace = total - 2 * along + total * square
    trace_of_square = (
        norm - 4 * (scale**2) @ weights + 2 * total * (scale @ weights**2)
        + 2 * (along**2 + norm * square) - 4 * total * along * square + (total * square) ** 2
    )  # fmt: skip
    return float(max(trace**2 / max(trace_of_square, 1e-300), 1.0))


def independent_changes(weights: Floats, sums: Floats, mean: float) -> Floats:
    """The changes if leaving a unit out does not affect the values of the others; ``sums``: w_i · m_i."""
    remaining = 1 - weights
    return np.where(remaining > 1e-12, (sums - weights * mean) / np.maximum(remaining, 1e-12), 0)


def wilson(share: float, count: float, quantile: float = 1.959964) -> Ends:
    """Wilson's interval of a share of ``count`` models; its ends p solve (share - p)² = quantile² · p (1 - p)/count."""
    if not np.isfinite(count):
        return share, share
    square = quantile * quantile
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = quantile / (1 + square / count) * np.sqrt(share * (1 - share) / count + square / (4 * count * count))
    # The observed share is always inside; rounding must not put it outside at 0 and 1.
    return min(share, max(0.0, float(centre - half))), max(share, min(1.0, float(centre + half)))


def units_of(authors: Sequence[Any] | Integers, most: int) -> Integers:
    """A code for each model: its author or, with more than ``most`` authors, a group of authors.

    Authors are taken by descending number of models, each joining the group with the fewest models so far.
    """
    codes = codes_of(list(authors))
    sizes = np.bincount(codes)
    group = np.zeros(len(sizes), dtype=np.intp)
    filled = np.zeros(min(most, len(sizes)))
    for author in np.argsort(-sizes, kind="stable"):
        group[author] = np.argmin(filled)
        filled[group[author]] += sizes[author]
    return group[codes]


# ---- rank correlation


def spearman(left: Floats, right: Floats, authors: Sequence[Any] | npt.NDArray[Any]) -> tuple[float, Ends | None]:
    """Spearman's ρ of two tables (models, layers) within layers, and its 95 % interval; None for fewer than 5 authors.

    Values are ranked over the models of each layer, so a trend over layers that all models share does not count:
    ρ = Σ covariances / √(Σ variances · Σ variances) of the ranks, summed over the layers where both tables vary. With
    one layer that is the usual ρ. The interval is one for Fisher's z = artanh ρ, from how z changes without each author
    in turn (``uncertainty``), and never narrower than for as many independent models, whatever the number of layers.
    """
    rho = _rho_within(left, right)
    models, codes = len(left), codes_of(list(authors))
    if codes.max(initial=-1) + 1 < FEWEST_AUTHORS:
        return rho, None
    units = units_of(codes, MOST_UNITS)
    # Halfway to the next smaller ρ that so many ranks can have, where they agree exactly.
    largest = 1 - 6 / (models * (models**2 - 1))

    def height(value: float) -> float:
        return float(np.arctanh(np.clip(value, -largest, largest)))

    spread = uncertainty(
        np.bincount(units) / models,
        np.array([height(rho) - height(_rho_within(left[units != unit], right[units != unit]))
                  for unit in range(int(units.max()) + 1)]),
    )  # fmt: skip
    reach = spread.quantile * max(spread.error, 1 / math.sqrt(max(models - 3, 1)))
    low, high = math.tanh(height(rho) - reach), math.tanh(height(rho) + reach)
    return rho, (min(low, rho), max(high, rho))


def _rho_within(left: Floats, right: Floats) -> float:
    from scipy.stats import rankdata

    ranks = [rankdata(table, axis=0) - (len(table) + 1) / 2 for table in (left, right)]
    varies = np.logical_and(*(table.any(axis=0) for table in ranks))
    left_ranks, right_ranks = (ranks[index][:, varies] for index in (0, 1))
    size = float(np.sqrt((left_ranks**2).sum() * (right_ranks**2).sum()))
    return float((left_ranks * right_ranks).sum() / size) if size > 0 else 0.0
