"""A limit on what weights take of the line, shared by all workers of a build on one machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from indexer.network.pace import Pace
from indexer.network.session import common_pace

# Turns are taken for so much at a time: often enough to be smooth, seldom enough to cost nothing.
STEP_SECONDS = 0.05


class Bandwidth:
    """Lets ``bytes_per_second`` through, together with all others of the same ``name`` that share the ``pace``.

    Until a step is full nothing is waited for: a process is never ahead by more than ``STEP_SECONDS`` and one piece.
    """

    def __init__(
        self,
        name: str,
        bytes_per_second: float,
        pace: Pace | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.bytes_per_second = bytes_per_second
        self._lane = f"bandwidth {name}"
        self._pace = pace
        self._sleep = sleep
        self._unpaid = 0

    def received(self, count: int) -> None:
        """Count bytes that came, and wait where they came too fast."""
        self._unpaid += count
        if self._unpaid < self.bytes_per_second * STEP_SECONDS:
            return
        seconds, self._unpaid = self._unpaid / self.bytes_per_second, 0
        self._sleep((self._pace or common_pace()).spend(self._lane, seconds))


_limit: Bandwidth | None = None


def limit_bandwidth(name: str, bytes_per_second: float | None) -> None:
    """From now on in this process; None lifts the limit. The same limit again goes on where it was."""
    global _limit
    if _limit is not None and (_limit.name, _limit.bytes_per_second) == (name, bytes_per_second):
        return  # a new one for each model would forget what is unpaid, and small models would be free
    _limit = Bandwidth(name, bytes_per_second) if bytes_per_second else None


def received(count: int) -> None:
    """Called with every piece of a weight file that the network brought."""
    if _limit is not None:
        _limit.received(count)
