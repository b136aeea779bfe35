"""The transport of all requests: connections through the proxies of the environment, with a minimum throughput.

A host that a server named is asked only if it may be (``indexer.network.addresses``), and never without TLS if the
endpoint has it. ``NO_PROXY`` is read as curl, Go and most tools read it: names with their subdomains, addresses,
networks (``10.0.0.0/8``), wildcards (``*``, ``192.168.*``), each with or without a port.
"""

from __future__ import annotations

import contextlib
import fnmatch
import ipaddress
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
from huggingface_hub import constants

from indexer.errors import without_user
from indexer.network.addresses import ForbiddenAddressError, check_written, permitted, written_address
from indexer.network.direct import MOST_HEAD_BYTES, DirectConnections, MinThroughput, Permitted
from indexer.untrusted import printable


class WatchedStream(httpcore2.NetworkStream):
    """A connection whose reads raise httpcore2.ReadTimeout when a response is too slow."""

    def __init__(self, inner: httpcore2.NetworkStream, minimum: MinThroughput) -> None:
        self._inner = inner
        self._minimum = minimum
        self._received = 0
        self._waited = 0.0
        self._is_head = True

    def end_head(self) -> None:
        """From now on a body is read. h11 reads interim responses for as long as they come."""
        self._is_head = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes of the response."""
        minimum = self._minimum
        before = minimum.clock()
        data: bytes = self._inner.read(max_bytes, timeout)
        self._waited += minimum.clock() - before
        self._received += len(data)
        if data and minimum.is_missed(self._received, self._waited):
            raise httpcore2.ReadTimeout(f"only {self._received} bytes in {self._waited:.0f} s")
        if self._is_head and self._received > MOST_HEAD_BYTES:
            raise httpcore2.RemoteProtocolError("the headers are too long")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send a request or a part of one; the next bytes to read belong to a new response."""
        self._received, self._waited, self._is_head = 0, 0.0, True
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
def _proxy_of(scheme: str, host: str, port: int, environment: tuple[bytes | None, ...]) -> str:
    """The address of the proxy for a host, "" for none. Looking it up takes longer than sending a request."""
    # As urllib does, the lower-case name first; with no proxy in the environment, the system's settings count.
    exceptions = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if proxy_bypass(host) or is_excepted(host, port, exceptions):
        return ""
    proxies = getproxies()
    return proxies.get(scheme) or proxies.get("all") or ""


