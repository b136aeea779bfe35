"""A few numbers that several threads or processes share: when each kind of traffic is free again.

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
class Turns:
    """The traffic that shares one limit; times as the clock's ``now`` counts them, in seconds."""

    next_free: float = 0.0
    interval: float = 0.0
    interval_until: float = 0.0


class SharedClock(Protocol):
    """Turns by kind of traffic."""

    def now(self) -> float:
        """The time that turns are counted in."""
        ...

    def turns(self, name: str) -> AbstractContextManager[Turns]:
        """The turns of ``name``, to be changed by nobody else meanwhile."""
        ...


class MemoryClock:
    """Shared by the threads of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, Turns] = {}
        self._clock = clock

    def now(self) -> float:
        """Seconds of a clock that nobody sets."""
        return self._clock()

    @contextmanager
    def turns(self, name: str) -> Iterator[Turns]:
        """Borrow a kind's turns."""
        with self._lock:
            yield self._turns.setdefault(name, Turns())


class FileClock:
    """Shared by all processes that can write to one file; by the threads of this process alone once that fails.

    The file is a table of ``SLOTS`` kinds of traffic; where it is full, the one that was free first makes room.
    """

    SLOTS = 64
    # A kind that seems busy for longer than this was written by another clock, or before the clock was set back.
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
        self._own: MemoryClock | None = None  # in place of a file that failed
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
    def turns(self, name: str) -> Iterator[Turns]:
        """Borrow a kind's turns. Never fails for the file's sake: a request must not."""
        key = hashlib.sha256(f"{name}{_boot()}".encode()).digest()
        with self._threads:
            taken = self._take(key)
            if self._own is not None:
                with self._own.turns(name) as turns:
                    yield turns
                return
            offset, turns = taken
            try:
                yield turns
                self._put(offset, key, turns, name)
            finally:
                self._let_go()

    def _try_lock(self) -> None:
        """Raises OSError where the file system has no locks; one that another holds is as good as one that is had."""
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take(self, key: bytes) -> tuple[int, Turns]:
        """Where the turns lie, and the turns, locked; of no meaning once the file has failed."""
        if self._own is None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
                return self._find(key)
            except OSError as error:
                self._give_up(error)
        return 0, Turns()

    def _put(self, offset: int, key: bytes, turns: Turns, name: str) -> None:
        try:
            os.pwrite(self._file, self._SLOT.pack(key, turns.next_free, turns.interval, turns.interval_until), offset)
        except OSError as error:
            own = self._give_up(error)
            with own.turns(name) as kept:
                vars(kept).update(vars(turns))

    def _let_go(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _give_up(self, error: OSError) -> MemoryClock:
        self._let_go()
        self._own = MemoryClock(self._clock)
        self._say(_alone(error))
        return self._own

    def _find(self, key: bytes) -> tuple[int, Turns]:
        size = self._SLOT.size
        table = os.pread(self._file, self.SLOTS * size, 0)
        slots = list(self._SLOT.iter_unpack(table[: len(table) // size * size]))
        latest = self.now() + self.LONGEST
        for number, (name, *times) in enumerate(slots):
            if name == key:
                return number * size, Turns(*times) if max(times[0], times[2]) < latest else Turns()
        if len(slots) < self.SLOTS:
            return len(slots) * size, Turns()
        oldest = min(range(len(slots)), key=lambda number: slots[number][1])
        return oldest * size, Turns()


@cache
def _boot() -> str:
    """Which start of the machine this is, and with it of the clock that nobody sets; empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _common_seconds() -> float:
    return time.monotonic() if _boot() else time.time()


def common_clock(say: Say = lambda sentence: None) -> SharedClock:
    """The clock of all processes of this user on this machine; of this process alone where none can be shared.

    It lies among the machine's temporary files: a home is often shared by many machines. ``say`` is told of a clock
    that is not shared.
    """
    try:
        folder = open_own_folder()
        try:
            return FileClock(Path("pace"), folder, say)
        finally:
            os.close(folder)
    except OSError as error:
        say(_alone(error))
        return MemoryClock()


def _alone(error: OSError) -> str:
    return (
        f"{own_folder()} cannot be shared ({error.strerror or error}): each process keeps a pace of its own, "
        "and --bandwidth holds for each worker alone"
    )
