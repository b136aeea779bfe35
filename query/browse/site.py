"""What is served: the page, its data, and answers about models, only with a token and to this machine."""

from __future__ import annotations

import asyncio
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from indexer.errors import AtlasError, ModelError
from query.browse.model import error_in_words, harmless
from query.browse.session import BrowseSession
from query.map.page import SCRIPTS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from query.sql import Started

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
LONGEST_QUERY = 20_000  # characters of an SQL statement or condition
MOST_STATEMENTS = 2  # running at a time
MOST_WAITING = 12  # statements and predictions that run or wait

T = TypeVar("T")

# The page's own scripts, in addition to those of the map's page. The loader fetches the data, then the others.
LOADER = "load.js"
OWN_SCRIPTS = ("browse_model.js", "browse_depth.js", "browse_asked.js", "browse_watch.js")


def site(session: BrowseSession, token: str, ending: asyncio.Event, ticket: str = "", behind: str = "") -> ASGIApp:
    """The application. Everything is served under ``/token/``; any other request is refused.

    ``ending``: set when no answer should be waited for. ``ticket``: ``/ticket`` redirects to the page once, for a
    browser whose command line every user of the machine can read. ``behind``: the fragment of the redirect's address.
    """
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount, Route, Router

    pages = _Pages(session, ending)
    routes = [
        Route("/", pages.page),
        Route("/browse.css", pages.style),
        Route("/icon.svg", pages.icon),
        Route("/load.js", pages.loader),
        Route("/browse.js", pages.script),
        Route("/data", pages.data),
        Route("/state", pages.state),
        Route("/tables", pages.tables),
        Route("/model/{model_id:int}", pages.model),
        Route("/predict/{model_id:int}", pages.predict),
        Route("/where", pages.where),
        Route("/sql", pages.sql),
    ]
    inner = Router([Mount("/{token}", Router(routes, redirect_slashes=False))], redirect_slashes=False)
    return _WithHeaders(
        TrustedHostMiddleware(_Guarded(inner, token, ticket, behind), allowed_hosts=list(HOSTS), www_redirect=False)
    )


