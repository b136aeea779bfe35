"""The transport of all requests: connections through the proxies of the environment, with a minimum throughput."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from indexer.network.direct import DirectConnections, MinThroughput


class WatchedStream(httpcore2.NetworkStream):
    """A connection whose reads raise httpcore2.ReadTimeout when a response is too slow."""

    def __init__(self, inner: httpcore2.NetworkStream, minimum: MinThroughput) -> None:
        self._inner = inner
        self._minimum = minimum
        self._received = 0
        self._waited = 0.0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes of the response."""
        minimum = self._minimum
        before = minimum.clock()
        data: bytes = self._inner.read(max_bytes, timeout)
        self._waited += minimum.clock() - before
        self._received += len(data)
        if data and minimum.is_missed(self._received, self._waited):
            raise httpcore2.ReadTimeout(f"only {self._received} bytes in {self._waited:.0f} s")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send a request or a part of one; the next bytes to read belong to a new response."""
        self._received, self._waited = 0, 0.0
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        """The same connection, encrypted."""
        return WatchedStream(self._inner.start_tls(*arguments, **options), self._minimum)

    def get_extra_info(self, info: str) -> Any:
        """Facts about the connection, by httpcore2's names."""
        return self._inner.get_extra_info(info)


_PROXY_VARIABLES = tuple(
    spelled.encode()
    for name in ("http", "https", "all", "no")
    for spelled in (f"{name}_proxy", f"{name}_proxy".upper())
)


@lru_cache(maxsize=64)
def _proxy_of(scheme: str, host: str, environment: tuple[bytes | None, ...]) -> str:
    """The address of the proxy for a host, "" for none. Looking it up takes longer than sending a request."""
    proxies = {} if proxy_bypass(host) else getproxies()
    return proxies.get(scheme) or proxies.get("all") or ""


class UnusableProxyError(httpx2.ProxyError):
    """The environment names a proxy that cannot be used; trying again does not help."""


def _proxy(address: str, scheme: str) -> httpcore2.Proxy:
    """The proxy at an address of the environment, which may lack "http://". Raises UnusableProxyError."""
    variable = f"the proxy in {scheme.upper()}_PROXY or ALL_PROXY"
    try:
        through = httpx2.URL(address if "://" in address else f"http://{address}")
    except httpx2.InvalidURL as error:
        raise UnusableProxyError(f"{variable} is not an address") from error
    if through.scheme not in ("http", "https", "socks5", "socks5h") or not through.host:
        raise UnusableProxyError(f"{variable} is not an address of http, https or socks5")
    if through.scheme.startswith("socks5") and find_spec("socksio") is None:
        raise UnusableProxyError(f"{variable} speaks SOCKS, for which the package socksio is needed")
    auth = (through.username, through.password) if through.username or through.password else None
    return httpcore2.Proxy(str(through.copy_with(username=None, password=None)), auth=auth)


class _WatchedBackend(httpcore2.SyncBackend):
    def __init__(self, minimum: MinThroughput) -> None:
        self._minimum = minimum

    def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        return WatchedStream(super().connect_tcp(*arguments, **options), self._minimum)


class WatchedTransport(httpx2.BaseTransport):
    """HTTP/1.1 with a minimum throughput, through the proxies of the environment. Can be shared between threads.

    httpx2's own transport does not accept a network backend, so this one is built from httpcore2's pools as well.
    Ranges of files take the direct connections, unless a proxy is named for their host.
    """

    def __init__(self, minimum: MinThroughput) -> None:
        self._backend = _WatchedBackend(minimum)
        self._tls = httpx2.create_ssl_context()
        self._direct = DirectConnections(minimum, self._tls)
        self._pools: dict[str, httpcore2.ConnectionPool] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises httpx2.RequestError if there is no response or it is too slow."""
        # The connections to this host, or to the proxy that the environment names for it.
        environment = tuple(map(os.environb.get, _PROXY_VARIABLES))
        address = _proxy_of(request.url.scheme, request.url.host, environment)
        if not address and request.method == "GET" and "Range" in request.headers:
            return self._direct.handle_request(request)
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        assert isinstance(request.stream, httpx2.SyncByteStream)
        with self._lock:
            if address not in self._pools:
                proxy = _proxy(address, request.url.scheme) if address else None
                self._pools[address] = httpcore2.ConnectionPool(
                    self._tls, proxy=proxy, network_backend=self._backend, max_connections=100,
                    max_keepalive_connections=20, keepalive_expiry=5.0,
                )  # fmt: skip
            pool = self._pools[address]
        with _httpx_errors(request):
            response = pool.handle_request(
                httpcore2.Request(
                    request.method, url, headers=request.headers.raw, content=request.stream,
                    extensions=request.extensions,
                )
            )  # fmt: skip
        assert isinstance(response.stream, Iterable)
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response.stream, request),
            extensions=response.extensions,
        )

    def close(self) -> None:
        """Close all connections."""
        self._direct.close()
        with self._lock:
            for pool in self._pools.values():
                pool.close()


class _Body(httpx2.SyncByteStream):
    """A response body that raises httpx2's errors."""

    def __init__(self, stream: Iterable[bytes], request: httpx2.Request) -> None:
        self._stream, self._request = stream, request

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors(self._request):
            yield from self._stream

    def close(self) -> None:
        getattr(self._stream, "close", lambda: None)()


@contextlib.contextmanager
def _httpx_errors(request: httpx2.Request) -> Iterator[None]:
    """Turn httpcore2's errors into httpx2's of the same names."""
    try:
        yield
    except Exception as error:
        same = getattr(httpx2, type(error).__name__, None)
        if not type(error).__module__.startswith("httpcore2") or same is None:
            raise
        raise same(str(error), request=request) from error
