"""Connections for ranges of files: sockets that are kept open, and the standard library's parser of responses.

A sample of a model is about a hundred small ranges, and for each of them httpx2's pool and parser take several times as
much of the processor. These connections do what a GET of a range needs and nothing else: HTTP/1.1 to the host itself.
Where the environment names a proxy for a host, ``WatchedTransport`` does not use them.

Every response has a minimum throughput. A read timeout alone lets a server that sends one byte a second hold a
connection for as long as it likes, in the status line and headers as well as in the body. So everything a connection
receives for one request is counted against the time spent waiting for it. What the reader does in between (a bandwidth
limit, an SVD) does not count.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from indexer.network.addresses import ForbiddenAddressError, addresses_of

_CHUNK_BYTES = 64 << 10
# As in httpx2's pools: how many connections wait for their next request, and how long.
_MOST_IDLE = 20
_IDLE_SECONDS = 5.0
# For the status line and headers, including those of interim responses (103 Early Hints).
MOST_HEAD_BYTES = 256 << 10
# For what lies between two pieces of a chunked body or after the last one: sizes, extensions, trailers.
_MOST_FRAMING_BYTES = 256 << 10
# The same for a whole body: its chunks may be small, but each must carry something.
_MOST_FRAMING_PER_BYTE = 16

_Place = tuple[str, str, int]  # scheme, host, port
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


class DirectConnections:
    """Sends GET requests, one at a time on each connection. Can be shared between threads."""

    def __init__(self, minimum: MinThroughput, tls: ssl.SSLContext, permitted: Permitted = addresses_of) -> None:
        self._minimum = minimum
        self._tls = tls
        self._permitted = permitted
        self._idle: list[tuple[_Place, float, socket.socket]] = []
        self._lock = threading.Lock()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; ``request.extensions`` hold its timeouts. Raises httpx2.RequestError."""
        url, timeouts = request.url, request.extensions["timeout"]
        lines = [b"GET %b HTTP/1.1" % url.raw_path, *(b"%b: %b" % pair for pair in request.headers.raw), b"", b""]
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
            raise httpx2.LocalProtocolError("a header holds a line break", request=request)
        place = (url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80))
        connection = self._taken(place)
        if connection is None:
            with _httpx_errors(request, httpx2.ConnectTimeout, httpx2.ConnectError):
                connection = self._connected(place, timeouts["connect"])
        try:
            connection.settimeout(timeouts["read"])
            with _httpx_errors(request, httpx2.WriteTimeout, httpx2.WriteError):
                connection.sendall(head)
            with _httpx_errors(request, httpx2.ReadTimeout, httpx2.ReadError):
                received = _Received(connection, self._minimum)
                response = _begun(received)
        except BaseException:
            connection.close()
            raise
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.getheaders()]
        body = _Body(self, place, connection, response, received, request)
        return httpx2.Response(response.status, headers=headers, stream=body)

    def close(self) -> None:
        """Close the connections that wait for a request."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, _, connection in idle:
            connection.close()

    def keep(self, place: _Place, connection: socket.socket) -> None:
        """Keep a connection, whose last response was read to its end, for the next request."""
        with self._lock:
            self._idle.append((place, time.monotonic() + _IDLE_SECONDS, connection))
            surplus = self._idle.pop(0)[2] if len(self._idle) > _MOST_IDLE else None
        if surplus is not None:
            surplus.close()

    def _taken(self, place: _Place) -> socket.socket | None:
        """The connection to ``place`` that was used last and can be used again; None if there is none."""
        while True:
            with self._lock:
                number = next(
                    (number for number in reversed(range(len(self._idle))) if self._idle[number][0] == place), -1
                )
                if number < 0:
                    return None
                _, until, connection = self._idle.pop(number)
            # If something can be read now, it is the end of the connection, or an answer without a request.
            if time.monotonic() < until and not _is_readable(connection):
                return connection
            connection.close()

    def _connected(self, place: _Place, seconds: float) -> socket.socket:
        scheme, host, port = place
        connection = connected(self._permitted(host, port), port, seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connection, server_hostname=host) if scheme == "https" else connection
        except BaseException:
            connection.close()
            raise


def connected(addresses: Sequence[str], port: int, seconds: float | None) -> socket.socket:
    """A connection to the first of the addresses that accepts one. Raises OSError if none does."""
    problem: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=seconds)
        except OSError as error:
            problem = problem or error
    raise problem or OSError("the host has no address")


def _begun(line: _Received) -> http.client.HTTPResponse:
    """The response, once its status and headers have been read."""
    status = 100
    while 100 <= status < 200:
        response = http.client.HTTPResponse(line, method="GET")  # type: ignore[arg-type] # it only calls makefile
        response.begin()
        status = response.status
    line.end_head()
    lengths = set(response.headers.get_all("Content-Length", ()))
    if len(lengths) > 1 or not all(length.isascii() and length.isdigit() and len(length) < 19 for length in lengths):
        raise http.client.HTTPException("the length of the body is not a number")
    return response


class _Received(io.RawIOBase):
    """The bytes that answer one request, held to the minimum throughput. Closing it does not close the connection.

    What they hold besides the body is limited: http.client reads interim responses, sizes of chunks and trailers for as
    long as they come.
    """

    def __init__(self, connection: socket.socket, minimum: MinThroughput) -> None:
        self._connection, self._minimum = connection, minimum
        self._received, self._waited = 0, 0.0
        self._head = self._delivered = self._since_delivery = 0
        self._reader = _Reader(self)

    def end_head(self) -> None:
        """From now on a body is read."""
        self._head = self._received

    def deliver(self, count: int) -> None:
        """``count`` bytes of the body were handed on."""
        self._delivered += count
        self._since_delivery = 0

    def makefile(self, _mode: str) -> io.BufferedIOBase:
        """What ``http.client.HTTPResponse`` reads from: the same for an interim response and the one after it."""
        return self._reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        minimum = self._minimum
        before = minimum.clock()
        count = self._connection.recv_into(buffer)
        self._waited += minimum.clock() - before
        self._received += count
        if count and minimum.is_missed(self._received, self._waited):
            raise TimeoutError(f"only {self._received} bytes in {self._waited:.0f} s")
        if not self._head:
            if self._received > MOST_HEAD_BYTES:
                raise http.client.HTTPException("the headers are too long")
            return count
        self._since_delivery += count
        framing = self._received - self._head - self._delivered
        most = _MOST_FRAMING_BYTES + _MOST_FRAMING_PER_BYTE * self._delivered
        if self._since_delivery > _MOST_FRAMING_BYTES or framing > most:
            raise http.client.HTTPException("the body is hardly more than the sizes of its chunks, or has no end")
        return count


class _Reader(io.BufferedReader):
    """Stays open when an interim response, which believes that it owns it, is deleted."""

    def close(self) -> None:
        """Do nothing: the connection is closed by its owner."""


class _Body(httpx2.SyncByteStream):
    """The body of a response, in chunks as they arrive."""

    def __init__(
        self,
        connections: DirectConnections,
        place: _Place,
        connection: socket.socket,
        response: http.client.HTTPResponse,
        received: _Received,
        request: httpx2.Request,
    ) -> None:
        self._connections, self._place = connections, place
        self._connection: socket.socket | None = connection
        self._response, self._received, self._request = response, received, request
        self._is_complete = False

    def __iter__(self) -> Iterator[bytes]:
        response = self._response
        with _httpx_errors(self._request, httpx2.ReadTimeout, httpx2.ReadError):
            while chunk := response.read1(_CHUNK_BYTES):
                left = getattr(response, "chunk_left", None)
                if isinstance(left, int) and left < 0:  # http.client takes any integer for a size
                    raise http.client.HTTPException("the size of a chunk is negative")
                self._received.deliver(len(chunk))
                yield chunk
            if response.length:  # read1 does not report a body that ends too early
                raise http.client.IncompleteRead(b"", response.length)
        self._is_complete = True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._is_complete and not self._response.will_close:
            self._connections.keep(self._place, connection)
        else:
            connection.close()


def _is_readable(connection: socket.socket) -> bool:
    if isinstance(connection, ssl.SSLSocket) and connection.pending():  # decrypted, so the socket itself has no more
        return True
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _httpx_errors(
    request: httpx2.Request, timeout: type[httpx2.RequestError], failure: type[httpx2.RequestError]
) -> Iterator[None]:
    """Turn the errors of sockets and of ``http.client`` into httpx2's."""
    try:
        yield
    except ForbiddenAddressError as error:
        error.request = request
        raise
    except TimeoutError as error:
        raise timeout(str(error), request=request) from error
    except http.client.HTTPException as error:  # before OSError: RemoteDisconnected is both
        raise httpx2.RemoteProtocolError(str(error) or type(error).__name__, request=request) from error
    except OSError as error:
        raise failure(str(error), request=request) from error
