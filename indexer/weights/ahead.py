"""Read ahead: a thread fetches the next items while the current one is processed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

# How long a consumer that stops early waits for the thread, which may be in the middle of a read.
LEAVE_SECONDS = 2.0


def read_ahead(items: Iterator[Item], size_of: Callable[[Item], int], most_bytes: int) -> Iterator[Item]:
    """The same items in the same order, fetched by a thread that keeps up to ``most_bytes`` of them ready.

    A larger item passes alone. Errors of ``items`` are raised at their place. A consumer that stops early stops the
    thread.
    """
    store: _Store[Item] = _Store(size_of, most_bytes)
    thread = threading.Thread(target=store.fill, args=(items,), name="read-ahead", daemon=True)
    thread.start()
    try:
        yield from store.take()
    finally:
        store.stop()
        thread.join(LEAVE_SECONDS)


class _Store(Generic[Item]):
    """Items between the thread and the consumer."""

    def __init__(self, size_of: Callable[[Item], int], most_bytes: int) -> None:
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._ready: deque[Item] = deque()
        self._bytes = 0
        self._is_stopped = False
        self._is_finished = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def fill(self, items: Iterator[Item]) -> None:
        """Run by the thread."""
        error: BaseException | None = None
        try:
            while self._wait_for_room():
                try:
                    item = next(items)
                except StopIteration:
                    break
                self._put(item)
                del item  # only the consumer keeps it alive
        except BaseException as raised:  # raised again in the consumer
            error = raised
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        with self._changed:
            self._error, self._is_finished = error, True
            self._changed.notify_all()

    def take(self) -> Iterator[Item]:
        """Run by the consumer."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._is_finished)
                if not self._ready:
                    break
                item = self._ready.popleft()
                self._bytes -= self._size_of(item)
                self._changed.notify_all()
            yield item
            del item
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._ready.clear()
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait for room before the next item is fetched. False if the consumer has stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._bytes < self._most_bytes)
            return not self._is_stopped

    def _put(self, item: Item) -> None:
        with self._changed:
            if not self._is_stopped:
                self._ready.append(item)
                self._bytes += self._size_of(item)
                self._changed.notify_all()
