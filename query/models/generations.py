"""The generation of an atlas that is asked now, shared by threads: questions borrow it, a refresh replaces it.

Each question sees one generation from its beginning to its end. A generation that was replaced, or whose atlas was
closed, is closed when the last question that borrowed it ends.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from indexer.errors import AtlasError
from query.models.reader import AtlasReader

P = ParamSpec("P")
R = TypeVar("R")

# How often a question is asked again because publishes deleted the vectors of its generation.
_REFRESHES = 5

_CLOSED = "This atlas is closed."
_REOPEN = "Open it again: query.Atlas(folder)."


class Generations:
    """The latest generation of the atlas at ``path`` that was opened. Raises AtlasError as ``AtlasReader`` does."""

    def __init__(self, path: str | Path) -> None:
        self._newest = AtlasReader(path)  # also when it is closed: its folder and notes are still known
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Without borrowers, in this process."""
        self._borrowed: Counter[AtlasReader] = Counter()
        self._lock, self._renewing = Lock(), Lock()
        self._is_inherited = False

    @property
    def newest(self) -> AtlasReader:
        """The generation that is asked now, for what needs no database: folder, notes, whether it is outdated."""
        return self._newest

    @contextmanager
    def borrowed(self) -> Iterator[AtlasReader]:
        """The generation, which stays open within the block. Raises AtlasError if the atlas is closed."""
        if self._is_inherited:
            self.renew()
        with self._lock:
            if self._is_closed:
                raise AtlasError(_CLOSED, _REOPEN)
            reader = self._newest
            self._borrowed[reader] += 1
        try:
            yield reader
        finally:
            with self._lock:
                is_last = self._borrowed[reader] == 1  # it is 0 in a process that was forked meanwhile
                self._borrowed -= Counter((reader,))
                is_done = is_last and (self._is_closed or reader is not self._newest)
            if is_done:
                reader.close()

    def asked(self, question: Callable[Concatenate[AtlasReader, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The answer of ``question``, a function of one generation and of these arguments."""
        for attempt in range(_REFRESHES + 1):
            with self.borrowed() as reader:
                try:
                    answer = question(reader, *args, **kwargs)
                except AtlasError:
                    if not reader.is_overtaken or attempt == _REFRESHES:
                        raise
                else:
                    # A question about many models goes on after an error, so a missing file may not have ended it.
                    if not reader.is_overtaken or attempt == _REFRESHES:
                        break
            self.renew(reader)
        if reader.has_stored_answers:
            self.renew(reader)
        return answer

    def renew(self, replaced: AtlasReader | None = None) -> None:
        """Open the latest generation; not if another thread has done it since ``replaced`` was the newest."""
        with self._renewing:
            former = self._newest
            if replaced is not None and (former is not replaced or self._is_closed):
                return
            newest = former.latest()
            with self._lock:
                was_open = not self._is_closed and not self._is_inherited
                self._newest, self._is_closed, self._is_inherited = newest, False, False
                is_idle = not self._borrowed[former]
            if was_open and is_idle:
                former.close()

    @property
    def is_borrowed(self) -> bool:
        """Whether a question is being answered."""
        return bool(self._borrowed)

    def interrupt(self) -> None:
        """Cancel the statements that run now on the newest generation: they raise KeyboardInterrupt."""
        self._newest.connection.interrupt()

    def close(self) -> None:
        """Answer no more questions; those that are being answered end as usual."""
        with self._renewing, self._lock:
            is_idle = not self._is_closed and not self._is_inherited and not self._borrowed[self._newest]
            self._is_closed = True
        if is_idle:
            self._newest.close()

    def after_fork(self) -> None:
        """In a forked process: the connection's threads and the holders of the locks are those of the parent."""
        # Never closed and never freed here: DuckDB would wait for its threads, which this process does not have.
        for reader in {self._newest, *self._borrowed}:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(reader.connection))
        self._begin()
        self._is_inherited = not self._is_closed


_ALL: WeakSet[Generations] = WeakSet()


def _after_fork() -> None:
    for one in list(_ALL):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