def is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Whether ``NO_PROXY`` (``exceptions``) names this host and port."""
    host = host.lower().strip("[]").rstrip(".")
    address = written_address(host) if host[:1].isdigit() or ":" in host else None
    mapped = getattr(address, "ipv4_mapped", None)
    for entry in exceptions.lower().replace(",", " ").split():
        name, wanted_port = _split_port(entry)
        if wanted_port and wanted_port != str(port):
            continue
        name = name.strip("[]").rstrip(".")
        if name == "*":
            return True
        if address is not None:
            with contextlib.suppress(ValueError):
                network = ipaddress.ip_network(name, strict=False)
                if any(one is not None and one in network for one in (address, mapped)):
                    return True
        bare = name.removeprefix("*").lstrip(".")
        if bare and (host == bare or host.endswith(f".{bare}")):
            return True
        if "*" in name and fnmatch.fnmatchcase(host, name):
            return True
    return False


def _split_port(entry: str) -> tuple[str, str]:
    """An entry of NO_PROXY without its port, and the port. An address of IPv6 has one only after brackets."""
    name, colon, port = entry.rpartition(":")
    is_port = bool(colon) and port.isascii() and port.isdigit() and (":" not in name or name.endswith("]"))
    return (name, port) if is_port else (entry, "")


def proxy_for(address: str) -> str:
    """The address of the proxy that requests to ``address`` take, without its password; "" for none."""
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        return ""
    return _shown(_proxy_of(url.scheme, url.host, _port_of(url), _environment()))


def _shown(proxy: str) -> str:
    try:
        return printable(without_user(proxy if not proxy or "://" in proxy else f"http://{proxy}"), 200)
    except ValueError:
        return "of the environment"


def _environment() -> tuple[bytes | None, ...]:
    return tuple(map(os.environb.get, _PROXY_VARIABLES))


def _port_of(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


class UnusableProxyError(httpx2.ProxyError):
    """The environment names a proxy that cannot be used; trying again does not help."""


class RefusedByProxyError(httpx2.ProxyError):
    """A proxy refuses a request, by a 4xx status of its own; trying again does not help."""


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
    """Opens connections: to permitted addresses of a host, or to a proxy, which may have any."""

    def __init__(self, minimum: MinThroughput, permitted: Permitted | None = None) -> None:
        self._minimum = minimum
        self._permitted = permitted

    def connect_tcp(self, host: str, port: int, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        if self._permitted is None:
            try:
                return WatchedStream(super().connect_tcp(host, port, *arguments, **options), self._minimum)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                raise httpcore2.ProxyError(f"no connection: {str(error) or 'no answer in time'}") from error
        try:
            addresses = self._permitted(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        problem: Exception | None = None
        for address in addresses:
            try:
                return WatchedStream(super().connect_tcp(address, port, *arguments, **options), self._minimum)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = problem or error
        raise problem or httpcore2.ConnectError("the host has no address")


class WatchedTransport(httpx2.BaseTransport):
    """HTTP/1.1 with a minimum throughput, through the proxies of the environment. Can be shared between threads.

    httpx2's own transport does not accept a network backend, so this one is built from httpcore2's pools as well.
    Ranges of files take the direct connections, unless a proxy is named for their host. ``endpoint``: the Hub that the
    user named, by default that of huggingface_hub; it decides which other hosts may be asked.
    """

    def __init__(self, minimum: MinThroughput, endpoint: Callable[[], str] = lambda: constants.ENDPOINT) -> None:
        self._minimum = minimum
        self._endpoint = endpoint
        self._tls = httpx2.create_ssl_context()
        self.forget_connections()

    def forget_connections(self) -> None:
        """Begin without connections, and close none: in a fork they are the other process's."""
        self._direct = DirectConnections(self._minimum, self._tls, self._permitted)
        self._pools: dict[str, httpcore2.ConnectionPool] = {}
        self._lock = threading.Lock()

    def _permitted(self, host: str, port: int) -> list[str]:
        return permitted(host, port, self._endpoint())

    def _check(self, url: httpx2.URL, proxy: str) -> None:
        """Raise ForbiddenAddressError for an address that no server may lead to."""
        endpoint = self._endpoint()
        if url.scheme != "https" and endpoint.startswith("https:"):
            raise ForbiddenAddressError(
                f"the Hub points to {url.host[:100]} by plain {url.scheme}, and its own is https"
            )
        if proxy:
            check_written(url.host, endpoint)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises httpx2.RequestError if there is no response or it is too slow."""
        # The connections to this host, or to the proxy that the environment names for it.
        address = _proxy_of(request.url.scheme, request.url.host, _port_of(request.url), _environment())
        try:
            self._check(request.url, address)
        except ForbiddenAddressError as error:
            error.request = request
            raise
        if not address and request.method == "GET" and "Range" in request.headers:
            return self._direct.handle_request(request)
        url = httpcore2.URL(
            scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path
        )
        assert isinstance(request.stream, httpx2.SyncByteStream)
        with self._lock:
            if address not in self._pools:
                proxy = _proxy(address, request.url.scheme) if address else None
                backend = _WatchedBackend(self._minimum, None if address else self._permitted)
                self._pools[address] = httpcore2.ConnectionPool(
                    self._tls, proxy=proxy, network_backend=backend, max_connections=100,
                    max_keepalive_connections=20, keepalive_expiry=5.0,
                )  # fmt: skip
            pool = self._pools[address]
        try:
            with _httpx_errors(request):
                response = pool.handle_request(
                    httpcore2.Request(
                        request.method, url, headers=request.headers.raw, content=request.stream,
                        extensions=request.extensions,
                    )
                )  # fmt: skip
            if address and response.status == 407:
                response.close()
                raise httpx2.ProxyError("407 Proxy Authentication Required", request=request)
        except httpx2.ProxyError as error:
            kind = RefusedByProxyError if str(error)[:1] == "4" else httpx2.ProxyError
            raise kind(f"the proxy {_shown(address)}: {error}", request=request) from error
        assert isinstance(response.stream, Iterable)
        stream = response.extensions.get("network_stream")
        if isinstance(stream, WatchedStream):
            stream.end_head()
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
