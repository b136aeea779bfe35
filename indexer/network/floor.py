"""A floor under the speed of every answer: a server that drips its bytes counts as one that has stopped.

A limit on the wait for the next byte alone lets a server that sends one byte a second hold a connection for as long as
it likes, in its status line and headers as well as in the body. So all that a connection receives is counted, from
each request on, against the time that was spent waiting for it. What the reader does in between (a wait that keeps to
``--bandwidth``, a matrix to decompose) does not count.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies, proxy_bypass

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


class WatchedTransport(httpx2.BaseTransport):
    """HTTP/1.1 over connections with a floor, through the proxies that the environment names. Safe between threads.

    httpx2's own transport takes no network backend, so this one is made of httpcore2's pools, as that one is.
    """

    def __init__(self, floor: Floor) -> None:
        self._backend = WatchedBackend(httpcore2.SyncBackend(), floor)
        self._tls = httpx2.create_ssl_context()
        self._pools: dict[str, httpcore2.ConnectionPool] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises httpx2.RequestError where no answer comes, or it keeps not to the floor."""
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        assert isinstance(request.stream, httpx2.SyncByteStream)
        with _httpx_errors(request):
            answer = self._pool(request.url).handle_request(
                httpcore2.Request(
                    request.method, url, headers=request.headers.raw, content=request.stream,
                    extensions=request.extensions,
                )
            )  # fmt: skip
        assert isinstance(answer.stream, Iterable)
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_Body(answer.stream, request), extensions=answer.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()

    def _pool(self, url: httpx2.URL) -> httpcore2.ConnectionPool:
        """The connections to a host, or to the proxy through which the environment has it reached."""
        proxies = getproxies()
        address = "" if proxy_bypass(url.host) else proxies.get(url.scheme) or proxies.get("all") or ""
        with self._lock:
            if address not in self._pools:
                self._pools[address] = httpcore2.ConnectionPool(
                    self._tls, proxy=_proxy(address), network_backend=self._backend, max_connections=100,
                    max_keepalive_connections=20, keepalive_expiry=5.0,
                )  # fmt: skip
            return self._pools[address]


def _proxy(address: str) -> httpcore2.Proxy | None:
    if not address:
        return None
    url = httpx2.URL(address if "://" in address else f"http://{address}")
    auth = (url.username, url.password) if url.username or url.password else None
    return httpcore2.Proxy(str(url.copy_with(username=None, password=None)), auth=auth)


class _Body(httpx2.SyncByteStream):
    """The bytes of an answer, as they come."""

    def __init__(self, stream: Iterable[bytes], request: httpx2.Request) -> None:
        self._stream, self._request = stream, request

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors(self._request):
            yield from self._stream

    def close(self) -> None:
        getattr(self._stream, "close", lambda: None)()


@contextlib.contextmanager
def _httpx_errors(request: httpx2.Request) -> Iterator[None]:
    """httpcore2's errors as httpx2's of the same names."""
    try:
        yield
    except Exception as error:
        same = getattr(httpx2, type(error).__name__, None)
        if not type(error).__module__.startswith("httpcore2") or same is None:
            raise
        raise same(str(error), request=request) from error
