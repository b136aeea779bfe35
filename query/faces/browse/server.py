"""The web server of `query browse`: the page, its data, and answers about models, only with a token, to this machine.

It ends immediately, without waiting for incomplete requests.
"""

from __future__ import annotations

import asyncio
import errno
import re
import secrets
import socket
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import h11
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from indexer.console.terminal import first_sentence
from indexer.errors import AtlasError, ModelError
from query.contract.registry import OURS, commands
from query.faces.atlas import Atlas, generations
from query.faces.browse.model import error_in_words, harmless
from query.faces.browse.session import BrowseSession
from query.models.reader import AtlasReader
from query.questions.map.page import SCRIPTS, filled, page_file, page_text

if TYPE_CHECKING:
    from query.questions.sql import Started

Handler = Callable[[Request], Awaitable[Response]]

HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REQUEST_SECONDS = 5.0  # limit for receiving a whole request
_LINGER_SECONDS = 2.0  # for which the rest of a request is dropped after its refusal
_MOST_CONNECTIONS = 200
_BACKLOG = 64  # connections that wait to be accepted
_GRACE = 1  # seconds for running answers at the end
_HOST = re.compile(rb"[^\s:@,/]+(:\d{1,5})?")
_LONGEST_QUERY = 20_000  # characters of an SQL statement or condition
LONGEST_TEXT = 200_000  # bytes of a text that is asked about
_MOST_STATEMENTS = 2  # running at a time
_MOST_WAITING = 12  # statements and predictions that run or wait

# The page's own scripts, in addition to those of the map's page. The loader fetches the data, then the others.
_OWN_SCRIPTS = ("browse_model.js", "browse_depth.js", "browse_trace.js", "browse_asked.js", "browse_watch.js")


def site(session: BrowseSession, token: str, ending: asyncio.Event, ticket: str = "", fragment: str = "") -> ASGIApp:
    """The application. Everything is served under ``/token/``; any other request is refused.

    Args:
        session: the atlas and the answers about it.
        token: the secret part of all addresses.
        ending: set when the command ends and answers are no longer waited for.
        ticket: ``/ticket`` redirects to the page once, for a browser whose command line every user of the machine can
            read.
        fragment: the fragment of the redirect's address.
    """
    answers = _Answers(ending)
    statements, predictions = asyncio.Semaphore(_MOST_STATEMENTS), asyncio.Semaphore(1)
    texts_asked = asyncio.Semaphore(1)  # each runs a base model
    html = filled(__package__, "browse.html", is_served=True)
    scripts = [page_file(name) for name in SCRIPTS]
    scripts[-1:-1] = [page_file(name, __package__) for name in _OWN_SCRIPTS]  # the map's last script starts them

    def base_of(request: Request) -> str | None:
        """The requested base of the atlas, or the largest one."""
        bases = [row["base"] for row in session.bases()]
        name = request.query_params.get("base", "")
        return name if name in bases else bases[0] if bases else None

    def page(_request: Request) -> Response:
        session.renew()  # loading the page switches to the latest generation
        return Response(html, media_type="text/html")

    def data(request: Request) -> Any:
        if (base := base_of(request)) is None:
            return {"error": "This atlas has no model of any base."}
        return Response(session.payload(base), media_type="application/json")

    def state(request: Request) -> dict[str, Any]:
        base = base_of(request)
        return session.state(base) if base is not None else {}

    def where(request: Request, started: Started) -> dict[str, Any]:
        return {"ids": session.matching(str(base_of(request)), _query(request), started)}

    def sql(request: Request, started: Started) -> Any:
        return harmless(session.sql(_query(request), started).to_dict(), longest=None)

    def about_model(question: str, request: Request, started: Started) -> dict[str, Any]:
        return session.answered(question, str(request.path_params["model_id"]), started)

    def about_text(request: Request, started: Started) -> dict[str, Any]:
        return session.answered("ask", str(base_of(request)), started, request.state.text)

    files = {
        "/browse.css": (
            "text/css",
            page_file("map.css") + page_file("browse.css", __package__),
        ),
        "/icon.svg": ("image/svg+xml", page_file("icon.svg", __package__)),
        "/load.js": ("text/javascript", page_file("load.js", __package__)),
        "/browse.js": ("text/javascript", '"use strict";\n' + "\n".join(scripts)),
    }
    routes = [
        *(Route(path, answers.text(content, kind)) for path, (kind, content) in files.items()),
        Route("/", answers.quick(page)),
        Route("/data", answers.quick(data)),
        Route("/state", answers.quick(state)),
        Route("/questions", answers.quick(lambda _: {"questions": listed_questions()})),
        Route("/tables", answers.quick(lambda _: {"tables": session.tables()})),
        Route("/model/{model_id:int}", answers.quick(lambda request: session.model(request.path_params["model_id"]))),
        *(
            Route(f"/{question}/{{model_id:int}}", answers.slow(predictions, partial(about_model, question)))
            for question in ("predict", "trace")
        ),
        Route("/ask", _with_text(answers.slow(texts_asked, about_text)), methods=["POST"]),
        Route("/where", answers.slow(statements, where)),
        Route("/sql", answers.slow(statements, sql)),
    ]
    inner = Router([Mount("/{token}", Router(routes, redirect_slashes=False))], redirect_slashes=False)
    return _Guard(inner, token, ticket, fragment)


