"""How fast something goes now: a slow start, or what was an hour ago, says nothing of the time that is left."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
# Several workers finish in bursts: fewer units than this say too little, however long they took.
LEAST_UNITS = 20


@dataclass(frozen=True)
class _Mark:
    moment: float
    units: int
    size: float


class RecentRate:
    """Units and sizes over the last ``WINDOW_SECONDS``, or longer where ``LEAST_UNITS`` took longer.

    The time from the start to the first unit (processes start, a base is read) is left out as soon as there is
    enough behind it.
    """

    def __init__(self) -> None:
        self._start = _Mark(time.monotonic(), 0, 0.0)
        self._marks = deque([self._start])
        self._units, self._size = 0, 0.0  # behind the first mark

    def note(self, units: int, size: float = 0.0) -> None:
        """``units`` more are done, ``size`` in all."""
        now = time.monotonic()
        self._marks.append(_Mark(now, units, size))
        self._units += units
        self._size += size
        while self._can_spare_the_first(now):
            self._marks.popleft()
            self._units -= self._marks[0].units
            self._size -= self._marks[0].size

    def _can_spare_the_first(self, now: float) -> bool:
        first, second = self._marks[0], self._marks[min(1, len(self._marks) - 1)]
        is_old = first is self._start or now - first.moment > WINDOW_SECONDS
        return is_old and self._units - second.units >= LEAST_UNITS

    @property
    def units_per_second(self) -> float | None:
        """None as long as nothing is done."""
        return self._units / self._seconds if self._units and self._seconds > 0 else None

    @property
    def size_per_second(self) -> float | None:
        """None as long as nothing is done."""
        return self._size / self._seconds if self._units and self._seconds > 0 else None

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._marks[0].moment
