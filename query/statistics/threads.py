"""Parts of one computation on several processors: NumPy lets go of the interpreter while it sorts and looks up."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from indexer.machine import processors

Part = TypeVar("Part")
Found = TypeVar("Found")

_MOST = 8  # each thread holds blocks of some hundred megabytes


def threads_here() -> int:
    """One for each processor that this process may use; as many as ``OMP_NUM_THREADS`` says, where it is set."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST, int(asked) if asked.isdecimal() and int(asked) > 0 else processors())


def each(work: Callable[[Part], Found], parts: Iterable[Part], *, is_long: bool = True) -> list[Found]:
    """What ``work`` gives for each of ``parts``, in their order; parts are taken a few ahead.

    Threads get in each other's way where a part takes less than about a millisecond: those that are not ``is_long``
    are done by one. Raises what ``work`` raises; parts that have not begun by then are not done.
    """
    threads = threads_here() if is_long else 1
    if threads == 1:
        return [work(part) for part in parts]
    found: list[Found] = []
    begun: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in parts:
                begun.append(pool.submit(work, part))
                if len(begun) > 2 * threads:
                    found.append(begun.popleft().result())
            while begun:
                found.append(begun.popleft().result())
        finally:
            for future in begun:
                future.cancel()
    return found