def listed_questions() -> list[dict[str, str]]:
    """Every question by the name of its command, with a summary and the package that adds it ("" if ours)."""
    rows = []
    for name, entries in sorted(commands().items()):
        if (about := first_sentence(entries[0].summary())) != ".":
            package = "" if entries[0].package == OURS else entries[0].package
            rows.append({"name": name, "about": page_text(about), "from": page_text(package)})
    return rows


def _query(request: Request) -> str:
    text = request.query_params.get("q", "")
    if len(text) > _LONGEST_QUERY:
        raise AtlasError(f"The statement is longer than {_LONGEST_QUERY:,} characters.", "Shorten it.")
    return text


def _with_text(handler: Handler) -> Handler:
    """A handler of requests with a text, which is bounded."""

    async def read(request: Request) -> Response:
        too_long = JSONResponse({"error": f"The text has more than {LONGEST_TEXT:,} bytes: give a part of it."}, 413)
        if int(request.headers.get("content-length", 0)) > LONGEST_TEXT:
            return too_long  # the client may wait for this before it sends it
        text = bytearray()
        try:
            async for piece in request.stream():
                text += piece
                if len(text) > LONGEST_TEXT:
                    return too_long
        except ClientDisconnect:
            return Response(status_code=408)  # to nobody
        request.state.text = bytes(text)
        return await handler(request)

    return read


