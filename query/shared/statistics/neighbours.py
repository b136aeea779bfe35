"""All candidates in order of nearness to each, and counts of matches among the first of them.

Products of all pairs are computed in single precision, twice as fast as in double. Neighbours whose similarities are
closer than the error of such products are compared again in double precision.

Memory: one table of neighbours in order, 2 n² bytes (200 MB at 10,000 models), as much again while it is computed, and
blocks of some hundred megabytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from indexer.machine import processors
from indexer.vectors.table import VectorTable

Integers = npt.NDArray[np.intp]
Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]
Order = npt.NDArray[np.unsignedinteger[Any]]
Part = TypeVar("Part")
Found = TypeVar("Found")

_MOST_THREADS = 8  # each needs some hundred megabytes
_BLOCK = 1 << 21  # numbers of lists, or of the similarity matrix, in memory at a time
_PANEL = 1 << 24  # numbers of vectors in memory at a time: 64 MB
_FURTHER = 64  # further positions in which a run of near ties is expected to end

# With a larger share of near ties, the whole list is computed again.
_CROWDED = 1 / 8

# Sort keys are integers: how far below 2 the similarity is, in steps of 2^-32, followed by the column's number, which
# breaks ties by id. Sorting such keys is seven times faster than a stable argsort.
_STEPS, _COLUMN_BITS = 2.0**32, 30
_COLUMN = np.uint64((1 << _COLUMN_BITS) - 1)

# Neighbours of similarity s may be in the wrong order if they differ by at most 2.4e-7 + 3.8e-6 · |s|: three times the
# largest error of single precision for 3 million pairs of vectors of 8,208 numbers.
_NEAR, _NEAR_EACH_BITS = 1 << 10, 18


def codes_of(values: Sequence[Any]) -> Integers:
    """Integers from 0 in order of first appearance; equal values get equal codes."""
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.intp)


def leave_out(order: Order, excluded: Integers) -> None:
    """Remove the models of a row's own group (equal ``excluded``) from its list, in place.

    The end of the list is filled with n, which stands for no model.
    """
    count = len(order)
    group_of = np.append(excluded, -1)
    columns = np.arange(count)

    def close_up(part: slice) -> None:
        lists = order[part]
        is_kept = (group_of[lists] != excluded[part, None]) & (lists < count)
        is_filled = columns < is_kept.sum(axis=1)[:, None]
        order[part][is_filled] = lists[is_kept]
        order[part][~is_filled] = count

    step = max(1, _BLOCK // max(1, count))
    map_parts(close_up, (slice(start, start + step) for start in range(0, count, step)))


def members_of(codes: Integers) -> list[Integers]:
    """The indices of each code, from 0."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes)).tolist()
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def count_matches(
    order: Order, rows: Integers, limits: Integers, totals: Integers, is_match: Callable[..., Booleans]
) -> Integers:
    """How many of the first ``limits`` neighbours of ``rows`` match; ``totals`` of all their neighbours match.

    ``is_match(rows, neighbours)`` says which of the (rows, width) neighbours match. If a limit lies beyond the middle
    of the list, the rest of the list is counted instead.
    """
    count = len(order)
    counts = np.empty(len(rows), dtype=np.intp)
    beyond = limits * 2 > count
    for chosen, widths in ((np.flatnonzero(~beyond), limits), (np.flatnonzero(beyond), count - limits)):
        for some in by_width(widths[chosen], 1 << 17):
            part = chosen[some]
            width = int(widths[part[-1]])
            if widths is limits:
                matches = is_match(rows[part], order[rows[part], :width])
                matches &= np.arange(width) < limits[part, None]
                counts[part] = matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            else:
                matches = is_match(rows[part], order[rows[part], count - width :])
                matches &= np.arange(count - width, count) >= limits[part, None]
                counts[part] = totals[part] - matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
    return counts


