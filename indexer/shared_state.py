"""State of the whole process that a block changes and restores, where blocks of several threads may overlap.

A block that saves the state when it begins and restores it when it ends is wrong in threads: the one that ends last
restores what the other had changed.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Lock
from typing import Any


class SharedChange:
    """A change that the first of overlapping blocks makes, and the last one undoes. ``make``: what makes and undoes."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._lock, self._blocks = Lock(), 0
        self._made: AbstractContextManager[Any] | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within the block the change is made."""
        with self._lock:
            if not self._blocks:
                self._made = self._make()
                self._made.__enter__()
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks and self._made is not None:
                    self._made.__exit__(None, None, None)


def _one_blas_thread() -> AbstractContextManager[Any]:
    # Finding the libraries is slow, so it is done once for those that are loaded.
    return _libraries(*(name in sys.modules for name in ("torch", "scipy", "sklearn", "numba"))).limit(
        limits=1, user_api="blas"
    )


@cache
def _libraries(*_loaded: bool) -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# BLAS of numpy and scipy on one thread. Two numbers of threads give different last bits.
one_blas_thread = SharedChange(_one_blas_thread)


_OWNER, _OTHERS_WRITE = 0o700, 0o002


@contextmanager
def _usable_umask() -> Iterator[None]:
    before = os.umask(0o077)  # it can only be read by setting it
    os.umask(before & ~_OWNER | _OTHERS_WRITE)
    try:
        yield
    finally:
        os.umask(before)


# Within a block, what is made can be used by its owner and not be written to by everybody, whatever the umask is.
usable_umask = SharedChange(_usable_umask)


def ignored_warnings(message: str = "", category: type[Warning] = Warning) -> AbstractContextManager[None]:
    """Within the block warnings of this ``category`` that begin with ``message``, a pattern, are not shown."""
    return _ignoring(message, category)()  # type: ignore[arg-type]


@cache
def _ignoring(message: str, category: type[Warning]) -> SharedChange:
    return SharedChange(lambda: _filter(message, category))


@contextmanager
def _filter(message: str, category: type[Warning]) -> Iterator[None]:
    entry = ("ignore", re.compile(message, re.IGNORECASE) if message else None, category, None, 0)
    is_new = entry not in warnings.filters
    warnings.filterwarnings("ignore", message, category)  # before all others
    try:
        yield
    finally:
        # Another thread may have replaced the list of filters (``warnings.catch_warnings``).
        if is_new and entry in warnings.filters and isinstance(warnings.filters, list):
            warnings.filters.remove(entry)
