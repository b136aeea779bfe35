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
Result = TypeVar("Result")

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
    codes: dict[Any, int] = {}
    return np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.intp)


def leave_out(order: Order, excluded: Integers) -> None:
    """Remove the models of a row's own group (equal ``excluded``) from its list, in place.

    The end of the list is filled with n, the code for no model.
    """
    count = len(order)
    group_of = np.append(excluded, -1)
    columns = np.arange(count)

    def close_up(tile: slice) -> None:
        lists = order[tile]
        is_kept = (group_of[lists] != excluded[tile, None]) & (lists < count)
        is_filled = columns < is_kept.sum(axis=1)[:, None]
        order[tile][is_filled] = lists[is_kept]
        order[tile][~is_filled] = count

    step = max(1, _BLOCK // max(1, count))
    map_parts(close_up, (slice(start, start + step) for start in range(0, count, step)))


def members_of(codes: Integers) -> list[Integers]:
    """The indices of each code, from 0."""
    order = np.argsort(codes, kind="stable")
    group_ends = np.cumsum(np.bincount(codes)).tolist()
    return [order[start:end] for start, end in zip([0, *group_ends], group_ends, strict=False)]


def count_matches(
    order: Order, rows: Integers, limits: Integers, totals: Integers, is_match: Callable[..., Booleans]
) -> Integers:
    """How many of the first ``limits`` neighbours of ``rows`` match; ``totals`` of all their neighbours match.

    ``is_match(rows, neighbours)``: which of the (rows, width) neighbours match. If a limit lies beyond the middle of
    the list, the remaining neighbours are counted instead, and subtracted from ``totals``.
    """
    count = len(order)
    counts = np.empty(len(rows), dtype=np.intp)
    beyond = limits * 2 > count
    for list_rows, widths in ((np.flatnonzero(~beyond), limits), (np.flatnonzero(beyond), count - limits)):
        for group in by_width(widths[list_rows], 1 << 17):
            block = list_rows[group]
            width = int(widths[block[-1]])
            if widths is limits:
                matches = is_match(rows[block], order[rows[block], :width])
                matches &= np.arange(width) < limits[block, None]
                counts[block] = matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
            else:
                matches = is_match(rows[block], order[rows[block], count - width :])
                matches &= np.arange(count - width, count) >= limits[block, None]
                counts[block] = totals[block] - matches.view(np.uint8).sum(axis=1, dtype=np.uint32)
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
    """Matches are the marked models, the same for all rows; ``marks`` has a last entry for no model."""
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

    def sort(panel: tuple[int, Floats]) -> None:
        start, similarity = panel
        rows = np.arange(start, start + len(similarity))
        keys = _keys(similarity, np.arange(count, dtype=np.uint64))
        keys.sort(axis=1)
        exact.settle(keys, rows, far[rows])
        order[rows] = keys & _COLUMN

    for start, similarity in _panels(table):
        panels = ((start + first, similarity[first : first + step]) for first in range(0, len(similarity), step))
        map_parts(sort, panels)
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
    """Panels of rows: the index of the first row, and the similarities of these rows with all models, (rows, n).

    Each pair is multiplied once: a product that a later panel needs is kept until then.
    """
    step = max(1, _PANEL // max(1, table.inputs.shape[1]))
    tables = [table.take(slice(start, start + step)) for start in range(0, len(table), step)]
    tiles_of: list[list[Floats]] = [[] for _ in tables]
    for first, rows in enumerate(tables):
        tiles = tiles_of[first]
        for second in range(first, len(tables)):
            tile = rows.similarities(tables[second])
            tiles.append(tile)
            if second > first:
                tiles_of[second].append(tile.T)
        yield first * step, np.concatenate(tiles, axis=1)
        tiles_of[first] = []


class _Exact:
    """Similarities in double precision, for the pairs that need it."""

    def __init__(self, table: VectorTable) -> None:
        self.table = table

    def settle(self, keys: Keys, models: Integers, reach: Integers) -> None:
        """Put near ties of the sorted keys (models, n) in exact order, in place, up to ``reach``."""
        rows, columns, run = _near_ties(keys, reach)
        crowded = np.bincount(rows, minlength=len(keys)) > _CROWDED * keys.shape[1]
        if crowded.any():
            self._recompute(keys, models, np.flatnonzero(crowded))
            is_settled = ~crowded[rows]
            rows, columns, run = rows[is_settled], columns[is_settled], run[is_settled]
        candidates = keys[rows, columns] & _COLUMN
        exact_keys = _keys(self._pairs(models[rows], candidates.astype(np.intp)), candidates)
        keys[rows, columns] = exact_keys[np.lexsort((exact_keys, run))]

    def _recompute(self, keys: Keys, models: Integers, rows: Integers) -> None:
        """Compute whole lists again."""
        count = keys.shape[1]
        step = max(1, _PANEL // (2 * max(1, self.table.inputs.shape[1])))
        for key_rows in (rows[start : start + step] for start in range(0, len(rows), step)):
            part = self.table.take(models[key_rows])
            similarity = np.empty((len(key_rows), count))
            for start in range(0, count, step):
                block = self.table.take(slice(start, start + step))
                similarity[:, start : start + step] = part.similarities(block, np.float64)
            list_keys = _keys(similarity, np.arange(count, dtype=np.uint64))
            list_keys.sort(axis=1)
            keys[key_rows] = list_keys

    def _pairs(self, rows: Integers, columns: Integers) -> npt.NDArray[np.float64]:
        """Similarities of pairs of models."""
        return self.table.pairs(rows, self.table, columns)


def _near_ties(keys: Keys, reach: Integers) -> tuple[Integers, Integers, Integers]:
    """Row, position and run of all members of runs of near ties that begin before ``reach``, by run and position."""
    width = min(keys.shape[1], int(reach.max(initial=0)) + _FURTHER)
    while True:
        steps = (keys[:, :width] >> np.uint64(_COLUMN_BITS)).astype(np.int64)
        tolerance = np.abs(np.int64(2 * _STEPS) - steps[:, :-1])
        tolerance >>= _NEAR_EACH_BITS
        tolerance += _NEAR
        row, position = np.nonzero(np.diff(steps, axis=1) <= tolerance)
        follows = (row[1:] == row[:-1]) & (position[1:] == position[:-1] + 1)
        begins = np.append(True, ~follows)[: len(row)]
        run = np.cumsum(begins) - 1
        counts = position[begins][run] < reach[row]
        row, position, run = row[counts], position[counts], run[counts]
        if width == keys.shape[1] or not (position == width - 2).any():
            break
        width = min(keys.shape[1], 2 * width)
    last = np.append(run[1:] != run[:-1], True)[: len(run)]
    row, position, run = (
        np.concatenate([values, values[last] + shift]) for values, shift in ((row, 0), (position, 1), (run, 0))
    )
    order = np.lexsort((position, run))
    return row[order], position[order], run[order]


# ---- threads: NumPy releases the interpreter lock while it sorts and looks up


def threads_here() -> int:
    """The number of processors that this process may use, or ``OMP_NUM_THREADS`` if it is set; at most 8."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST_THREADS, int(setting) if setting.isdecimal() and int(setting) > 0 else processors())


def map_parts(work: Callable[[Part], Result], parts: Iterable[Part], *, is_long: bool = True) -> list[Result]:
    """The results of ``work`` for each of ``parts``, in order; only a few parts are read ahead.

    For parts of less than about a millisecond threads only add overhead: without ``is_long`` there is one thread.
    Raises the errors of ``work``; parts that have not started by then are skipped.
    """
    threads = threads_here() if is_long else 1
    if threads == 1:
        return [work(part) for part in parts]
    results: list[Result] = []
    running: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                running.append(pool.submit(work, part))
                if len(running) > 2 * threads:
                    results.append(running.popleft().result())
            while running:
                results.append(running.popleft().result())
        finally:
            for future in running:
                future.cancel()
    return results
