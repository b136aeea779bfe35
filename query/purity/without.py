"""Purity without some of the models: how it moves when an author is taken away, as asked and as a neighbour."""

from __future__ import annotations

import numpy as np

from query.purity.labels import Floats, LabelledOrder
from query.statistics.intervals import FEWEST_AUTHORS, Ends, uncertainty, units_of
from query.statistics.neighbours import Booleans, Integers, Order, codes_of

MOST_UNITS = 30  # authors taken away one at a time; where there are more, groups of them
_BLOCK = 1 << 24  # entries of the table of neighbours looked at at a time


def interval(trial: LabelledOrder, authors: Integers, scored: Integers, purity: Floats) -> Ends | None:
    """95 % interval of mean purity; None where fewer than five authors have a scored model.

    Authors bear on one another: whoever is near others' models on their data makes these purer too. An interval from
    the scores alone (as of a bootstrap) takes them as given, and its standard error is half of what it should be. So
    every author in turn is taken away altogether and purity computed anew (the jackknife; for such statistics see
    Arvesen, 1969).
    """
    if len(np.unique(authors[scored])) < FEWEST_AUTHORS:
        return None
    units = units_of(authors.tolist(), MOST_UNITS)
    mean = float(purity.mean())
    left = [_mean_without(trial, units == unit) for unit in range(int(units.max()) + 1)]
    if None in left:
        return None
    weights = np.bincount(units[scored], minlength=len(left)) / len(scored)
    changes = np.array([mean - one for one in left if one is not None])
    return uncertainty(weights, changes).of_share(mean, len(scored))


def _mean_without(trial: LabelledOrder, is_gone: Booleans) -> float | None:
    kept = np.flatnonzero(~is_gone)
    groups = codes_of(trial.excluded[kept].tolist())
    labels = [trial.labels[row] for row in kept.tolist()]
    rest = LabelledOrder(shortened(trial.order, is_gone), groups, labels, trial.k)
    scored, _, purity, _ = rest.evaluate(rest.sweep_kinds)
    return float(purity.mean()) if len(scored) else None


def shortened(order: Order, is_gone: Booleans) -> Order:
    """The table of neighbours without some candidates, the others renumbered in their order."""
    kept = np.flatnonzero(~is_gone)
    number = np.append(np.cumsum(~is_gone) - 1, len(kept)).astype(order.dtype)  # the last stands for nobody
    stays = np.append(~is_gone, True)
    result = np.empty((len(kept), len(kept)), order.dtype)
    step = max(1, _BLOCK // max(1, len(order)))
    for start in range(0, len(kept), step):
        lists = order[kept[start : start + step]]
        result[start : start + step] = number[lists[stays[lists]]].reshape(len(lists), -1)
    return result
