"""Timing and tables: interleaved repeats, medians with their spread, and nothing that was not measured."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from threadpoolctl import threadpool_limits

Cell = str | int | float


class NotMeasuredError(Exception):
    """A number was asked for that no measurement stands behind."""


@dataclass
class Timing:
    """Seconds of one thing done several times."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle of the measurements. Raises NotMeasuredError if there are none."""
        if not self.seconds:
            raise NotMeasuredError("no time was taken")
        return statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        """The fastest and the slowest time."""
        if not self.seconds:
            raise NotMeasuredError("no time was taken")
        return f"{min(self.seconds):.3f}–{max(self.seconds):.3f}"

    def times(self, factor: float) -> Timing:
        """The same thing done ``factor`` times, by proportion."""
        return Timing([seconds * factor for seconds in self.seconds])

    def ratio_to(self, other: Timing) -> float:
        """Median of the ratios within each repeat: what slows a machine down slows both.

        Raises NotMeasuredError unless both were measured in the same repeats.
        """
        if not self.seconds or len(self.seconds) != len(other.seconds):
            raise NotMeasuredError("the two were not measured in the same repeats")
        return statistics.median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))


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


def interleaved(methods: Mapping[str, Callable[[], None]], repeats: int) -> None:
    """Run every method once before any of them runs again, each time in another order; the first round is warm-up.

    The methods keep their own time: which of it counts is theirs to know.
    """
    names = list(methods)
    for repeat in range(repeats + 1):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            methods[name]()


@dataclass
class Table:
    """The result of a row: a table, what is worth saying about it, and whether it keeps what was promised."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    promises: dict[str, bool] = field(default_factory=dict)

    def add(self, *cells: Cell) -> None:
        """Add a row. Raises NotMeasuredError for a number that is none."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        for column, cell in zip(self.columns, cells, strict=True):
            if isinstance(cell, float) and not math.isfinite(cell):
                raise NotMeasuredError(f"{column} of {cells[0]} is {cell}")
        self.rows.append(cells)

    def text(self) -> str:
        """The table for people; empty cells are what was not measured."""
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
        """The same for programs."""
        return {
            "title": self.title,
            "rows": [
                {column: cell for column, cell in zip(self.columns, row, strict=True) if cell != ""}
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
