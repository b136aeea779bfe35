"""What a table of similarities is worth: each figure with its chance level, an interval over authors, and a null.

The null: label sets are exchanged between authors, an author's models with one label set as a whole, as `query purity`
does it; the similarities stay. So whatever an author's models have in common, or the atlas as a whole, is in the null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from query.questions.purity.labels import LabelledOrder
from query.questions.purity.study import interval, null_distribution
from query.shared.statistics.authors import FEWEST_AUTHORS, MOST_UNITS, AuthorRuns, uncertainty, units_of
from query.shared.statistics.neighbours import codes_of, leave_out
from studies.arena.scores import Labels, Reals, orders, vote

DRAWS = 1000  # permutations for p
_NULLS = 200  # and for the figure that they have on average


@dataclass(frozen=True)
class Figure:
    """A share over ``models``.

    ``chance``: of a random order of the models. ``low`` and ``high``: the ends of a 95 % interval over authors, None
    where they are fewer than five. ``null``: the mean of the same share if authors exchange labels, and ``p``: how often
    it is then as far above chance. None where nothing can be scored.
    """

    models: int
    share: float | None = None
    chance: float | None = None
    low: float | None = None
    high: float | None = None
    null: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Scores:
    """Of one method.

    ``nearest``: of the adapters of which another author has one of the same data set, those whose most similar adapter
    by another author is one; ``purity``: among as many as there are of the same data set; ``vote``: of five, as in the
    arena. ``compared``: how many adapters the method has a similarity for.
    """

    compared: int
    nearest: Figure
    purity: Figure
    vote: Figure

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def scores_of(similarity: Reals, labels: Labels, authors: Sequence[str], *, draws: int = DRAWS) -> Scores:
    """The scores of (n, n) similarities; nan where a method cannot compare two adapters.

    ``labels``: none of an adapter that names no data set. It may be the nearest, but is not scored, and is no candidate
    for purity.
    """
    rows = np.flatnonzero(~np.isnan(np.diag(similarity)))
    labelled = rows[[bool(labels[row]) for row in rows.tolist()]] if len(rows) else rows

    def take(chosen: NDArray[np.intp]) -> tuple[Reals, list[frozenset[str]], list[str]]:
        named = [labels[row] for row in chosen.tolist()]
        return similarity[np.ix_(chosen, chosen)], named, [authors[row] for row in chosen.tolist()]

    return Scores(
        compared=len(rows),
        nearest=_near(*take(rows), 1, draws),
        purity=_near(*take(labelled), None, draws),
        vote=_votes(*take(labelled), draws),
    )


def _near(similarity: Reals, labels: list[frozenset[str]], authors: list[str], k: int | None, draws: int) -> Figure:
    """The share of matches among the ``k`` nearest by other authors, or among as many as there are."""
    if len(labels) < 2:
        return Figure(0)
    owners = codes_of(authors)
    order = next(orders(similarity))
    leave_out(order, owners)
    trial = LabelledOrder(order, owners, labels, k)
    scored, _, shares, chance = trial.evaluate(trial.sweep_kinds)
    if not len(scored):
        return Figure(0)
    ends = interval(trial, owners, scored, shares)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(min(_NULLS, draws)):
        _, _, permuted, _ = trial.evaluate(trial.sweeps.permuted(trial.sweep_kinds, rng))
        means.append(float(permuted.mean()) if len(permuted) else 0.0)
    return Figure(
        len(scored),
        float(shares.mean()),
        float(chance.mean()),
        *(ends or (None, None)),
        null=float(np.mean(means)),
        p=null_distribution(trial, draws, np.random.default_rng(1))["p_value"],
    )


def _votes(similarity: Reals, labels: list[frozenset[str]], authors: list[str], draws: int) -> Figure:
    """How often the nearest by other authors, voting, name a data set that the adapter has."""
    if len(labels) < 2:
        return Figure(0)
    owners, order = codes_of(authors), next(orders(similarity))

    def right(named: Sequence[frozenset[str]], stays: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Reals]:
        """The adapters of which another author has one of the same data set, and whether the vote is right."""
        kinds = codes_of(list(named))
        distinct = [named[place] for place in np.unique(kinds, return_index=True)[1].tolist()]
        share = np.array([[bool(one & other) for other in distinct] for one in distinct])
        matches = share[kinds[:, None], kinds] & (owners[:, None] != owners) & stays
        rows = np.flatnonzero(stays & matches.any(axis=1))
        hits = [
            vote([other for other in order[row].tolist() if stays[other]], row, named, authors) for row in rows.tolist()
        ]
        return rows, np.array(hits, np.float64)

    everyone = np.ones(len(labels), bool)
    scored, hits = right(labels, everyone)
    if not len(scored):
        return Figure(0)
    share = float(hits.mean())
    units = units_of(authors, MOST_UNITS)
    low, high = _jackknife(units, scored, share, lambda stays: right(labels, stays)[1])
    sweeps = AuthorRuns(owners, labels)
    rng = np.random.default_rng(0)
    permuted = []
    for _ in range(min(_NULLS, draws)):
        moved = sweeps.permuted(np.arange(len(sweeps.labels)), rng)
        _, found = right([sweeps.labels[moved[sweep]] for sweep in sweeps.of_model.tolist()], everyone)
        permuted.append(float(found.mean()) if len(found) else 0.0)
    null = np.array(permuted)
    p = (1 + int((null >= share).sum())) / (1 + len(null))
    return Figure(len(scored), share, None, low, high, float(null.mean()), p)


def _jackknife(
    units: NDArray[np.intp],
    scored: NDArray[np.intp],
    share: float,
    without: Callable[[NDArray[np.bool_]], Reals],
) -> tuple[float | None, float | None]:
    """The interval of a share, from how it changes without each author in turn (``query.shared.statistics.authors``)."""
    if len(np.unique(units[scored])) < FEWEST_AUTHORS:
        return None, None
    left = [without(units != unit) for unit in range(int(units.max()) + 1)]
    if not all(len(one) for one in left):
        return None, None
    weights = np.bincount(units[scored], minlength=len(left)) / len(scored)
    return uncertainty(weights, np.array([share - float(one.mean()) for one in left])).of_share(share, len(scored))
