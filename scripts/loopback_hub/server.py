"""Two HTTP/1.1 servers on 127.0.0.1, the Hub and its CDN, and how an answer gets onto the wire."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import secrets
import socket
import ssl
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from scripts.loopback_hub.answers import Answer, Content, Request, canned, error, split_target
from scripts.loopback_hub.faults import Effects, Faults
from scripts.loopback_hub.ledger import Ledger, RequestRecord
from scripts.loopback_hub.limits import RateLimits, Throttle
from scripts.loopback_hub.store import StoreError

_BODY_LIMIT = 1 << 20
_DRAIN_LIMIT = 1 << 26
_SEND_BUFFER = 1 << 18
_METHODS = ("GET", "HEAD", "POST")
_WRITING_METHODS = (*_METHODS, "PUT")


class _HangUp(Exception):
    """Close the connection now."""


@dataclass
class Desk:
    """What a handler needs: how to answer, and what to do to every answer.

    ``spool``: where large bodies of requests are put; without one they are refused.
    """

    role: str
    route: Callable[[Request], Answer]
    faults: Faults
    ledger: Ledger
    limits: RateLimits
    throttle: Throttle
    stopping: threading.Event
    latency: Callable[[], float]
    spool: Path | None = None


class Server(TCPServer):
    """One thread per connection; ``stop`` ends them all, whatever they are waiting for.

    ``host``: the name for 127.0.0.1 in its address. ``tls``: with it the server speaks https.
    """

    request_queue_size = 256
    allow_reuse_address = True

    def __init__(self, port: int, desk: Desk, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.desk = desk
        self._host, self._tls = host, tls
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._loop = threading.Thread(
            target=self.serve_forever, args=(0.02,), name=f"loopback-{desk.role}", daemon=True
        )

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.server_address[1]}"

    def start(self) -> None:
        """Begin to accept."""
        self._loop.start()

    def stop(self) -> None:
        """Refuse, hang up on everybody, and return when every thread has ended."""
        if self._loop.is_alive():
            self.shutdown()
            self._loop.join()
        self.server_close()
        with self._lock:
            connections = dict(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve this connection in a thread of its own."""
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        with self._lock:
            self._open[request] = thread
        thread.start()

    def _serve(self, connection: socket.socket, client_address: Any) -> None:
        try:
            if self._tls is not None:  # in this thread, so that a slow handshake blocks no other connection
                plain = connection
                connection = self._tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open[connection] = self._open.pop(plain)
                connection.do_handshake()
            self.finish_request(connection, client_address)
        except (OSError, _HangUp):
            pass  # the other side went away, or was meant to be dropped
        finally:
            with self._lock:
                self._open.pop(connection, None)
            self.shutdown_request(connection)


