"""Every candidate's neighbours in order of nearness, and counts of matches among the first of them.

Memory: one table of neighbours in order, 2 n² bytes (200 MB at 10,000 models), beside which as much again for a while
as it is made, and blocks of some hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from query.statistics.threads import each

Integers = npt.NDArray[np.intp]
Booleans = npt.NDArray[np.bool_]
Order = npt.NDArray[np.unsignedinteger[Any]]

_BLOCK = 1 << 21  # numbers of lists held at a time


def codes_of(values: Sequence[Any]) -> Integers:
    """Integers from 0 in order of first appearance, equal where the values are."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.intp)


def leave_out(order: Order, excluded: Integers) -> None:
    """Take a row's own group (equal ``excluded``) out of its list, in place.

    The list closes up; its end is filled with n, which stands for nobody.
    """
    count = len(order)
    group_of = np.append(excluded, -1)  # nobody, left out before, belongs to no group
    sizes = np.bincount(excluded)[excluded]

    def close_up(part: Integers) -> None:
        lists = order[part]
        kept = lists[group_of[lists] != excluded[part, None]].reshape(len(part), -1)
        order[part, : kept.shape[1]] = kept
        order[part, kept.shape[1] :] = count

    # Rows that lose equally many can be closed up together.
    for_size = (np.flatnonzero(sizes == size) for size in np.unique(sizes))
    step = max(1, _BLOCK // count)
    parts = (alike[start : start + step] for alike in for_size for start in range(0, len(alike), step))
    each(close_up, parts)


def members_of(codes: Integers) -> list[Integers]:
    """For every code from 0 the indices that carry it."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes)).tolist()
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def count_matches(
    order: Order, rows: Integers, limits: Integers, totals: Integers, is_match: Callable[..., Booleans]
) -> Integers:
    """How many of the first ``limits`` neighbours of ``rows`` match, where ``totals`` of all neighbours do.

    ``is_match(rows, neighbours)`` says which of the (rows, width) neighbours match. Where a limit lies beyond
    the middle of the list, the rest of the list is looked at instead.
    """
    count = len(order)
    counts = np.empty(len(rows), dtype=np.intp)
    beyond = limits * 2 > count
    for chosen, widths in ((np.flatnonzero(~beyond), limits), (np.flatnonzero(beyond), count - limits)):
        chosen = chosen[np.argsort(widths[chosen], kind="stable")]
        ascending = widths[chosen]
        start = 0
        while start < len(chosen):
            narrow = int(ascending[start])
            stop = int(np.searchsorted(ascending, 2 * narrow + 16, side="right"))
            stop = start + max(1, min(stop - start, (1 << 17) // max(1, int(ascending[stop - 1]))))
            part, width = chosen[start:stop], int(ascending[stop - 1])
            places = np.arange(width)
            if widths is limits:
                matches = is_match(rows[part], order[rows[part], :width])
                matches &= places < ascending[start:stop, None]
                counts[part] = matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            else:
                matches = is_match(rows[part], order[rows[part], count - width :])
                matches &= places >= width - ascending[start:stop, None]
                counts[part] = totals[part] - matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            start = stop
    return counts


def marked(marks: Booleans) -> Callable[[Integers, Order], Booleans]:
    """A match is whoever is marked, for all rows alike; ``marks`` has an entry for nobody."""
    return lambda rows, neighbours: marks.take(neighbours)
