"""What is served: the page, its data, and answers about models, all behind a token and to one host alone."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from indexer.console.terminal import explain
from indexer.errors import AtlasError, ModelError
from query.browse.held import HeldAtlas
from query.browse.model import harmless
from query.map.page import SCRIPTS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

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

# The page's own scripts: the first loads the data, and then all others, which are also those of the map's page.
LOADER = "load.js"
OWN_SCRIPTS = ("browse_data.js", "browse_model.js", "browse_depth.js", "browse_asked.js", "browse_watch.js")


def site(held: HeldAtlas, token: str, ticket: str = "", behind: str = "") -> ASGIApp:
    """The application. Everything it serves lies under ``/token/``; any other request is refused.

    ``ticket``: ``/ticket`` leads to the page once, for a browser that is started with an address which everybody on the
    machine can read in the list of processes. ``behind``: what stands behind the page's address then.
    """
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Mount, Route, Router

    pages = _Pages(held)
    routes = [
        Route("/", pages.page),
        Route("/browse.css", pages.style),
        Route("/icon.svg", pages.icon),
        Route("/load.js", pages.loader),
        Route("/browse.js", pages.script),
        Route("/data", pages.data),
        Route("/state", pages.state),
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
    """Lets nothing pass but a GET of an address with the token, or the first with the ticket."""

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
            await PlainTextResponse("An atlas is only read here.", 405, {"Allow": "GET, HEAD"})(scope, receive, send)
        else:
            await self._inner(scope, receive, send)


class _WithHeaders:
    """Puts the same headers on every answer, refusals among them."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self._inner(scope, receive, sent)


def _answer(told: Any) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(told)


def _answered(ask: Callable[[], dict[str, Any]]) -> Response:
    """What is wrong with a question is told in a line."""
    from starlette.responses import JSONResponse

    try:
        return JSONResponse(ask())
    except (AtlasError, ModelError, OSError) as error:
        return JSONResponse(harmless({"error": explain(error)}), 400)


class _Pages:
    """Every address that is served; each is run in a thread of its own."""

    def __init__(self, held: HeldAtlas) -> None:
        self._held = held
        self._texts = {
            "page": _file("browse", "browse.html"),
            "style": _file("map", "map.css") + _file("browse", "browse.css"),
            "icon": _file("browse", "icon.svg"),
            "loader": _file("browse", LOADER),
            "script": _joined(),
        }

    def page(self, request: Request) -> Response:
        """The page; whoever loads it anew sees what was published last."""
        self._held.renew()
        return self._text("page", "text/html")

    def style(self, request: Request) -> Response:
        """How it looks."""
        return self._text("style", "text/css")

    def icon(self, request: Request) -> Response:
        """What stands in the tab."""
        return self._text("icon", "image/svg+xml")

    def loader(self, request: Request) -> Response:
        """The first script."""
        return self._text("loader", "text/javascript")

    def script(self, request: Request) -> Response:
        """All others."""
        return self._text("script", "text/javascript")

    def data(self, request: Request) -> Response:
        """All models of a base, as columns."""
        from starlette.responses import Response

        if (base := self._base(request)) is None:
            return _answer({"error": "This atlas has no model of any base."})
        return Response(self._held.columns(base), media_type="application/octet-stream")

    def state(self, request: Request) -> Response:
        """Whether the page is still of the newest generation, and whether the map is made."""
        base = self._base(request)
        return _answered(lambda: self._held.state(base) if base is not None else {})

    def model(self, request: Request) -> Response:
        """All that is known of one model."""
        return _answered(lambda: self._held.model(request.path_params["model_id"]))

    def predict(self, request: Request) -> Response:
        """What one was probably tuned on."""
        return _answered(lambda: self._held.predicted(request.path_params["model_id"]))

    def where(self, request: Request) -> Response:
        """For which models a condition holds."""
        base = self._base(request)
        return _answered(lambda: {"ids": self._held.fulfilling(str(base), _query(request))})

    def sql(self, request: Request) -> Response:
        """The rows of a SELECT."""

        def ask() -> dict[str, Any]:
            found = self._held.sql(_query(request))
            return harmless(found.to_dict(), longest=None)

        return _answered(ask)

    def _base(self, request: Request) -> str | None:
        """One of the atlas's bases: the one that is asked for, else the largest."""
        bases = [row["base"] for row in self._held.bases()]
        asked = request.query_params.get("base", "")
        return asked if asked in bases else bases[0] if bases else None

    def _text(self, name: str, kind: str) -> Response:
        from starlette.responses import Response

        return Response(self._texts[name], media_type=kind)


def _query(request: Request) -> str:
    text = request.query_params.get("q", "")
    if len(text) > LONGEST_QUERY:
        raise AtlasError(f"That is longer than {LONGEST_QUERY:,} characters.", "Use `query sql`.")
    return text


def _joined() -> str:
    """The scripts that run once the data is there."""
    names = [("browse", OWN_SCRIPTS[0]), *(("map", name) for name in SCRIPTS[:-1])]
    names += [*(("browse", name) for name in OWN_SCRIPTS[1:]), ("map", SCRIPTS[-1])]
    return '"use strict";\n' + "\n".join(_file(folder, name) for folder, name in names)


def _file(folder: str, name: str) -> str:
    assert re.fullmatch(r"[a-z_]+\.(html|css|js|svg)", name)
    return (files(f"query.{folder}") / "pages" / name).read_text(encoding="utf-8")
