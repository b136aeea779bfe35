"""Requests, answers, byte ranges, and the Hub's error answers."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote, urlsplit

from scripts.loopback_hub.faults import Effects


@dataclass(frozen=True)
class Request:
    """One request; ``path`` and ``query`` still percent-encoded, header names in lower case.

    ``spooled``: the file that holds a body which is too large for ``body``; the reader moves it away.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    effects: Effects
    spooled: Path | None = None

    @property
    def token(self) -> str | None:
        """The bearer token that came with it."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" and token.strip() else None

    @cached_property
    def _parameters(self) -> dict[str, list[str]]:
        result: dict[str, list[str]] = {}
        for key, value in parse_qsl(self.query, keep_blank_values=True):
            result.setdefault(key.removesuffix("[]"), []).append(value)
        return result

    def all(self, name: str) -> list[str]:
        """Every value of a query parameter, in either spelling of a list: ``name`` or ``name[]``."""
        return self._parameters.get(name, [])

    def one(self, name: str) -> str | None:
        """The last value of a query parameter, or None."""
        values = self.all(name)
        return values[-1] if values else None

    def is_set(self, name: str) -> bool:
        """Whether a query parameter is true."""
        return (self.one(name) or "").lower() in ("true", "1")


@dataclass(frozen=True)
class Content:
    """Bytes in memory or in a file."""

    source: bytes | Path
    size: int

    @classmethod
    def of(cls, data: bytes) -> Content:
        """These bytes."""
        return cls(data, len(data))

    def open(self) -> BinaryIO:
        """A stream over the bytes; a file may have become shorter than ``size``."""
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


@dataclass
class Answer:
    """Status, headers and body; the body is bytes ``start`` to ``stop`` of ``content``."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: Content = field(default_factory=lambda: Content.of(b""))
    start: int = 0
    stop: int | None = None
    repo_id: str | None = None
    filename: str | None = None

    @property
    def length(self) -> int:
        """How many bytes the body has."""
        return (self.content.size if self.stop is None else self.stop) - self.start


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """A JSON body."""
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    result = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
    return Answer(status, result, Content.of(body))


def text_answer(text: str, status: int = 200) -> Answer:
    """A plain text body."""
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8"}, Content.of(text.encode()))


def error(status: int, message: str, code: str | None = None) -> Answer:
    """An error as the Hub sends it: in the body, in ``X-Error-Message``, and sometimes in ``X-Error-Code``."""
    answer = json_answer({"error": message}, status)
    answer.headers["X-Error-Message"] = message
    if code:
        answer.headers["X-Error-Code"] = code
    return answer


def repository_not_found(request: Request) -> Answer:
    """A missing repository, which to an anonymous caller looks like one that needs a login."""
    if request.token is None:
        return error(401, "Invalid username or password.", "RepoNotFound")
    return error(404, "Repository not found", "RepoNotFound")


def revision_not_found(revision: str) -> Answer:
    """A repository without that revision."""
    return error(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(sha: str) -> Answer:
    """A revision without that file or folder."""
    answer = error(404, "Entry not found", "EntryNotFound")
    answer.headers["X-Repo-Commit"] = sha
    return answer


def redirect(request: Request, status: int, location: str) -> Answer:
    """A redirect with the short text that the Hub sends along."""
    answer = text_answer(f"{'Found' if status == 302 else 'Temporary Redirect'}. Redirecting to {location}", status)
    answer.headers |= {"Location": location, "Vary": "Accept"}
    return answer


def canned(status: int, role: str, retry_after: int | None, message: str = "Access denied") -> Answer:
    """The answer that an injected status gets: as short and as unhelpful as the real ones."""
    if role == "cdn" and status < 500:
        body = f"<Error><Code>AccessDenied</Code><Message>{message}</Message></Error>"
        answer = Answer(status, {"Content-Type": "application/xml"}, Content.of(body.encode()))
    elif status >= 500:
        body = f"<html><body><h1>{status}</h1></body></html>"
        answer = Answer(status, {"Content-Type": "text/html"}, Content.of(body.encode()))
    else:
        answer = error(status, f"Injected error {status}")
    if status == 429 and retry_after is None:
        retry_after = 1
    if retry_after is not None:
        answer.headers["Retry-After"] = str(retry_after)
    return answer


def content_answer(request: Request, content: Content, etag: str, filename: str) -> Answer:
    """A file or the part of it that ``Range`` asks for (RFC 9110, 13 and 14): 200, 206, 304 or 416.

    ``etag`` comes with its quotes. Of several ranges in one header none is served: the answer is the whole.
    """
    name = quote(filename.rsplit("/", 1)[-1], safe="")
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"inline; filename*=UTF-8''{name}; filename=\"{name}\";",
        "ETag": etag,
        "Accept-Ranges": "bytes",
    }
    if etag in [each.strip() for each in request.headers.get("if-none-match", "").split(",")]:
        return Answer(304, {"ETag": etag})
    whole = Answer(200, headers, content)
    wanted = request.headers.get("range")
    if_range = request.headers.get("if-range")
    if wanted is None or request.method != "GET" or request.effects.ignore_range or if_range not in (None, etag):
        return whole
    match = re.fullmatch(r"bytes=\s*(\d{0,20})\s*-\s*(\d{0,20})\s*", wanted, re.IGNORECASE | re.ASCII)
    if match is None or not any(match.groups()):
        return whole
    first, last = match.groups()
    if first and last and int(first) > int(last):
        return whole
    start = int(first) if first else max(0, content.size - int(last))
    stop = min(content.size, int(last) + 1) if first and last else content.size
    if start >= stop:
        return Answer(416, {"Content-Range": f"bytes */{content.size}", "Accept-Ranges": "bytes"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{content.size}"
    return Answer(206, headers, content, start, stop)


def stored_content(location: Path, size: int, effects: Effects) -> Content:
    """A stored file, or what a fault puts in its place."""
    replaced = effects.replace_content
    return Content.of(replaced) if replaced is not None else Content(location, size)


def replaced_etag(effects: Effects, etag: str) -> str:
    """The quoted ETag after faults: the one that was set, or that of the content that was set."""
    if effects.replace_etag is not None:
        return f'"{effects.replace_etag}"'
    if effects.replace_content is not None:
        return f'"{hashlib.sha256(effects.replace_content).hexdigest()}"'
    return etag


def split_target(target: str) -> tuple[str, str]:
    """Path and query of a request line's target, which may also be a whole URL."""
    if not target.startswith("/"):
        parts = urlsplit(target)
        return parts.path or "/", parts.query
    path, _, query = target.partition("?")
    return path, query.partition("#")[0]
