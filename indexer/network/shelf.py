"""A few numbers that several threads or processes share: when each lane of traffic is free again.

Between processes they lie in a small file that is locked while it is changed; the system lets go of the lock
when its holder dies, so that a worker that is killed holds nobody up.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from indexer.usercache import user_cache


@dataclass
class Lane:
    """The traffic that shares one limit; times as the shelf's ``now`` counts them, in seconds."""

    next_free: float = 0.0
    interval: float = 0.0
    interval_until: float = 0.0


class Shelf(Protocol):
    """Lanes by name."""

    def now(self) -> float:
        """The time that lanes are counted in."""
        ...

    def lane(self, name: str) -> AbstractContextManager[Lane]:
        """The lane ``name``, to be changed by nobody else meanwhile."""
        ...


class MemoryShelf:
    """Shared by the threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}

    def now(self) -> float:
        """Seconds of a clock that nobody sets."""
        return time.monotonic()

    @contextmanager
    def lane(self, name: str) -> Iterator[Lane]:
        """Borrow a lane."""
        with self._lock:
            yield self._lanes.setdefault(name, Lane())


class FileShelf:
    """Shared by all processes that can write to one file.

    The file is a table of ``SLOTS`` lanes; where it is full, the lane that was free first makes room.
    """

    SLOTS = 64
    # A lane that seems busy for longer than this was written before the clock was set back.
    LONGEST = 3600.0
    _SLOT = struct.Struct("<32s3d")

    def __init__(self, path: Path) -> None:
        """Raises OSError where the file cannot be made, ImportError where the system has no such locks."""
        import fcntl

        self._flock = fcntl.flock
        self._exclusive, self._unlock = fcntl.LOCK_EX, fcntl.LOCK_UN
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._threads = threading.Lock()  # the system's lock does not keep the threads of one process apart

    def now(self) -> float:
        """Seconds of the clock that all processes share."""
        return time.time()

    @contextmanager
    def lane(self, name: str) -> Iterator[Lane]:
        """Borrow a lane."""
        key = hashlib.sha256(name.encode()).digest()
        with self._threads:
            self._flock(self._file, self._exclusive)
            try:
                offset, lane = self._find(key)
                yield lane
                os.pwrite(self._file, self._SLOT.pack(key, lane.next_free, lane.interval, lane.interval_until), offset)
            finally:
                self._flock(self._file, self._unlock)

    def _find(self, key: bytes) -> tuple[int, Lane]:
        size = self._SLOT.size
        table = os.pread(self._file, self.SLOTS * size, 0)
        slots = list(self._SLOT.iter_unpack(table[: len(table) // size * size]))
        latest = self.now() + self.LONGEST
        for number, (name, *times) in enumerate(slots):
            if name == key:
                return number * size, Lane(*times) if max(times[0], times[2]) < latest else Lane()
        if len(slots) < self.SLOTS:
            return len(slots) * size, Lane()
        oldest = min(range(len(slots)), key=lambda number: slots[number][1])
        return oldest * size, Lane()


def common_shelf() -> Shelf:
    """The shelf of all processes of this user on this machine; of this process alone where none can be shared."""
    try:
        return FileShelf(user_cache() / "pace")
    except (OSError, ImportError, RuntimeError):
        return MemoryShelf()
