"""What is not a proper request gets one answer with the right status, and nothing else of the server is hurt."""

from __future__ import annotations

import re
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from query.faces.browse.server import HEADERS, LONGEST_TEXT
from tests.browse.served import Served
from tests.patience import PATIENCE, wait_for

BODY = "Transfer-Encoding: chunked\r\n\r\n"
POSTED = {  # what follows the head of a POST, and the status
    "negative length": ("Content-Length: -1\r\n\r\nabc", 400),
    "no number": ("Content-Length: 0x3\r\n\r\nabc", 400),
    "signed length": ("Content-Length: +3\r\n\r\nabc", 400),
    "two lengths": ("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    "a list of lengths": ("Content-Length: 3, 4\r\n\r\nabc", 400),
    "thousands of digits": (f"Content-Length: {'9' * 5000}\r\n\r\nabc", 400),
    "too long, stated": (f"Content-Length: {LONGEST_TEXT + 1}\r\nConnection: close\r\n\r\n", 413),
    "too long, sent": (f"{BODY}{LONGEST_TEXT + 1:x}\r\n{'a' * (LONGEST_TEXT + 1)}\r\n0\r\n\r\n", 413),
    "length and encoding": (f"Content-Length: 3\r\n{BODY}3\r\nabc\r\n0\r\n\r\n", 400),
    "encoding and length": ("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
    "gzip": ("Transfer-Encoding: gzip\r\n\r\nabc", 501),
    "gzip, chunked": ("Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 501),
    "chunk without a size": (f"{BODY}xyz\r\nabc\r\n", 400),
    "chunk of a negative size": (f"{BODY}-3\r\nabc\r\n", 400),
    "chunk of a size without end": (f"{BODY}{'f' * 300}\r\nabc", 400),
    "extension without end": (f"{BODY}1;{'a' * 100_000}", 431),
    "trailers without end": (f"{BODY}1\r\nx\r\n0\r\n{'X: y' * 50_000}", 431),
}  # fmt: skip
ASKED = {  # in place of a GET of the state; {h} is the host, {t} the token
    "no host": ("GET /{t}/state HTTP/1.1\r\n\r\n", 400),
    "no host in 1.0": ("GET /{t}/state HTTP/1.0\r\n\r\n", 400),
    "two hosts": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\nHost: {h}\r\n\r\n", 400),
    "a host with a user": ("GET /{t}/state HTTP/1.1\r\nHost: {h}@evil.example\r\n\r\n", 400),
    "two hosts in one": ("GET /{t}/state HTTP/1.1\r\nHost: 127.0.0.1,evil.example\r\n\r\n", 400),
    "a port that is none": ("GET /{t}/state HTTP/1.1\r\nHost: 127.0.0.1:evil\r\n\r\n", 400),
    "another host": ("GET /{t}/state HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 400),
    "another version": ("GET /{t}/state HTTP/3.0\r\nHost: {h}\r\n\r\n", 505),
    "HTTP/2": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/0.9": ("GET /{t}/state\r\n\r\n", 400),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "a" * 400, 400),
    "a name with a blank": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\nX y: 1\r\n\r\n", 400),
    "a blank after a name": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\nContent-Length : 3\r\n\r\nabc", 400),
    "NUL": ("GET /{t}/st\0ate HTTP/1.1\r\nHost: {h}\r\n\r\n", 400),
    "a header without end": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\nX: " + "a" * 2_000_000, 431),
    "headers without end": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\n" + "X: a\r\n" * 300_000, 431),
    "a path without end": ("GET /{t}/" + "a" * 2_000_000, 431),
    "a method of no use": ("FOO /{t}/state HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\n", 405),
    "TRACE": ("TRACE /{t}/state HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\n", 405),
    "CONNECT": ("CONNECT evil.example:443 HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\n", 403),
    "a text that is got": ("GET /{t}/ask HTTP/1.1\r\nHost: {h}\r\nConnection: close\r\n\r\n", 405),
    "a bad chunk of a GET": ("GET /{t}/state HTTP/1.1\r\nHost: {h}\r\n" + BODY + "xyz\r\n", 400),
}
LASTING = "too long, sent"


def asking(served, text):
    connection = socket.create_connection(served.host.split(":"), timeout=PATIENCE)
    with suppress(OSError):  # it may be refused before its end
        connection.sendall(text.format(h=served.host, t=served.token).encode("latin1"))
    return connection


def answers(connection):
    """All that comes until the end of the connection, as the status and the header of each answer."""
    received = bytearray()
    with connection, suppress(ConnectionResetError):  # what was sent after the refusal is not read for ever
        while piece := connection.recv(99_999):
            received += piece
    heads = re.findall(rb"(?:^|(?<=\W))HTTP/1\.1 (\d+) .*?\r\n(.*?)\r\n\r\n", bytes(received), re.DOTALL)
    return [(int(status), head.lower().split(b"\r\n")) for status, head in heads]


CASES = {**{name: ("POST /{t}/ask HTTP/1.1\r\nHost: {h}\r\n" + text, status) for name, (text, status) in POSTED.items()},
         **ASKED}  # fmt: skip


# The last waits until the connection, which a client may use again, is closed.
@pytest.mark.parametrize(
    "name", [*(name for name in CASES if name != LASTING), pytest.param(LASTING, marks=pytest.mark.slow)]
)
def test_one_answer_with_the_right_status(served, name):
    text, status = CASES[name]
    began = time.monotonic()
    ((answer_status, head),) = answers(asking(served, text))
    assert answer_status == status
    assert {f"{key}: {value}".lower().encode() for key, value in HEADERS.items()} <= set(head)
    assert time.monotonic() - began < PATIENCE / 2
    assert served.ask("state")[0] == 200


@pytest.mark.slow
def test_requests_that_do_not_end_are_answered_and_the_rest_goes_on_meanwhile(served):
    post, get = "POST /{t}/ask HTTP/1.1\r\nHost: {h}\r\n", "GET /{t}/state HTTP/1.1\r\nHost: {h}\r\n"
    begun = {post + "Content-Length: 9\r\n\r\n": b"x", post + BODY: b"1\r\nx\r\n", post + BODY + "0\r\n": b"X: y\r\n",
             post + BODY + "f" * 16 + "\r\n": b"x", get: b"X: y\r\n", "GE": b"T", get + "Content-Length: 9\r\n\r\n": b"x"}  # fmt: skip
    with ExitStack() as stack:
        opened = [stack.enter_context(asking(served, text)) for text in begun]
        began = time.monotonic()
        for _ in range(6):
            for connection, piece in zip(opened, begun.values(), strict=True):
                connection.sendall(piece)
            assert served.ask("state")[0] == 200
            time.sleep(0.2)
        statuses = [[status for status, _ in answers(connection)] for connection in opened]
        assert statuses == [[408]] * 6 + [[200]]
        assert time.monotonic() - began < PATIENCE / 2


def test_connections_that_ask_for_nothing_do_not_keep_others_out(served):
    with ExitStack() as stack:
        for _ in range(260):
            stack.enter_context(socket.create_connection(served.host.split(":"), timeout=PATIENCE))
        assert served.ask("state")[0] == 200


def test_a_client_that_leaves_in_a_text_is_not_spoken_of(folder):
    running = Served(folder)
    for text in ("Content-Length: 9\r\n\r\nab", BODY + "xyz\r\n", "Content-Length: -1\r\n\r\n", BODY + "1\r\n"):
        asking(running, "POST /{t}/ask HTTP/1.1\r\nHost: {h}\r\n" + text).close()
    assert wait_for(lambda: running.ask("state")[0]) == 200
    assert running.end()[1].splitlines() == ["press Ctrl-C to stop", "Stopped: the page is no longer served."]