class Handler(BaseHTTPRequestHandler):
    """One connection, request after request."""

    protocol_version = "HTTP/1.1"
    server_version = "loopback-hub"
    sys_version = ""
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        """Keep the kernel from taking much more of a body than the client has read."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the ledger has it."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Every method goes the same way, those that are refused too."""
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        desk = self.server.desk
        path, query = split_target(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        record = desk.ledger.open(desk.role, self.command, path, query, headers)
        effects = desk.faults.strike(desk.role, self.command, path, query)
        if effects.swallow is not None:
            self.rfile.read(effects.swallow)
            raise _HangUp
        body = self._read_body()
        desk.stopping.wait(desk.latency() + (effects.hang if effects.hang_after is None else 0.0))
        if effects.no_answer or desk.stopping.is_set():
            raise _HangUp
        spooled = body if isinstance(body, Path) else None
        try:
            content = body if isinstance(body, bytes) else b""
            request = Request(self.command, path, query, headers, content, effects, spooled)
            answer = self._answer(request, too_much=body is None)
        finally:
            if spooled is not None:
                spooled.unlink(missing_ok=True)
        desk.ledger.set_file(record, answer.repo_id, answer.filename)
        self._send(request, _spoil(request, answer), record)

    def _answer(self, request: Request, *, too_much: bool) -> Answer:
        desk = self.server.desk
        allowed = True
        limit_headers: dict[str, str] = {}
        if desk.role == "hub":
            allowed, limit_headers = desk.limits.take(_kind(request.path), request.token or "anonymous")
        try:
            if not allowed:
                answer = error(429, "You have been rate limited; see the RateLimit header")
            elif request.method not in (_METHODS if desk.spool is None else _WRITING_METHODS):
                answer = error(405, f"{request.method} is not spoken here")
            elif too_much:
                answer = error(413, "The request's body is too large or has no length")
            else:
                answer = desk.route(request)
            if request.effects.status is not None:
                result = canned(request.effects.status, desk.role, request.effects.retry_after)
                result.repo_id, result.filename = answer.repo_id, answer.filename
                answer = result
        except StoreError as problem:
            answer = error(500, f"The store on disk cannot be read: {problem}")
        except Exception:
            traceback.print_exc()  # a mistake in this program, shown to the person who runs the tests
            answer = error(500, "Internal error of the loopback Hub")
        answer.headers |= limit_headers
        if request.effects.status == 429 and limit_headers:
            wait = answer.headers.get("Retry-After", "1")
            answer.headers["RateLimit"] = f'"{_kind(request.path)}";r=0;t={wait}'
        return answer

    def _read_body(self) -> bytes | Path | None:
        """The request's body, b"" where it has none, None where it is too large or of unknown length.

        A Hub that is written to puts a large one into a file.
        """
        spool = self.server.desk.spool
        length = self.headers.get("Content-Length", "0")
        known = length.isascii() and length.isdigit() and len(length) < 13
        if not known or (spool is None and int(length) > _DRAIN_LIMIT) or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            return None
        if int(length) <= (_BODY_LIMIT if spool is None else _DRAIN_LIMIT):
            return self.rfile.read(int(length))
        # Read to its end all the same: who is still sending would not see the answer.
        if spool is None:
            for _ in self._body_parts(int(length)):
                pass
            return None
        path = spool / f".{secrets.token_hex(8)}"
        with path.open("wb") as file:
            file.writelines(self._body_parts(int(length)))
        return path

    def _body_parts(self, left: int) -> Iterator[bytes]:
        while left and (part := self.rfile.read(min(left, _BODY_LIMIT))):
            left -= len(part)
            yield part

    def _send(self, request: Request, answer: Answer, record: RequestRecord) -> None:
        desk, effects = self.server.desk, request.effects
        length = answer.length
        bodiless = request.method == "HEAD" or answer.status in (204, 304)
        if effects.cut_to is not None and not bodiless:
            length = min(length, effects.cut_to)
        claimed = length if effects.content_length is None else effects.content_length
        if claimed != length:
            self.close_connection = True
        desk.ledger.set_status(record, answer.status)
        self.send_response_only(answer.status, _phrase(answer.status))
        self.send_header("Server", self.version_string())
        if "Date" not in answer.headers:  # a fault may set it, where a clock is to be wrong
            self.send_header("Date", self.date_time_string())
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(claimed))
        self.send_header("X-Request-Id", f"loopback-{record.number}")
        for name, value in answer.headers.items():
            self.send_header(name, re.sub(r"[^\x20-\x7e]", "?", value))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if not bodiless:
            self._send_body(answer, length, effects, record)

    def _send_body(self, answer: Answer, length: int, effects: Effects, record: RequestRecord) -> None:
        """The body, in chunks that end where a fault is to strike."""
        throttle = self.server.desk.throttle
        stops = {
            length,
            *(at for at in (effects.hang_after, effects.drop_after) if at is not None and at < length),
        }
        done = 0
        with answer.content.open() as stream:
            stream.seek(answer.start)
            for stop in sorted(stops):
                while done < stop:
                    chunk = stream.read(1 if effects.drip else min(throttle.chunk, stop - done))
                    if not chunk:
                        raise _HangUp  # the file became shorter after its length was sent
                    throttle.wait(len(chunk))
                    if self.server.desk.stopping.is_set():
                        raise _HangUp
                    self._send_counted(chunk, record)
                    done += len(chunk)
                    if effects.drip:
                        self.server.desk.stopping.wait(effects.drip)
                if done == effects.hang_after:
                    self.server.desk.stopping.wait(effects.hang)
                if done == effects.drop_after:
                    self._drop(effects)

    def _send_counted(self, chunk: bytes, record: RequestRecord) -> None:
        # Counted first, so that a client that received a byte finds it counted.
        ledger, view = self.server.desk.ledger, memoryview(chunk)
        ledger.add_body(record, len(chunk))
        try:
            while view:
                view = view[self.connection.send(view) :]
        except OSError:
            ledger.add_body(record, -len(view))
            raise

    def _drop(self, effects: Effects) -> None:
        if effects.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        raise _HangUp


def _kind(path: str) -> str:
    """Which quota a route counts against."""
    if "/resolve/" in path or path.startswith("/api/resolve-cache/"):
        return "resolvers"
    return "api" if path.startswith("/api/") or ".git/" in path else "pages"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _spoil(request: Request, answer: Answer) -> Answer:
    """Everything that a fault does to an answer before its first byte is sent."""
    effects = request.effects
    is_json = answer.headers.get("Content-Type", "").startswith("application/json") and answer.status == 200
    if is_json and isinstance(answer.content.source, bytes) and (effects.splices or effects.malformed_json):
        body = answer.content.source
        if effects.splices and isinstance(rows := json.loads(body), list):
            rows.insert(effects.splice_at, effects.splice_row)
            body = json.dumps(rows).encode()
        answer.content = Content.of(body[: len(body) // 2] if effects.malformed_json else body)
    if effects.content_range is not None:
        answer.headers["Content-Range"] = effects.content_range
    if effects.gzip and answer.status in (200, 206):
        with answer.content.open() as stream:
            stream.seek(answer.start)
            answer.content = Content.of(gzip.compress(stream.read(answer.length), 1, mtime=0))
        answer.start, answer.stop = 0, None
        answer.headers["Content-Encoding"] = "gzip"
    for name, value in effects.headers.items():
        answer.headers = {key: old for key, old in answer.headers.items() if key.lower() != name.lower()}
        if value is not None:
            answer.headers[name] = value
    return answer
