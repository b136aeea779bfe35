"""Read ahead: a thread fetches the next items while the current one is processed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

# How long a consumer that stops early waits for the thread, which may be in the middle of a read.
LEAVE_SECONDS = 2.0


def read_ahead(items: Iterator[Item], size_of: Callable[[Item], int], most_bytes: int) -> Iterator[Item]:
    """The same items in the same order, fetched by a thread that keeps up to ``most_bytes`` of them ready.

    A larger item passes alone. Errors of ``items`` are raised at their place. A consumer that stops early stops the
    thread.
    """
    ready: deque[Item] = deque()
    changed = threading.Condition()
    ready_bytes = 0
    is_stopped = is_finished = False
    problem: BaseException | None = None

    def may_fetch() -> bool:
        return is_stopped or ready_bytes < most_bytes

    def may_take() -> bool:
        return is_finished or bool(ready)

    def fetch() -> None:
        nonlocal ready_bytes, is_finished, problem
        try:
            while True:
                with changed:
                    changed.wait_for(may_fetch)
                    if is_stopped:
                        break
                try:
                    item = next(items)
                except StopIteration:
                    break
                with changed:
                    if not is_stopped:
                        ready.append(item)
                        ready_bytes += size_of(item)
                        changed.notify_all()
                del item  # only the consumer keeps it alive
        except BaseException as raised:  # raised again in the consumer
            problem = raised
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            with changed:
                is_finished = True
                changed.notify_all()

    thread = threading.Thread(target=fetch, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(may_take)
                if not ready:
                    break
                item = ready.popleft()
                ready_bytes -= size_of(item)
                changed.notify_all()
            yield item
            del item
        if problem is not None:
            raise problem
    finally:
        with changed:
            is_stopped = True
            ready.clear()
            changed.notify_all()
        thread.join(LEAVE_SECONDS)