class _Guard:
    """Refuses everything except requests to this machine with the token, and the first with the ticket.

    Requests are GET and HEAD, and POST where a text is asked about. Nothing is written. Every answer, including
    refusals, has the same additional headers.
    """

    def __init__(self, inner: ASGIApp, token: str, ticket: str, fragment: str) -> None:
        self._inner, self._token = inner, token
        self._ticket, self._fragment = ticket, fragment
        self._to_this_machine = TrustedHostMiddleware(self._guarded, allowed_hosts=list(HOSTS), www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        if (problem := _malformed(scope)) is not None:
            status, sentence = problem
            await PlainTextResponse(sentence, status, {"Connection": "close"})(scope, receive, with_headers)
        else:
            await self._to_this_machine(scope, receive, with_headers)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if self._ticket and secrets.compare_digest(token.encode(), self._ticket.encode()):
            self._ticket = ""
            await RedirectResponse(f"/{self._token}/{self._fragment}", 303)(scope, receive, send)
        elif not secrets.compare_digest(token.encode(), self._token.encode()):
            await PlainTextResponse("Open the address that the command printed.", 403)(scope, receive, send)
        elif scope["path"] == f"/{token}/ask" and scope["method"] != "POST":
            await PlainTextResponse("Send the text with POST.", 405, {"Allow": "POST"})(scope, receive, send)
        elif scope["path"] != f"/{token}/ask" and scope["method"] not in ("GET", "HEAD"):
            await PlainTextResponse("Read-only: use GET or HEAD.", 405, {"Allow": "GET, HEAD"})(scope, receive, send)
        else:
            await self._inner(scope, receive, send)


def _malformed(scope: Scope) -> tuple[int, str] | None:
    """The status and the reason for refusing a request that h11 accepts; None if it is well formed."""
    if scope["type"] != "http":
        return None
    if scope["http_version"] not in ("1.0", "1.1"):
        return 505, "Use HTTP/1.1."
    headers = dict(scope["headers"])
    if b"content-length" in headers and b"transfer-encoding" in headers:  # a proxy may have read another length
        return 400, "A request has either Content-Length or Transfer-Encoding."
    if not _HOST.fullmatch(headers.get(b"host", b"")):
        return 400, "The Host header is not a name with a port."
    return None


class _Client:
    """A client that waits for an answer. The process that computes it is killed when the client leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_left = False

    def started(self, process: subprocess.Popen[bytes]) -> None:
        """Called by the thread that started the process."""
        with self._lock:
            self._process = process
            if self._has_left:
                process.kill()

    def left(self) -> None:
        """The answer was sent, or the client has gone."""
        with self._lock:
            self._has_left = True
            if self._process is not None:
                self._process.kill()  # does nothing if it has ended


class _Answers:
    """Turns functions into handlers of requests, which run in threads."""

    def __init__(self, ending: asyncio.Event) -> None:
        self._ending = ending
        self._waiting = 0

    def text(self, content: str, kind: str) -> Handler:
        """The same text for every request."""

        async def handler(_request: Request) -> Response:
            return Response(content, media_type=kind)

        return handler

    def quick(self, ask: Callable[[Request], Any]) -> Handler:
        """The answer of ``ask``."""

        async def handler(request: Request) -> Response:
            return await self._unless_left(request, _in_thread(lambda: ask(request)))

        return handler

    def slow(self, turns: asyncio.Semaphore, ask: Callable[[Request, Started], Any]) -> Handler:
        """The answer of a process, which is killed if its client leaves; ``turns`` limits how many run at a time."""

        async def handler(request: Request) -> Response:
            if self._waiting >= _MOST_WAITING:
                return JSONResponse({"error": "Too many requests are waiting. Try again in a few seconds."}, 503)
            client = _Client()

            async def in_turn() -> Response:
                async with turns:
                    return await _in_thread(lambda: ask(request, client.started))

            self._waiting += 1
            try:
                return await self._unless_left(request, in_turn())
            finally:
                self._waiting -= 1
                client.left()

        return handler

    async def _unless_left(self, request: Request, work: Coroutine[Any, Any, Response]) -> Response:
        """The result of ``work``, unless the client leaves or the command ends first."""

        async def has_left() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        working = asyncio.ensure_future(work)
        endings = [asyncio.ensure_future(has_left()), asyncio.ensure_future(self._ending.wait())]
        try:
            await asyncio.wait([working, *endings], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else JSONResponse({"error": "The page is no longer served."}, 503)
        finally:
            for task in (working, *endings):
                task.cancel()


async def _in_thread(ask: Callable[[], Any]) -> Response:
    """The answer of ``ask`` as JSON, or its error in one line.

    It runs in a thread that neither cancellation nor the end of the command waits for.
    """
    answer: Future[Response] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            content = ask()
            answer.set_result(content if isinstance(content, Response) else JSONResponse(content))
        except (AtlasError, ModelError, OSError) as error:
            answer.set_result(JSONResponse({"error": error_in_words(error)}, 400))
        except BaseException as error:  # also from an interrupted query
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(answer)


# ---- the server


def browse(
    atlas: Atlas,
    base: str | None = None,
    *,
    port: int = 0,
    opens: bool = True,
    method: str | None = None,
    on_address: Callable[[str], None] = print,
) -> None:
    """Serve until the process is stopped by a signal, which is then raised again (KeyboardInterrupt).

    Args:
        atlas: the atlas to serve.
        base: the base to show first.
        port: 0 for any free port.
        opens: whether to open a browser there.
        method: umap, tsne or pca; None: tsne below 1,000 models, else umap, or pca if umap-learn is not installed.
        on_address: called with the address, which contains the token that every request needs.

    Raises:
        AtlasError: the port is in use or needs privileges.
    """
    canonical = None if base is None else generations(atlas).asked(AtlasReader.base_named, base)
    token, ticket = secrets.token_urlsafe(24), secrets.token_urlsafe(24) if opens else ""
    fragment = "" if canonical is None else f"#base={quote(canonical, safe='')}"
    try:
        listening = socket.create_server((HOSTS[0], port), backlog=_BACKLOG)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        in_use = error.errno == errno.EADDRINUSE
        problem = f"Port {port} is in use." if in_use else f"Binding to port {port} requires elevated privileges."
        raise AtlasError(problem, "Omit `port` to use any free port.") from error
    with listening:
        session, ending = BrowseSession(atlas.path, method), asyncio.Event()
        root = f"http://{HOSTS[0]}:{listening.getsockname()[1]}/"
        on_address(f"{root}{token}/{fragment}")
        config = uvicorn.Config(
            site(session, token, ending, ticket, fragment), log_config=None, access_log=False, server_header=False,
            lifespan="off", ws="none", loop="asyncio", http=_Protocol, limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE, log_level="error",
        )  # fmt: skip
        try:
            if opens:
                webbrowser.open(root + ticket)
            _Server(config, ending).run(sockets=[listening])
        finally:
            session.stop()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel the answers that clients wait for, then shut down as uvicorn does."""
        self._ending.set()
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """Refuses a client that sends no complete HTTP request within ``_REQUEST_SECONDS``, and closes the connection.

    With ``_MOST_CONNECTIONS`` open, a new connection replaces the connection that has been idle longest.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_refused = False
    _active = 0.0  # when it last received something, by the loop's clock

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._active = self.loop.time()
        self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._end_waiting)
        open_connections = [
            connection
            for connection in self.connections
            if isinstance(connection, _Protocol) and not connection.transport.is_closing()
        ]
        if len(open_connections) >= _MOST_CONNECTIONS and (
            idle := [connection for connection in open_connections if connection.is_idle and connection is not self]
        ):
            min(idle, key=lambda connection: connection._active).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Receive a request, or a part of one."""
        if self._is_refused:
            return
        self._active = self.loop.time()
        super().data_received(data)
        if self._is_refused:
            return
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._set_no_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, self._end_waiting)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._set_no_deadline()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP; called while the error of h11, which has the status, is handled."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(status, "The header of the request is too long." if status == 431 else msg)

    def _end_waiting(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._refuse(408, f"The request was not complete within {_REQUEST_SECONDS:g} seconds.")
        else:
            self.transport.close()

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer, unless an answer has begun, and close the connection.

        For a moment, the client's further data is received and dropped. If the connection were closed at once, the
        client would get an error of the system instead of the answer.
        """
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._set_no_deadline()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nothing else is sent
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = sentence.encode()
        headers = {**HEADERS, "Content-Type": "text/plain; charset=utf-8", "Content-Length": f"{len(body)}"}
        event = h11.Response(
            status_code=status, headers=[*headers.items(), ("Connection", "close")], reason=HTTPStatus(status).phrase
        )
        for part in (event, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _set_no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
