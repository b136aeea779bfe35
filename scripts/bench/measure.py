"""Timing and tables: interleaved repeats, medians with their range, and no number that was not measured."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scripts.tables import aligned

PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "duckdb", "scikit-learn", "weightwatcher")
_DIGITS = 10  # of the code's checksum in the name of an input
_CODE = (".py", ".sql", ".toml")


class NotMeasuredError(Exception):
    """A number that was not measured."""


@dataclass(frozen=True)
class Repeats:
    """Several measurements of one thing: seconds, bytes, or ratios. Raises NotMeasuredError unless all are numbers."""

    values: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values or not all(map(math.isfinite, self.values)):
            raise NotMeasuredError(f"not measured: {list(self.values)}")

    @property
    def median(self) -> float:
        """The middle of the measurements."""
        return statistics.median(self.values)

    def times(self, factor: float) -> Repeats:
        """The same, done ``factor`` times."""
        return Repeats([value * factor for value in self.values])

    def ratio_to(self, other: Repeats) -> Repeats:
        """The ratio within each repeat: what slows the machine down slows both. Raises ValueError on another number."""
        return Repeats([one / another for one, another in zip(self.values, other.values, strict=True)])

    def as_json(self) -> dict[str, float]:
        """Median, range and number of repeats."""
        low, high = min(self.values), max(self.values)
        return {"median": self.median, "lowest": low, "highest": high, "repeats": len(self.values)}

    def __str__(self) -> str:
        if len(self.values) == 1:
            return f"{self.median:.3g}"
        return f"{self.median:.3g} ({min(self.values):.3g}–{max(self.values):.3g})"


def interleaved(methods: Mapping[str, Callable[[], float]], repeats: int, warm_up: bool = True) -> dict[str, Repeats]:
    """What each method returns (mostly the seconds it took), ``repeats`` times.

    Every method runs once per round, in another order each round. With ``warm_up`` there is a first round that is not
    counted.
    """
    names = list(methods)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1 if warm_up else 0, repeats):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = methods[name]()
            if number >= 0:
                found[name].append(value)
    return {name: Repeats(values) for name, values in found.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch and for the BLAS of NumPy and SciPy."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


Cell = str | int | float | Repeats


@dataclass
class Table:
    """The result of a row of the bench: a table, notes, and whether each promise is kept."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    promises: dict[str, bool] = field(default_factory=dict)

    def add(self, *cells: Cell) -> None:
        """Add a row; what was not measured is an empty cell. Raises NotMeasuredError on NaN and infinity."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        for column, cell in zip(self.columns, cells, strict=True):
            if isinstance(cell, float) and not math.isfinite(cell):
                raise NotMeasuredError(f"{column} of {cells[0]}")
        self.rows.append(cells)

    def text(self) -> str:
        """The table for people."""
        shown = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *shown, strict=True)]
        body = aligned([self.columns, ["-" * width for width in widths], *shown])
        kept = [f"{'kept' if value else 'NOT KEPT'}: {promise}" for promise, value in self.promises.items()]
        return "\n".join([self.title, body, *self.notes, *kept])

    def as_json(self) -> dict[str, Any]:
        """The same for programs, without empty cells."""
        rows = [
            {
                column: cell.as_json() if isinstance(cell, Repeats) else cell
                for column, cell in zip(self.columns, row, strict=True)
                if cell != ""
            }
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "notes": self.notes, "promises": self.promises}


def this_machine() -> dict[str, str]:
    """Where and when a bench ran: seconds depend on it."""
    from indexer.machine import processors

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    found = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": next(names, platform.machine()),
        "cores": str(processors()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "load of the last 1, 5 and 15 minutes": ", ".join(f"{value:.2f}" for value in os.getloadavg()),
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "(not installed)"
    return found


def made_once(folder: Path, make: Callable[[Path], None], code: Sequence[Path]) -> Path:
    """A large input: a folder called ``folder`` and a checksum of ``code``, filled by ``make`` if it does not exist.

    ``code``: the files, and folders of files, on which the input depends. The folder gets its name when it is complete;
    then those that other versions of the code made are removed.
    """
    digest = hashlib.sha256()
    for given in code:
        below = sorted(path for path in given.rglob("*") if path.suffix in _CODE) if given.is_dir() else [given]
        for path in below:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    stem, state = folder.name, digest.hexdigest()[:_DIGITS]
    folder = folder.with_name(f"{stem}-{state}")
    if not folder.is_dir():
        say(f"making {folder.name} in {folder.parent} (once)")
        unfinished = folder.with_name(f"unfinished-{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
        for other in folder.parent.glob(f"{stem}-{'[0-9a-f]' * _DIGITS}"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
