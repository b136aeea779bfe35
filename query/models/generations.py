"""The current generation of an atlas, shared by threads: questions borrow it, a refresh replaces it.

Each question uses one generation from its beginning to its end. A generation that was replaced, or whose atlas was
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

# How often a question is repeated because publishes deleted the vectors of its generation.
_REFRESHES = 5

_CLOSED = "This atlas is closed."
_REOPEN = "Open it again: query.Atlas(folder)."


class Generations:
    """The generations of the atlas at ``path``: the newest, and older ones until their last question ends.

    Raises AtlasError as ``AtlasReader`` does.
    """

    def __init__(self, path: str | Path) -> None:
        self._newest = AtlasReader(path)  # kept when it is closed, for its folder and notes
        self._is_closed = False
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        """Set up the locks of this process, without borrowers."""
        self._borrowed: Counter[AtlasReader] = Counter()
        self._lock, self._renewing = Lock(), Lock()
        self._is_inherited = False

    @property
    def newest(self) -> AtlasReader:
        """The newest opened generation, for facts that need no database: folder, notes, whether it is outdated."""
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
                is_unused = is_last and (self._is_closed or reader is not self._newest)
            if is_unused:
                reader.close()

    def asked(self, question: Callable[Concatenate[AtlasReader, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of ``question``, which gets a generation and these arguments."""
        for attempt in range(_REFRESHES + 1):
            with self.borrowed() as reader:
                try:
                    answer = question(reader, *args, **kwargs)
                except AtlasError:
                    if not reader.is_overtaken or attempt == _REFRESHES:
                        raise
                else:
                    # A question about many models continues after an error, so it may have survived a missing file.
                    if not reader.is_overtaken or attempt == _REFRESHES:
                        break
            self.renew(reader)
        if reader.has_stored_answers:
            self.renew(reader)
        return answer

    def renew(self, replaced: AtlasReader | None = None) -> None:
        """Open the latest generation, unless another thread did since ``replaced`` was the newest."""
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
        """Accept no more questions; those that are running end as usual."""
        with self._renewing, self._lock:
            is_idle = not self._is_closed and not self._is_inherited and not self._borrowed[self._newest]
            self._is_closed = True
        if is_idle:
            self._newest.close()

    def after_fork(self) -> None:
        """Begin anew in a forked process, where the connection's threads and the owners of the locks do not exist."""
        # The connections are never closed or freed here: DuckDB would wait for its threads.
        for reader in {self._newest, *self._borrowed}:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(reader.connection))
        self._begin()
        self._is_inherited = not self._is_closed


_ALL: WeakSet[Generations] = WeakSet()


def _after_fork() -> None:
    for generations in list(_ALL):
        generations.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
