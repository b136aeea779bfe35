"""Read ahead: threads fetch the next items while the current one is processed."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

# Results per thread that may wait for the consumer.
_READY = 2

# How long a consumer that stops early waits for the thread, which may be in the middle of a read.
_LEAVE_SECONDS = 2.0


def read_ahead(items: Iterator[Item], size_of: Callable[[Item], int], most_bytes: int) -> Iterator[Item]:
    """The same items in the same order, fetched by a thread that keeps up to ``most_bytes`` of them ready.

    ``size_of``: the bytes of an item; an item of more than ``most_bytes`` is kept alone. Errors of ``items`` are raised
    in their position. If the consumer stops early, the thread stops.
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

    thread = threading.Thread(target=copy_context().run, args=(fetch,), name="read-ahead", daemon=True)
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
        thread.join(_LEAVE_SECONDS)


def in_threads(tasks: Sequence[Callable[[], Item]], threads: int) -> Iterator[Item]:
    """The results of ``tasks`` in their order, computed by up to ``threads`` threads; by the caller if that is 1.

    An error is raised in its position. If the consumer stops early, no more tasks are started, and those that run are
    not awaited: threads are daemons, because a server may stop sending while a thread reads from it.
    """
    if threads <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task()
        return
    futures: list[Future[Item]] = [Future() for _ in tasks]
    numbers: SimpleQueue[int | None] = SimpleQueue()

    def work() -> None:
        while (number := numbers.get()) is not None:
            try:
                futures[number].set_result(tasks[number]())
            except BaseException as raised:  # raised again in the consumer
                futures[number].set_exception(raised)

    count = min(threads, len(tasks))
    for _ in range(count):
        threading.Thread(target=copy_context().run, args=(work,), name="read-ahead", daemon=True).start()
    queued = 0
    try:
        for number in range(len(tasks)):
            while queued < min(len(tasks), number + (1 + _READY) * count):
                numbers.put(queued)
                queued += 1
            result = futures[number].result()
            futures[number] = Future()  # only the consumer keeps the result alive
            yield result
            del result
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                numbers.get_nowait()
        for _ in range(count):
            numbers.put(None)
