"""Parts of a computation in several threads: NumPy releases the interpreter lock while it sorts and looks up."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from indexer.machine import processors

Part = TypeVar("Part")
Found = TypeVar("Found")

_MOST = 8  # threads; each needs some hundred megabytes


def threads_here() -> int:
    """The number of processors that this process may use, or ``OMP_NUM_THREADS`` if it is set; at most 8."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(_MOST, int(asked) if asked.isdecimal() and int(asked) > 0 else processors())


def each(work: Callable[[Part], Found], parts: Iterable[Part], *, is_long: bool = True) -> list[Found]:
    """The results of ``work`` for each of ``parts``, in order; only a few parts are taken ahead.

    For parts of less than about a millisecond threads only add overhead: without ``is_long`` there is one. Raises what
    ``work`` raises; parts that have not started by then are skipped.
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
