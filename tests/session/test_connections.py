"""Connections: what an answer may look like, and which connections are used again."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from huggingface_hub import get_session

from indexer.network import transport
from indexer.network.rate_limit import RateLimiter
from indexer.network.session import HubClient
from indexer.network.transport import WatchedStream
from tests.hubs import QUICK, RawServer, http, reset_session, use_endpoint


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def part(content: bytes, connection: str = "keep-alive", **headers: str) -> bytes:
    return http(
        content, "206 Partial Content", Content_Range=f"bytes 0-9/{len(content)}", Connection=connection, **headers
    )


def asked(server: RawServer, monkeypatch: pytest.MonkeyPatch, **headers: str) -> httpx2.Response:
    """The answer to a range, read to its end."""
    if getattr(get_session(), "limits", None) != QUICK:
        use_endpoint(monkeypatch, server.endpoint)
    session = get_session()
    assert isinstance(session, HubClient)
    response = session.get_file(httpx2.URL(f"{server.endpoint}/file?x=1"), {"Range": "bytes=0-9", **headers})
    try:
        response.read()
    finally:
        response.close()
    return response


def test_a_range_is_asked_for_as_it_is(monkeypatch):
    with RawServer(part(b"0123456789", ETag='"é"')) as server:
        response = asked(server, monkeypatch)
        assert (response.status_code, response.content) == (206, b"0123456789")
        assert response.headers["Content-Range"] == "bytes 0-9/10"
        (request,) = server.requests
        assert request.startswith("GET /file?x=1 HTTP/1.1\r\n")
        for line in (f"Host: {server.endpoint.removeprefix('http://')}", "Range: bytes=0-9", "Accept: */*"):
            assert f"\r\n{line}\r\n".lower() in request.lower()


def test_a_connection_that_the_server_closed_meanwhile_costs_no_try(monkeypatch):
    """This one promises to stay open, and closes after each answer."""
    waits: list[float] = []
    with RawServer(part(b"0123456789")) as server:
        asked(server, monkeypatch)
        time.sleep(0.1)  # its end arrives
        monkeypatch.setattr("indexer.network.session.time.sleep", waits.append)
        assert asked(server, monkeypatch).content == b"0123456789"
    assert len(server.requests) == 2
    assert not any(waits)  # the server's own are 0


def test_interim_responses_come_before_the_answer(monkeypatch):
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    with RawServer(hints + b"HTTP/1.1 100 Continue\r\n\r\n" + hints + part(b"0123456789")) as server:
        assert asked(server, monkeypatch).content == b"0123456789"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20_000,
        b"HTTP/1.1 206 Partial Content\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 60_000) for n in range(50)),
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Length: 12\r\n\r\n0123456789",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: -1\r\n\r\n0123456789",
        b"SSH-2.0-server\r\n",
        b"",
    ],
    ids=["100", "103", "headers", "two lengths", "negative length", "not HTTP", "nothing"],
)
def test_answers_that_are_none(monkeypatch, answer):
    with RawServer(answer) as server, pytest.raises((httpx2.NetworkError, httpx2.RemoteProtocolError)):
        asked(server, monkeypatch)
    assert len(server.requests) == 1 + QUICK.retries  # each by a connection of its own


def test_a_body_that_ends_early_is_an_error_and_its_connection_is_not_used_again(monkeypatch):
    with RawServer(part(b"0123456789")[:-1], part(b"0123456789")) as server:
        with pytest.raises(httpx2.RemoteProtocolError):
            asked(server, monkeypatch)
        assert asked(server, monkeypatch).content == b"0123456789"


def test_bodies_without_a_length(monkeypatch):
    head = b"HTTP/1.1 206 Partial Content\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n"
    with RawServer(chunked, head + b"Connection: close\r\n\r\n0123456789") as server:
        assert asked(server, monkeypatch).content == b"0123456789"
        assert asked(server, monkeypatch).content == b"0123456789"


CHUNKED = b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES_WITHOUT_END = {
    "trailers": CHUNKED + b"a\r\n0123456789\r\n0\r\n" + b"X: y\r\n" * 1_000_000,
    "one trailer": CHUNKED + b"a\r\n0123456789\r\n0\r\nX: " + b"y" * 1_000_000,
    "extensions": CHUNKED + (b"1;" + b"x" * 60_000 + b"\r\n0\r\n") * 100,
    "a size": CHUNKED + b"0" * 1_000_000,
    "a negative size": CHUNKED + b"-5\r\n0123456789\r\n" * 100,
    "a huge length": b"HTTP/1.1 206 Partial Content\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n0123456789",
}


@pytest.mark.parametrize("what", BODIES_WITHOUT_END)
def test_bodies_that_are_all_frame(monkeypatch, what):
    """Extensions and trailers are read by h11 for as long as they come."""
    read = [0]
    receive = WatchedStream._receive

    def counted(self: WatchedStream, *options: Any) -> bytes:
        data = receive(self, *options)
        read[0] += len(data)
        return data

    monkeypatch.setattr(WatchedStream, "_receive", counted)
    with RawServer(BODIES_WITHOUT_END[what]) as server, pytest.raises(httpx2.RemoteProtocolError):
        asked(server, monkeypatch)
    assert read[0] < (1 + QUICK.retries) * 1_200_000


def test_small_chunks_and_short_trailers_are_read(monkeypatch):
    body = bytes(range(250)) * 40
    pieces = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    with RawServer(CHUNKED + pieces + b"0\r\nX-Checksum: 1\r\n\r\n") as server:
        assert asked(server, monkeypatch).content == body


def test_a_header_with_a_line_break_is_not_sent(monkeypatch):
    with RawServer(part(b"0123456789")) as server:
        with pytest.raises(httpx2.LocalProtocolError):
            asked(server, monkeypatch, Authorization="Bearer x\r\nX-Other: y")
        assert server.requests == []


def test_ranges_go_through_the_proxy_of_the_environment(monkeypatch):
    with RawServer(part(b"by a proxy")) as proxy, RawServer(part(b"by itself!")) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", "elsewhere")
        assert asked(server, monkeypatch).content == b"by a proxy"
        assert server.requests == []


class KeptServer(RawServer):
    """Answers every request of a connection."""

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(65536):
                connection.sendall(self._answers[0])


@pytest.mark.parametrize(
    "surplus", [part(b"of another"), part(b"of another")[:40], b"\r\n"], ids=["whole", "half", "blank"]
)
@pytest.mark.parametrize(
    "answer", [part(b"0123456789"), CHUNKED + b"a\r\n0123456789\r\n0\r\n\r\n"], ids=["length", "chunked"]
)
def test_bytes_that_nobody_asked_for_are_no_answer(monkeypatch, answer, surplus):
    """They come with an answer, so they are in this process before the next request is sent."""
    with KeptServer(answer + surplus) as server:
        use_endpoint(monkeypatch, server.endpoint)
        for _ in range(3):
            assert asked(server, monkeypatch).content == b"0123456789"
        server._answers[0] = part(b"9876543210")
        assert asked(server, monkeypatch).content == b"9876543210"


def test_connections_that_wait_are_few_and_not_kept_for_long(monkeypatch):
    monkeypatch.setattr(transport, "_MOST_IDLE", 2)
    opened: list[WatchedStream] = []
    begin = WatchedStream.__init__

    def counted(self: WatchedStream, *options: Any) -> None:
        opened.append(self)
        begin(self, *options)

    monkeypatch.setattr(WatchedStream, "__init__", counted)
    answer = part(b"0123456789")
    with KeptServer(answer) as server:
        session = HubClient(QUICK, RateLimiter(), lambda sentence: None)
        url = httpx2.URL(f"{server.endpoint}/file")
        responses = [session.get_file(url, {"Range": "bytes=0-9"}) for _ in range(4)]
        for response in responses:
            assert response.read() == b"0123456789"
            response.close()
        assert [stream._inner.get_extra_info("socket").fileno() < 0 for stream in opened].count(False) == 2
        session.get_file(url, {"Range": "bytes=0-9"}).close()
        assert len(opened) == 4
        clock = time.monotonic
        monkeypatch.setattr("httpcore2._sync.http11.time", type("Clock", (), {"monotonic": lambda: clock() + 6.0}))
        session.get_file(url, {"Range": "bytes=0-9"}).close()
        assert len(opened) == 5
        session.close()


@pytest.fixture(autouse=True)
def usual_session() -> Iterator[None]:
    yield
    reset_session()
