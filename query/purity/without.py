"""Purity without some of the models: how it moves when an author is taken away, as asked and as a neighbour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from query.purity.labels import Floats, LabelledOrder
from query.statistics.intervals import FEWEST_AUTHORS, Ends, uncertainty, units_of
from query.statistics.neighbours import Integers
from query.statistics.threads import each

MOST_UNITS = 30  # authors taken away one at a time; where there are more, groups of them
_BLOCK = 1 << 19  # entries of the table of neighbours looked at at a time


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
    left = means_without(trial, units)
    mean = float(purity.mean())
    changes = np.array([mean - one for one in left if one is not None])
    if len(changes) < len(left):
        return None
    weights = np.bincount(units[scored], minlength=len(left)) / len(scored)
    return uncertainty(weights, changes).of_share(mean, len(scored))


def means_without(trial: LabelledOrder, units: Integers) -> list[float | None]:
    """Mean purity without the models of each unit in turn; None where none of the others can be scored."""
    count, gone = int(units.max()) + 1, np.arange(len(units))
    limits = np.zeros((len(units), count + 1), dtype=np.intp)  # the last of each row is nobody's
    for unit in range(count):
        stays = units != unit
        matching = trial.matching(trial.sweep_kinds, np.bincount(trial.sweeps.of_model, weights=stays))
        pool = stays.sum() - np.bincount(trial.excluded, weights=stays)[trial.excluded].astype(np.intp)
        looked_at = matching if trial.k is None else np.minimum(trial.k, pool)
        limits[:, unit] = np.where(stays & (matching > 0), looked_at, 0)
    reach = limits[:, :-1] + np.bincount(units)  # no further into the list than that
    widths = np.minimum(np.where(limits[:, :-1] > 0, reach, 0).max(axis=1), len(units))
    hits = np.zeros(limits.shape, dtype=np.intp)

    def count_hits(part: Integers) -> None:
        hits[part] = _hits_without(trial, units, part, limits[part], int(widths[part].max()))

    each(count_hits, _alike(widths))
    means: list[float | None] = []
    for unit in range(count):
        scored = gone[limits[:, unit] > 0]
        means.append(float((hits[scored, unit] / limits[scored, unit]).mean()) if len(scored) else None)
    return means


def _alike(widths: Integers) -> Iterator[Integers]:
    """Rows of about equal width, as many as may be looked at at a time; those of no width are left out."""
    turns = np.argsort(widths, kind="stable")
    turns = turns[widths[turns] > 0]
    start = 0
    while start < len(turns):
        stop = int(np.searchsorted(widths[turns], 2 * widths[turns[start]] + 16, side="right"))
        stop = start + max(1, min(stop - start, _BLOCK // int(widths[turns[stop - 1]])))
        yield turns[start:stop]
        start = stop


def _hits_without(trial: LabelledOrder, units: Integers, rows: Integers, limits: Integers, width: int) -> Integers:
    """(rows, units + 1): matches among the first ``limits`` neighbours that are not of the unit, in lists of ``width``.

    The i-th of a unit's models in a list, at place p, is passed on the way to the limit if p - i, which are the others
    before it, are fewer than the limit. So many places more are looked at, less the matches that were passed.
    """
    lists = trial.order[rows, :width]
    count = limits.shape[1]
    unit_of = np.append(units, count - 1).astype(np.uint8)
    matches = trial.matches(trial.kinds)(rows, lists)
    first = np.arange(len(rows))[:, None]
    places = np.argsort(unit_of[lists], axis=1, kind="stable")  # of each unit's models, in order
    cells = first * count + unit_of[np.take_along_axis(lists, places, axis=1)]
    sizes = np.bincount(cells.ravel(), minlength=len(rows) * count).reshape(-1, count)
    begins = np.cumsum(sizes, axis=1) - sizes
    turn = np.arange(width) - begins.ravel()[cells]
    is_passed = places - turn < limits.ravel()[cells]
    passed = np.bincount(cells[is_passed], minlength=sizes.size).reshape(sizes.shape)
    is_passed &= np.take_along_axis(matches, places, axis=1)
    lost = np.bincount(cells[is_passed], minlength=sizes.size).reshape(sizes.shape)
    before = np.zeros((len(rows), width + 1), dtype=np.int32)
    np.cumsum(matches, axis=1, out=before[:, 1:])
    found: Integers = before[first, limits + passed] - lost
    return found