class _Guarded:
    """Refuses everything except GET and HEAD requests with the token, and the first request with the ticket."""

    def __init__(self, inner: ASGIApp, token: str, ticket: str, behind: str) -> None:
        self._inner, self._token = inner, token
        self._ticket, self._behind = ticket, behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse, RedirectResponse

        if scope["type"] != "http":
            return
        given = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if self._ticket and secrets.compare_digest(given.encode(), self._ticket.encode()):
            self._ticket = ""
            await RedirectResponse(f"/{self._token}/{self._behind}", 303)(scope, receive, send)
        elif not secrets.compare_digest(given.encode(), self._token.encode()):
            await PlainTextResponse("Open the address that the command printed.", 403)(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await PlainTextResponse("Read-only: use GET or HEAD.", 405, {"Allow": "GET, HEAD"})(scope, receive, send)
        else:
            await self._inner(scope, receive, send)


class _WithHeaders:
    """Adds the same headers to every answer, including refusals."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self._inner(scope, receive, sent)


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


class _Pages:
    """The handlers of all addresses."""

    def __init__(self, session: BrowseSession, ending: asyncio.Event) -> None:
        self._session, self._ending = session, ending
        self._statements = asyncio.Semaphore(MOST_STATEMENTS)
        self._predictions = asyncio.Semaphore(1)
        self._waiting = 0
        self._texts = {
            "page": _file("browse", "browse.html"),
            "style": _file("map", "map.css") + _file("browse", "browse.css"),
            "icon": _file("browse", "icon.svg"),
            "loader": _file("browse", LOADER),
            "script": _joined(),
        }

    async def page(self, request: Request) -> Response:
        """The page; loading it switches to the latest generation."""

        def ask() -> Response:
            self._session.renew()
            return self._text("page", "text/html")

        return await self._answered(request, ask)

    async def style(self, request: Request) -> Response:
        """The style sheet."""
        return self._text("style", "text/css")

    async def icon(self, request: Request) -> Response:
        """The icon of the browser tab."""
        return self._text("icon", "image/svg+xml")

    async def loader(self, request: Request) -> Response:
        """The script that loads the data."""
        return self._text("loader", "text/javascript")

    async def script(self, request: Request) -> Response:
        """All other scripts."""
        return self._text("script", "text/javascript")

    async def data(self, request: Request) -> Response:
        """The data of all models of a base."""
        from starlette.responses import Response

        def ask() -> Any:
            if (base := self._base(request)) is None:
                return {"error": "This atlas has no model of any base."}
            return Response(self._session.payload(base), media_type="application/json")

        return await self._answered(request, ask)

    async def state(self, request: Request) -> Response:
        """Whether there is a newer generation, and whether the layout is ready."""

        def ask() -> dict[str, Any]:
            base = self._base(request)
            return self._session.state(base) if base is not None else {}

        return await self._answered(request, ask)

    async def tables(self, request: Request) -> Response:
        """The tables that a statement can use."""
        return await self._answered(request, lambda: {"tables": self._session.tables()})

    async def model(self, request: Request) -> Response:
        """Everything known about one model."""
        return await self._answered(request, lambda: self._session.model(request.path_params["model_id"]))

    async def predict(self, request: Request) -> Response:
        """The datasets that a model was probably tuned on."""
        return await self._worked_out(
            request,
            self._predictions,
            lambda started: self._session.predicted(request.path_params["model_id"], started),
        )

    async def where(self, request: Request) -> Response:
        """The models that satisfy a condition."""

        def ask(started: Started) -> dict[str, Any]:
            return {"ids": self._session.fulfilling(str(self._base(request)), _query(request), started)}

        return await self._worked_out(request, self._statements, ask)

    async def sql(self, request: Request) -> Response:
        """The result of a SELECT."""

        def ask(started: Started) -> Any:
            return harmless(self._session.sql(_query(request), started).to_dict(), longest=None)

        return await self._worked_out(request, self._statements, ask)

    async def _worked_out(
        self, request: Request, turns: asyncio.Semaphore, ask: Callable[[Started], dict[str, Any]]
    ) -> Response:
        """The answer of a process that is killed if its client leaves; ``turns`` limits how many run at a time."""
        from starlette.responses import JSONResponse

        if self._waiting >= MOST_WAITING:
            return JSONResponse({"error": "Too many requests are waiting. Try again in a few seconds."}, 503)
        client = _Client()

        async def in_turn() -> Response:
            async with turns:
                return await _in_thread(lambda: _response(lambda: ask(client.started)))

        self._waiting += 1
        try:
            return await self._unless_left(request, in_turn())
        finally:
            self._waiting -= 1
            client.left()

    async def _answered(self, request: Request, ask: Callable[[], Any]) -> Response:
        return await self._unless_left(request, _in_thread(lambda: _response(ask)))

    async def _unless_left(self, request: Request, work: Coroutine[Any, Any, Response]) -> Response:
        """The result of ``work``, unless the client leaves or the command ends first."""
        from starlette.responses import JSONResponse

        working = asyncio.ensure_future(work)
        others = [asyncio.ensure_future(_has_left(request)), asyncio.ensure_future(self._ending.wait())]
        try:
            await asyncio.wait([working, *others], return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else JSONResponse({"error": "The page is no longer served."}, 503)
        finally:
            for one in (working, *others):
                one.cancel()

    def _base(self, request: Request) -> str | None:
        """The requested base of the atlas, or the largest one."""
        bases = [row["base"] for row in self._session.bases()]
        asked = request.query_params.get("base", "")
        return asked if asked in bases else bases[0] if bases else None

    def _text(self, name: str, kind: str) -> Response:
        from starlette.responses import Response

        return Response(self._texts[name], media_type=kind)


def _response(ask: Callable[[], Any]) -> Response:
    """The answer as JSON; an error is one line."""
    from starlette.responses import JSONResponse, Response

    try:
        answer = ask()
        return answer if isinstance(answer, Response) else JSONResponse(answer)
    except (AtlasError, ModelError, OSError) as error:
        return JSONResponse({"error": error_in_words(error)}, 400)


async def _in_thread(work: Callable[[], T]) -> T:
    """The result of ``work``, in a thread that neither cancellation nor the end of the command waits for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(put: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            put(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = answer.set_result, work()
        except BaseException as error:  # also from an interrupted query
            outcome = answer.set_exception, error
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await answer


async def _has_left(request: Request) -> None:
    """Returns when the connection is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _query(request: Request) -> str:
    text = request.query_params.get("q", "")
    if len(text) > LONGEST_QUERY:
        raise AtlasError(f"The statement is longer than {LONGEST_QUERY:,} characters.", "Shorten it.")
    return text


def _joined() -> str:
    """The scripts that run when the data has arrived."""
    names = [
        *(("map", name) for name in SCRIPTS[:-1]),
        *(("browse", name) for name in OWN_SCRIPTS),
        ("map", SCRIPTS[-1]),
    ]
    return '"use strict";\n' + "\n".join(_file(folder, name) for folder, name in names)


def _file(folder: str, name: str) -> str:
    assert re.fullmatch(r"[a-z_]+\.(html|css|js|svg)", name)
    return (files(f"query.{folder}") / "pages" / name).read_text(encoding="utf-8")
