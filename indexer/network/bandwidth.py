"""A limit on what weights take of the line, shared by all workers of a build on one machine."""

from __future__ import annotations

import time

from indexer.network.session import common_pace

# Turns are taken for so much at a time: often enough to be smooth, seldom enough to cost nothing.
STEP_SECONDS = 0.05


class Bandwidth:
    """Lets ``bytes_per_second`` through, together with all others of the same ``name``."""

    def __init__(self, name: str, bytes_per_second: float) -> None:
        self._lane = f"bandwidth {name}"
        self._rate = bytes_per_second
        self._unpaid = 0

    def received(self, count: int) -> None:
        """Count bytes that came, and wait where they came too fast."""
        self._unpaid += count
        if self._unpaid < self._rate * STEP_SECONDS:
            return
        seconds, self._unpaid = self._unpaid / self._rate, 0
        time.sleep(common_pace().spend(self._lane, seconds))


_limit: Bandwidth | None = None


def limit_bandwidth(name: str, bytes_per_second: float | None) -> None:
    """From now on in this process; None lifts the limit."""
    global _limit
    _limit = Bandwidth(name, bytes_per_second) if bytes_per_second else None


def received(count: int) -> None:
    """Called with every piece of a weight file that the network brought."""
    if _limit is not None:
        _limit.received(count)
