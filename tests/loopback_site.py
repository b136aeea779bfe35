"""A web server on loopback that answers with JSON and with parts of files, for servers other than the Hub."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


class Handler(http.server.BaseHTTPRequestHandler):
    """One request; ``site`` is the server's."""

    protocol_version = "HTTP/1.1"
    site: LoopbackSite

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = unquote(parts.path)
        self.site.note(self, path)
        override = self.site.overrides.get(path)
        if override is not None:
            override(self)
        else:
            self.site.answer(self, path, query, body)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def send_part(self, content: bytes) -> None:
        """The part of a file that the request asks for."""
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        part = content[int(first) : int(last) + 1]
        self.send(206, part, {"Content-Range": f"bytes {first}-{last}/{len(content)}"})

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class LoopbackSite:
    """A server that runs within a ``with`` block. ``overrides``: by path, a function of the handler that answers."""

    def __init__(self) -> None:
        self.overrides: dict[str, Any] = {}
        handler = type("SiteHandler", (Handler,), {"site": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def note(self, request: Handler, path: str) -> None:
        """Remember a request, before it is answered."""

    def answer(self, request: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        """Answer a request."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