def by_width(widths: Integers, most: int) -> Iterator[Integers]:
    """The rows by ascending width, in parts of similar width with at most ``most`` entries (or one row)."""
    order = np.argsort(widths, kind="stable")
    ascending = widths[order]
    start = 0
    while start < len(order):
        stop = int(np.searchsorted(ascending, 2 * ascending[start] + 16, side="right"))
        stop = start + max(1, min(stop - start, most // max(1, int(ascending[stop - 1]))))
        yield order[start:stop]
        start = stop


def marked(marks: Booleans) -> Callable[[Integers, Order], Booleans]:
    """Matches are the marked models, for all rows alike; ``marks`` has a last entry for no model."""
    return lambda rows, neighbours: marks.take(neighbours)


# ---- the order


def neighbour_order(table: VectorTable, reach: Integers | None = None) -> Order:
    """(n, n): for each model (row) all models, itself included, nearest first.

    Similarities that agree to 2^-32 are ties, which go to the earlier candidate. ``reach`` (n,): the length of each
    list that must be exact; beyond it, near ties of single precision are in any order. Raises ValueError if a vector is
    not finite.
    """
    count = len(table)
    order = np.empty((count, count), np.uint16 if count < 2**16 else np.uint32)
    if not np.isfinite(table.inputs).all() or not (table.outputs is None or np.isfinite(table.outputs).all()):
        raise ValueError("a vector is not finite")
    exact = _Exact(table)
    far = np.full(count, count) if reach is None else reach
    step = max(1, _BLOCK // max(1, count))

    def sort(part: tuple[int, Floats]) -> None:
        start, similarity = part
        asked = np.arange(start, start + len(similarity))
        keys = _keys(similarity, np.arange(count, dtype=np.uint64))
        keys.sort(axis=1)
        exact.settle(keys, asked, far[asked])
        order[asked] = keys & _COLUMN

    for start, similarity in _panels(table):
        parts = ((start + first, similarity[first : first + step]) for first in range(0, len(similarity), step))
        map_parts(sort, parts)
    return order


def _keys(similarity: npt.NDArray[np.floating[Any]], columns: Keys) -> Keys:
    steps = similarity.astype(np.float64)
    np.clip(steps, -1.9, 1.9, out=steps)
    steps *= -_STEPS
    np.rint(steps, out=steps)
    steps += 2 * _STEPS
    keys: Keys = steps.astype(np.uint64)
    keys <<= np.uint64(_COLUMN_BITS)
    keys |= columns
    return keys


def _panels(table: VectorTable) -> Iterator[tuple[int, Floats]]:
    """The first of some rows, and their similarities with all, (some, n).

    Each pair is multiplied once: the products that a panel shares with a later one are kept until then.
    """
    step = max(1, _PANEL // max(1, table.inputs.shape[1]))
    parts = [table.take(slice(start, start + step)) for start in range(0, len(table), step)]
    kept: list[list[Floats]] = [[] for _ in parts]
    for here, part in enumerate(parts):
        tiles = kept[here]
        for there in range(here, len(parts)):
            tile = part.similarities(parts[there])
            tiles.append(tile)
            if there > here:
                kept[there].append(tile.T)
        yield here * step, np.concatenate(tiles, axis=1)
        kept[here] = []


class _Exact:
    """Similarities in double precision, for the pairs that need it."""

    def __init__(self, table: VectorTable) -> None:
        self.table = table

    def settle(self, keys: Keys, asked: Integers, reach: Integers) -> None:
        """Put near ties of the sorted keys (asked, n) in exact order, in place, up to ``reach``."""
        places, columns, run = _near_ties(keys, reach)
        crowded = np.bincount(places, minlength=len(keys)) > _CROWDED * keys.shape[1]
        if crowded.any():
            self._again(keys, asked, np.flatnonzero(crowded))
            stays = ~crowded[places]
            places, columns, run = places[stays], columns[stays], run[stays]
        candidates = keys[places, columns] & _COLUMN
        known = _keys(self._pairs(asked[places], candidates.astype(np.intp)), candidates)
        keys[places, columns] = known[np.lexsort((known, run))]

    def _again(self, keys: Keys, asked: Integers, places: Integers) -> None:
        """Compute whole lists again."""
        count = keys.shape[1]
        step = max(1, _PANEL // (2 * max(1, self.table.inputs.shape[1])))
        for chosen in (places[start : start + step] for start in range(0, len(places), step)):
            mine = self.table.take(asked[chosen])
            similarity = np.empty((len(chosen), count))
            for start in range(0, count, step):
                theirs = self.table.take(slice(start, start + step))
                similarity[:, start : start + step] = mine.similarities(theirs, np.float64)
            found = _keys(similarity, np.arange(count, dtype=np.uint64))
            found.sort(axis=1)
            keys[chosen] = found

    def _pairs(self, mine: Integers, theirs: Integers) -> npt.NDArray[np.float64]:
        """Similarities of pairs of models."""
        return self.table.pairs(mine, self.table, theirs)


def _near_ties(keys: Keys, reach: Integers) -> tuple[Integers, Integers, Integers]:
    """Row, position and run of all members of runs of near ties that begin before ``reach``, by run and position."""
    width = min(keys.shape[1], int(reach.max(initial=0)) + _FURTHER)
    while True:
        steps = (keys[:, :width] >> np.uint64(_COLUMN_BITS)).astype(np.int64)
        apart = np.abs(np.int64(2 * _STEPS) - steps[:, :-1])
        apart >>= _NEAR_EACH_BITS
        apart += _NEAR
        row, place = np.nonzero(np.diff(steps, axis=1) <= apart)
        follows = (row[1:] == row[:-1]) & (place[1:] == place[:-1] + 1)
        begins = np.append(True, ~follows)[: len(row)]
        run = np.cumsum(begins) - 1
        counts = place[begins][run] < reach[row]
        row, place, run = row[counts], place[counts], run[counts]
        if width == keys.shape[1] or not (place == width - 2).any():
            break
        width = min(keys.shape[1], 2 * width)
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    row, place, run = (np.concatenate([one, one[last] + more]) for one, more in ((row, 0), (place, 1), (run, 0)))
    turn = np.lexsort((place, run))
    return row[turn], place[turn], run[turn]


# ---- threads: NumPy releases the interpreter lock while it sorts and looks up


def threads_here() -> int:
    """The number of processors that this process may use, or ``OMP_NUM_THREADS`` if it is set; at most 8."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST_THREADS, int(asked) if asked.isdecimal() and int(asked) > 0 else processors())


def map_parts(work: Callable[[Part], Found], parts: Iterable[Part], *, is_long: bool = True) -> list[Found]:
    """The results of ``work`` for each of ``parts``, in order; only a few parts are taken ahead.

    For parts of less than about a millisecond threads only add overhead: without ``is_long`` there is one. Raises what
    ``work`` raises; parts that have not started by then are skipped.
    """
    threads = threads_here() if is_long else 1
    if threads == 1:
        return [work(part) for part in parts]
    found: list[Found] = []
    begun: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                begun.append(pool.submit(work, part))
                if len(begun) > 2 * threads:
                    found.append(begun.popleft().result())
            while begun:
                found.append(begun.popleft().result())
        finally:
            for future in begun:
                future.cancel()
    return found
