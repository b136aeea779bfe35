"""The transport of all requests: one pool of connections, with a minimum throughput, through the environment's proxies.

A host that a server named is asked only if it may be (``indexer.network.addresses``), and never without TLS if the
endpoint has it.

Every response has a minimum throughput. A read timeout alone lets a server that sends one byte a second hold a
connection for as long as it likes, in the status line and headers as well as in the body. So everything a connection
receives for one request is counted against the time spent waiting for it. What the reader does in between (a bandwidth
limit, an SVD) does not count.
"""

from __future__ import annotations

import contextlib
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
from huggingface_hub import constants

from indexer.network.addresses import ForbiddenAddressError, check_written, permitted
from indexer.network.proxies import RefusedByProxyError, proxy_of, shown_proxy, usable_proxy

# For the status line and headers, including those of interim responses (103 Early Hints).
_MOST_HEAD_BYTES = 128 << 10
# For what lies between two pieces of a chunked body or after the last one: sizes, extensions, trailers.
_MOST_FRAMING_BYTES = 256 << 10
# The same for a whole body: its chunks may be small, but each must carry something.
_MOST_FRAMING_PER_BYTE = 16
# How many connections wait for their next request, and how long.
_MOST_CONNECTIONS, _MOST_IDLE, _IDLE_SECONDS = 100, 20, 5.0

_BLANK_LINE = re.compile(rb"\n\r?\n")

Permitted = Callable[[str, int], Sequence[str]]  # the addresses of a host that a request may go to


@dataclass(frozen=True)
class MinThroughput:
    """A response is too slow if it brings fewer than ``bytes_per_second`` over more than ``seconds`` of waiting."""

    bytes_per_second: float = 1024.0
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def is_missed(self, received: int, waited: float) -> bool:
        """Whether ``received`` bytes of a response in ``waited`` seconds are too few."""
        return waited > self.seconds and received < self.bytes_per_second * waited


class WatchedStream(httpcore2.NetworkStream):
    """A connection whose reads raise httpcore2.ReadTimeout when a response is too slow.

    It hands on a response in two parts: the head, then the body, and no more of it than the head announces. So bytes
    that belong to no request stay here, and the pool does not use the connection again (``is_readable``). h11 would
    take them for the next answer. It also reads interim responses, extensions of chunks and trailers for as long as
    they come, so what a response holds besides its body is limited here: httpcore2.RemoteProtocolError.
    """

    def __init__(self, inner: httpcore2.NetworkStream, minimum: MinThroughput) -> None:
        self._inner = inner
        self._minimum = minimum
        self._begin()

    def _begin(self) -> None:
        self._received, self._waited, self._is_head = 0, 0.0, True
        self._ahead = b""  # received, and not handed on
        self._last = b""  # the last bytes that were handed on of a head or a body without a length
        self._left: int | None = None  # bytes of the body to hand on, if the head says how many
        self._framing = self._since_delivery = 0  # bytes handed on of a body without a length

    def end_head(self, length: int | None = None) -> None:
        """From now on a body of ``length`` bytes is read; None if the head does not say how many."""
        if not self._received:
            raise httpcore2.RemoteProtocolError("the response came before the request")
        self._is_head, self._left = False, length

    def deliver(self, count: int) -> None:
        """``count`` bytes of the body were handed to the reader."""
        self._framing -= count * (1 + _MOST_FRAMING_PER_BYTE)
        self._since_delivery = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes of the response."""
        most = min(max_bytes, self._left) if self._left else max_bytes
        data, self._ahead = self._ahead[:most], self._ahead[most:]
        data = data or self._receive(most, timeout)
        if self._is_head:
            before = len(self._last)
            if (end := _BLANK_LINE.search(self._last + data)) is not None:
                size = end.end() - before
                data, self._ahead, self._last = data[:size], data[size:] + self._ahead, b""
            else:
                self._last = (self._last + data)[-2:]
        elif self._left is not None:
            self._left -= len(data)
        else:
            self._last = (self._last + data[-3:])[-3:]
            self._framing += len(data)
            self._since_delivery += len(data)
            if max(self._since_delivery, self._framing) > _MOST_FRAMING_BYTES:
                raise httpcore2.RemoteProtocolError(
                    "the body is hardly more than the sizes of its chunks, or has no end"
                )
        return data

    def _receive(self, most: int, timeout: float | None) -> bytes:
        minimum = self._minimum
        before = minimum.clock()
        data: bytes = self._inner.read(most, timeout)
        self._waited += minimum.clock() - before
        self._received += len(data)
        if data and minimum.is_missed(self._received, self._waited):
            raise httpcore2.ReadTimeout(f"only {self._received} bytes in {self._waited:.0f} s")
        if self._is_head and self._received > _MOST_HEAD_BYTES:
            raise httpcore2.RemoteProtocolError("the headers are too long")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send a request or a part of one; the next bytes to read belong to a new response."""
        self._begin()
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        """The same connection, encrypted."""
        return WatchedStream(self._inner.start_tls(*arguments, **options), self._minimum)

    def get_extra_info(self, info: str) -> Any:
        """Facts about the connection, by httpcore2's names."""
        if info == "is_readable" and self._holds_surplus():
            return True
        return self._inner.get_extra_info(info)

    def _holds_surplus(self) -> bool:
        """Whether there are bytes after the last response, where the operating system does not see them."""
        is_chunked = self._left is None and self._last != b""
        if self._ahead or (is_chunked and not self._last.endswith((b"\n\r\n", b"\n\n"))):
            return True  # a chunked body ends with a blank line, so h11 has more than it
        encrypted = self._inner.get_extra_info("ssl_object")
        return encrypted is not None and encrypted.pending() > 0


