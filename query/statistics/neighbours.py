"""Every candidate's neighbours in order of nearness, and counts of matches among the first of them.

Memory: one table of neighbours in order, 2 n² bytes (200 MB at 10,000 models), beside which as much again for a while
as it is made, and blocks of some hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.vectors.masks import changed_blocks, divisors, shared_blocks

Integers = npt.NDArray[np.intp]
Booleans = npt.NDArray[np.bool_]
Order = npt.NDArray[np.unsignedinteger[Any]]

_BLOCK = 1 << 21  # numbers held at a time in a block of the similarity matrix
_PANEL = 1 << 24  # numbers of the vectors in double precision held at a time: 128 MB


def codes_of(values: Sequence[Any]) -> Integers:
    """Integers from 0 in order of first appearance, equal where the values are."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.intp)


def neighbour_order(vectors: npt.NDArray[np.float32], rows: Integers, blocks: int = 0) -> Order:
    """(n, n): for each candidate (row) all candidates, itself included, nearest first; ``blocks``: see ``likeness``."""
    count = len(rows)
    order = np.empty((count, count), np.uint16 if count < 2**16 else np.uint32)
    for start, similarity in _panels(vectors, rows, blocks):
        step = max(1, _BLOCK // count)
        for first in range(0, len(similarity), step):
            part = similarity[first : first + step]
            # One integer to sort by: how far below 2 the similarity is, in steps of 2^-32, then the column's number,
            # which breaks ties by id. Sorting such keys is seven times faster than a stable argsort.
            steps = np.rint(part.clip(-1.9, 1.9) * 2.0**32)
            keys = ((2.0**33 - steps).astype(np.uint64) << np.uint64(30)) | np.arange(count, dtype=np.uint64)
            keys.sort(axis=1)
            order[start + first : start + first + len(part)] = keys & np.uint64(2**30 - 1)
    return order


def _panels(
    vectors: npt.NDArray[np.float32], rows: Integers, blocks: int
) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """The similarities of some rows with all, (some, n), and the first of these rows; see ``likeness``.

    Each pair is multiplied once: what a panel has in common with a later one is kept until it is that one's turn.
    """
    step = max(1, _PANEL // max(1, vectors.shape[1]))
    parts = [rows[start : start + step] for start in range(0, len(rows), step)]
    changed = [changed_blocks(vectors[part], blocks) for part in parts] if blocks else []
    kept: list[list[npt.NDArray[np.float64]]] = [[] for _ in parts]
    for here, part in enumerate(parts):
        mine = vectors[part].astype(np.float64)
        if not np.isfinite(mine).all():
            raise ValueError("a vector is not finite")
        tiles = kept[here]
        for there in range(here, len(parts)):
            theirs = mine if there == here else vectors[parts[there]].astype(np.float64)
            tile = mine @ theirs.T
            if blocks:
                tile /= divisors(shared_blocks(changed[here], changed[there]), blocks)
            tiles.append(tile)
            if there > here:
                kept[there].append(tile.T)
        yield here * step, np.concatenate(tiles, axis=1)
        kept[here] = []


def leave_out(order: Order, excluded: Integers) -> None:
    """Take a row's own group (equal ``excluded``) out of its list, in place.

    The list closes up; its end is filled with n, which stands for nobody.
    """
    count = len(order)
    group_of = np.append(excluded, -1)  # nobody, left out before, belongs to no group
    sizes = np.bincount(excluded)[excluded]
    for size in np.unique(sizes):  # rows that lose equally many can be closed up together
        alike = np.flatnonzero(sizes == size)
        step = max(1, _BLOCK // count)
        for part in (alike[start : start + step] for start in range(0, len(alike), step)):
            lists = order[part]
            kept = lists[group_of[lists] != excluded[part, None]].reshape(len(part), -1)
            order[part, : kept.shape[1]] = kept
            order[part, kept.shape[1] :] = count


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
