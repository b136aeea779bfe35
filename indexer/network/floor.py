"""A floor under the speed of every answer: a server that drips its bytes counts as one that has stopped.

A limit on the wait for the next byte alone lets a server that sends one byte a second hold a connection for as long as
it likes, in its status line and headers as well as in the body. So all that a connection receives is counted, from
each request on, against the time that was spent waiting for it. What the reader does in between (a wait that keeps to
``--bandwidth``, a matrix to decompose) does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2


@dataclass(frozen=True)
class Floor:
    """Fewer than ``slowest`` bytes a second, waited for longer than ``seconds``, are too few."""

    slowest: float = 1024.0
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def is_missed(self, received: int, waited: float) -> bool:
        """Whether so many bytes in so many seconds of waiting are too few."""
        return waited > self.seconds and received < self.slowest * waited


class WatchedStream(httpcore2.NetworkStream):
    """A connection whose answers keep to the floor; reading raises httpcore2.ReadTimeout where one does not."""

    def __init__(self, inner: httpcore2.NetworkStream, floor: Floor) -> None:
        self._inner = inner
        self._floor = floor
        self._received = 0
        self._waited = 0.0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What comes next of the answer."""
        before = self._floor.clock()
        data: bytes = self._inner.read(max_bytes, timeout)
        self._waited += self._floor.clock() - before
        self._received += len(data)
        if data and self._floor.is_missed(self._received, self._waited):
            raise httpcore2.ReadTimeout(f"{self._received} bytes in {self._waited:.0f} s are too few")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send a request, or a part of one: what comes from here on is another answer."""
        self._received, self._waited = 0, 0.0
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        """The same connection, encrypted."""
        return WatchedStream(self._inner.start_tls(*arguments, **options), self._floor)

    def get_extra_info(self, info: str) -> Any:
        """What the connection knows of itself."""
        return self._inner.get_extra_info(info)


class WatchedBackend(httpcore2.NetworkBackend):
    """Connects as ``inner`` does, to connections with a floor."""

    def __init__(self, inner: httpcore2.NetworkBackend, floor: Floor) -> None:
        self._inner = inner
        self._floor = floor

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        """A connection to a host."""
        return WatchedStream(self._inner.connect_tcp(*arguments, **options), self._floor)

    def connect_unix_socket(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        """A connection to a socket of this machine."""
        return WatchedStream(self._inner.connect_unix_socket(*arguments, **options), self._floor)

    def sleep(self, seconds: float) -> None:
        """Between tries to connect."""
        self._inner.sleep(seconds)


def watch(client: httpx2.Client, floor: Floor) -> int:
    """Put the floor under all connections of ``client``, through proxies or not; how many pools it found."""
    mounted: Iterable[Any] = (getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values())
    pools = [pool for one in mounted if (pool := getattr(one, "_pool", None)) is not None]
    watched = 0
    for pool in pools:
        backend = getattr(pool, "_network_backend", None)
        if backend is not None:
            pool._network_backend = WatchedBackend(backend, floor)
            watched += 1
    return watched