def certificate_problem(error: BaseException | None) -> str:
    """What is wrong with a server's certificate ("certificate has expired"); "" if the error is not about that."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(getattr(error, "verify_message", "")) or str(error)
        error = error.__cause__ or error.__context__  # httpcore2 names no cause
    return ""


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
    ``endpoint``: the Hub that the user named, by default that of huggingface_hub; it decides which other hosts may be
    asked.
    """

    def __init__(self, minimum: MinThroughput, endpoint: Callable[[], str] = lambda: constants.ENDPOINT) -> None:
        self._minimum = minimum
        self._endpoint = endpoint
        self._tls = httpx2.create_ssl_context()
        self.forget_connections()

    def forget_connections(self) -> None:
        """Begin without connections, and close none: in a fork they are the other process's."""
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

    def _pool(self, address: str, scheme: str) -> httpcore2.ConnectionPool:
        """The connections through the proxy at ``address``, or ("") to the hosts themselves."""
        with self._lock:
            if address not in self._pools:
                self._pools[address] = httpcore2.ConnectionPool(
                    self._tls,
                    proxy=usable_proxy(address, scheme) if address else None,
                    network_backend=_WatchedBackend(self._minimum, None if address else self._permitted),
                    max_connections=_MOST_CONNECTIONS,
                    max_keepalive_connections=_MOST_IDLE,
                    keepalive_expiry=_IDLE_SECONDS,
                )
            return self._pools[address]

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises httpx2.RequestError if there is no response or it is too slow."""
        url = request.url
        # The connections to this host, or to the proxy that the environment names for it.
        address = proxy_of(url)
        assert isinstance(request.stream, httpx2.SyncByteStream)
        try:
            with _httpx_errors(request):
                self._check(url, address)
                response = self._pool(address, url.scheme).handle_request(
                    httpcore2.Request(
                        request.method,
                        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                        headers=request.headers.raw,
                        content=request.stream,
                        extensions=request.extensions,
                    )
                )
                stream = response.extensions.get("network_stream")
                assert isinstance(response.stream, Iterable)
                body = _Body(response.stream, stream if isinstance(stream, WatchedStream) else None, request)
                if address and response.status == 407:
                    body.close()
                    raise httpx2.ProxyError("407 Proxy Authentication Required", request=request)
                answer = httpx2.Response(
                    response.status, headers=response.headers, stream=body, extensions=response.extensions
                )
                try:
                    body.begin(_body_length(request.method, answer))
                except httpcore2.RemoteProtocolError:
                    body.close()
                    raise
        except httpx2.ProxyError as error:
            kind = RefusedByProxyError if str(error)[:1] == "4" else httpx2.ProxyError
            raise kind(f"the proxy {shown_proxy(address)}: {error}", request=request) from error
        return answer

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()


def _body_length(method: str, response: httpx2.Response) -> int | None:
    """How many bytes the body has, as the head says; None if it does not."""
    if method == "HEAD" or response.status_code in (204, 304):
        return 0
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() and "transfer-encoding" not in response.headers else None


class _Body(httpx2.SyncByteStream):
    """A response body that raises httpx2's errors."""

    def __init__(self, body: Iterable[bytes], connection: WatchedStream | None, request: httpx2.Request) -> None:
        self._body, self._connection, self._request = body, connection, request

    def begin(self, length: int | None) -> None:
        """From now on a body of ``length`` bytes is read, if the connection is watched."""
        if self._connection is not None:
            self._connection.end_head(length)

    def __iter__(self) -> Iterator[bytes]:
        with _httpx_errors(self._request):
            for chunk in self._body:
                if self._connection is not None:
                    self._connection.deliver(len(chunk))
                yield chunk

    def close(self) -> None:
        getattr(self._body, "close", lambda: None)()


@contextlib.contextmanager
def _httpx_errors(request: httpx2.Request) -> Iterator[None]:
    """Turn httpcore2's errors into httpx2's of the same names."""
    try:
        yield
    except ForbiddenAddressError as error:
        error.request = request
        raise
    except Exception as error:
        error_class = getattr(httpx2, type(error).__name__, None)
        if not type(error).__module__.startswith("httpcore2") or error_class is None:
            raise
        raise error_class(str(error), request=request) from error
