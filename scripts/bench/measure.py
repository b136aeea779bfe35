"""Timing and tables: interleaved repeats, medians with their range, and nothing that was not measured."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

Item = TypeVar("Item")


class NotMeasuredError(Exception):
    """A number was asked for that no measurement stands behind."""


@dataclass
class Repeats:
    """What was measured of one thing in several repeats: seconds, bytes, or ratios of two of them."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle of the measurements. Raises NotMeasuredError if there are none, or one that is no number."""
        return statistics.median(self._measured())

    @property
    def lowest(self) -> float:
        """The smallest of them; raises as ``median`` does."""
        return min(self._measured())

    @property
    def highest(self) -> float:
        """The largest of them; raises as ``median`` does."""
        return max(self._measured())

    def times(self, factor: float) -> Repeats:
        """The same thing done ``factor`` times, by proportion."""
        return Repeats([value * factor for value in self.values])

    def ratio_to(self, other: Repeats) -> Repeats:
        """The ratio within each repeat: what slows a machine down slows both.

        Raises NotMeasuredError unless both were measured in the same repeats.
        """
        mine, its = self._measured(), other._measured()
        if len(mine) != len(its):
            raise NotMeasuredError(f"one was measured {len(mine)} times, the other {len(its)} times")
        if not all(its):
            raise NotMeasuredError("the other took no time at all")
        return Repeats([one / another for one, another in zip(mine, its, strict=True)])

    def larger_of(self, other: Repeats) -> Repeats:
        """The larger of the two within each repeat; raises as ``ratio_to`` does."""
        mine, its = self._measured(), other._measured()
        if len(mine) != len(its):
            raise NotMeasuredError(f"one was measured {len(mine)} times, the other {len(its)} times")
        return Repeats([max(pair) for pair in zip(mine, its, strict=True)])

    def as_json(self) -> dict[str, float]:
        """Median, range and number of repeats."""
        return {"median": self.median, "lowest": self.lowest, "highest": self.highest, "repeats": len(self.values)}

    def __str__(self) -> str:
        if len(self._measured()) == 1:
            return f"{self.median:.3g}"
        return f"{self.median:.3g} ({self.lowest:.3g}–{self.highest:.3g})"

    def _measured(self) -> list[float]:
        if not self.values:
            raise NotMeasuredError("nothing was measured")
        if not all(math.isfinite(value) for value in self.values):
            raise NotMeasuredError(f"not every measurement is a number: {self.values}")
        return self.values


Cell = str | int | float | Repeats


class Stopwatch:
    """Adds up the time spent within ``with stopwatch.running():``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and for whatever BLAS NumPy and SciPy brought along."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def interleaved(methods: Mapping[str, Callable[[], float]], repeats: int, warm_up: bool = True) -> dict[str, Repeats]:
    """What each method says of itself (mostly the seconds it took), ``repeats`` times.

    Every method has its turn before any of them has another, each round in another order. With ``warm_up`` there
    is one round more, the first, which counts for nothing.
    """
    names = list(methods)
    found = {name: Repeats() for name in names}
    for number in range(-1 if warm_up else 0, repeats):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = methods[name]()
            if number >= 0:
                found[name].values.append(value)
    return found


def interleaved_over(
    methods: Mapping[str, Callable[[Item], object]], items: Sequence[Item], repeats: int
) -> dict[str, Repeats]:
    """Seconds that each method takes for all ``items``, ``repeats`` times; on one item all have their turn.

    For what takes long: the shorter the turns, the less does it matter what else the machine does meanwhile.
    """
    names = list(methods)
    found = {name: Repeats() for name in names}
    for number in range(repeats):
        watches = {name: Stopwatch() for name in names}
        for position, item in enumerate(items):
            turn = (number + position) % len(names)
            for name in names[turn:] + names[:turn]:
                with watches[name].running():
                    methods[name](item)
        for name, watch in watches.items():
            found[name].values.append(watch.seconds)
    return found


@dataclass
class Table:
    """The result of a row: a table, what is worth saying about it, and whether it keeps what was promised."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    promises: dict[str, bool] = field(default_factory=dict)

    def add(self, *cells: Cell) -> None:
        """Add a row; an empty cell is what was not measured. Raises NotMeasuredError for a number that is none."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        for column, cell in zip(self.columns, cells, strict=True):
            try:
                if isinstance(cell, float):
                    cell = Repeats([cell])
                if isinstance(cell, Repeats):
                    str(cell)
            except NotMeasuredError as error:
                raise NotMeasuredError(f"{column} of {cells[0]}: {error}") from error
        self.rows.append(cells)

    def text(self) -> str:
        """The table for people."""
        lines = [list(self.columns), *([_shown(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        body = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        body.insert(1, "  ".join("-" * width for width in widths))
        kept = [f"{'kept' if value else 'NOT KEPT'}: {promise}" for promise, value in self.promises.items()]
        return "\n".join([self.title, *body, *self.notes, *kept])

    def as_json(self) -> dict[str, Any]:
        """The same for programs; what was not measured is not there."""
        return {
            "title": self.title,
            "rows": [
                {
                    column: cell.as_json() if isinstance(cell, Repeats) else cell
                    for column, cell in zip(self.columns, row, strict=True)
                    if cell != ""
                }
                for row in self.rows
            ],
            "notes": self.notes,
            "promises": self.promises,
        }


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _shown(cell: Cell) -> str:
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
