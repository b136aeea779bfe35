"""How much of this machine a build may use: how many workers, what each may hold, how fast they may read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from indexer.builds.free_memory import available_memory
from indexer.errors import AtlasError
from indexer.quantities import size_in_words

# What a process holds before it has read anything (torch and the Hub's client, measured: 230 MiB), and change.
PROCESS_BYTES = 300 << 20
# What one unit holds besides, in matrices of the largest size as float32: the weight, the base's, the Krylov
# blocks and what the exact decomposition of a small matrix needs.
MATRICES_AT_WORK = 6
# Enough to keep the line busy through the slowest decomposition of a layer; more would only be memory.
AHEAD_BYTES = 64 << 20
# A base larger than this is read from the disk for every model, however much memory there is.
RESIDENT_BYTES = 2 << 30

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Resources:
    """What a build may use.

    ``resident``: every worker holds the base's matrices. ``bandwidth``: bytes a second for all, None: no limit.
    ``database_bytes``: what is left for the database of a publish, None where nobody asked for a limit.
    """

    workers: int = 1
    resident: bool = True
    ahead_bytes: int = AHEAD_BYTES
    bandwidth: float | None = None
    database_bytes: int | None = None


def workers_for(workers: int, units: int) -> int:
    """As many of ``workers`` as have two units to do: a new process costs seconds to start."""
    return max(1, min(workers, (units + 1) // 2))


def share_out(
    workers: int, base_bytes: int, largest_bytes: int, memory: int | None = None, bandwidth: float | None = None
) -> Resources:
    """As many of ``workers`` as ``memory`` bytes allow, then reading ahead, then the base in memory.

    The page cache holds the base for all workers; nothing else keeps the line busy while they compute.
    ``base_bytes`` are those of all block matrices of the base, ``largest_bytes`` of the largest as float32.
    Without ``memory`` half of what is free may be used. Raises AtlasError where not even one worker fits into
    the ``memory`` that was asked for.
    """
    budget = memory if memory is not None else available_memory() // 2
    one = PROCESS_BYTES + MATRICES_AT_WORK * largest_bytes
    fitting = max((count for count in range(1, workers + 1) if _needed(count, one) <= budget), default=0)
    if not fitting:
        if memory is not None:
            raise AtlasError(
                f"`memory` {_told(memory)} is too little for this base: one worker needs about {_told(one)}.",
                "Allow more, or leave `memory` out.",
            )
        fitting = 1
    left = max(0, budget - _needed(fitting, one))
    ahead = min(AHEAD_BYTES, left // fitting)
    resident = base_bytes <= min(RESIDENT_BYTES, left // fitting - ahead)
    left -= fitting * (ahead + resident * base_bytes)
    return Resources(fitting, resident, ahead, bandwidth, left if memory is not None else None)


def _needed(workers: int, one: int) -> int:
    """A single worker is this process; several are processes of their own beside it."""
    return workers * one + (PROCESS_BYTES if workers > 1 else 0)


def _told(size: int) -> str:
    """In MB, so that two sizes can be told apart, but for what would be 0 MB."""
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else size_in_words(size)


def parse_size(text: str) -> int:
    """Bytes of "512M", "2G", "1.5 GiB". Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if size <= 0:
        raise ValueError(f"{text!r} is no size like 512M or 2G")
    return size
