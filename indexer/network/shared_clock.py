"""A few numbers that several threads or processes share: when each lane of traffic is free again.

Between processes they lie in a small file that is locked while it is changed; the system lets go of the lock
when its holder dies, so that a worker that is killed holds nobody up.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from indexer.network.own_folder import check_owner, open_own_folder, own_folder

Say = Callable[[str], None]


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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._clock = clock

    def now(self) -> float:
        """Seconds of a clock that nobody sets."""
        return self._clock()

    @contextmanager
    def lane(self, name: str) -> Iterator[Lane]:
        """Borrow a lane."""
        with self._lock:
            yield self._lanes.setdefault(name, Lane())


class FileShelf:
    """Shared by all processes that can write to one file; by the threads of this process alone once that fails.

    The file is a table of ``SLOTS`` lanes; where it is full, the lane that was free first makes room.
    """

    SLOTS = 64
    # A lane that seems busy for longer than this was written by another clock, or before the clock was set back.
    LONGEST = 3600.0
    _SLOT = struct.Struct("<32s3d")

    def __init__(
        self,
        path: Path,
        folder: int | None = None,
        say: Say = lambda sentence: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``path`` is taken within the open ``folder`` where one is given; ``say`` is told when the file fails.

        ``clock``: seconds, the same for all who share the file; None: one that nobody sets, where it is told when it
        began.

        Raises OSError where the file cannot be made, trusted or locked.
        """
        self._say = say
        self._clock = clock or _common_seconds
        self._threads = threading.Lock()  # the system's lock does not keep the threads of one process apart
        self._own: MemoryShelf | None = None  # in place of a file that failed
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o600, dir_fd=folder)
        try:
            check_owner(self._file, path)
            self._try_lock()
        except OSError:
            os.close(self._file)
            raise

    def now(self) -> float:
        """Seconds of the clock that all processes share."""
        return self._clock()

    @contextmanager
    def lane(self, name: str) -> Iterator[Lane]:
        """Borrow a lane. Never fails for the file's sake: a request must not."""
        key = hashlib.sha256(f"{name}{_boot()}".encode()).digest()
        with self._threads:
            taken = self._take(key)
            if self._own is not None:
                with self._own.lane(name) as lane:
                    yield lane
                return
            offset, lane = taken
            try:
                yield lane
                self._put(offset, key, lane, name)
            finally:
                self._let_go()

    def _try_lock(self) -> None:
        """Raises OSError where the file system has no locks; one that another holds is as good as one that is had."""
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take(self, key: bytes) -> tuple[int, Lane]:
        """Where the lane lies, and the lane, locked; of no meaning once the file has failed."""
        if self._own is None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                return self._find(key)
            except OSError as error:
                self._give_up(error)
        return 0, Lane()

    def _put(self, offset: int, key: bytes, lane: Lane, name: str) -> None:
        try:
            os.pwrite(self._file, self._SLOT.pack(key, lane.next_free, lane.interval, lane.interval_until), offset)
        except OSError as error:
            own = self._give_up(error)
            with own.lane(name) as kept:
                vars(kept).update(vars(lane))

    def _let_go(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _give_up(self, error: OSError) -> MemoryShelf:
        self._let_go()
        self._own = MemoryShelf(self._clock)
        self._say(_alone(error))
        return self._own

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


@cache
def _boot() -> str:
    """Which start of the machine this is, and with it of the clock that nobody sets; empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _common_seconds() -> float:
    return time.monotonic() if _boot() else time.time()


def common_shelf(say: Say = lambda sentence: None) -> Shelf:
    """The shelf of all processes of this user on this machine; of this process alone where none can be shared.

    It lies among the machine's temporary files: a home is often shared by many machines. ``say`` is told of a shelf
    that is not shared.
    """
    try:
        folder = open_own_folder()
        try:
            return FileShelf(Path("pace"), folder, say)
        finally:
            os.close(folder)
    except OSError as error:
        say(_alone(error))
        return MemoryShelf()


def _alone(error: OSError) -> str:
    return (
        f"{own_folder()} cannot be shared ({error.strerror or error}): each process keeps a pace of its own, "
        "and --bandwidth holds for each worker alone"
    )
