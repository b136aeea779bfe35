"""Deterministic faults: a table of what goes wrong, on which requests, and how often."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote

_NOTHING: Any = object()


@dataclass
class Effects:
    """What can be done to one answer; every field left alone does nothing. Several can be combined.

    hang: seconds to wait before the answer, or after ``hang_after`` body bytes.
    no_answer: close the connection without a byte. drop_after: close it after this many body bytes;
    with ``reset`` by RST. status: answer this instead (``retry_after`` seconds goes with it).
    drip: seconds to wait after every body byte. swallow: close it after this many bytes of the request's body.
    cut_to: end the body after this many bytes, with a Content-Length to match, or ``content_length``, whatever
    it claims. ignore_range: 200 and the whole file. gzip: compress the body though identity was asked for.
    replace_content, replace_etag: another content, another ETag (and X-Linked-Etag, X-Linked-Size).
    content_range: this instead of the true header. malformed_json: half of the JSON. splice_row: insert this
    into a JSON list, at ``splice_at``. expired_url: redirect to a signed URL that has run out.
    headers: set these; None removes one.
    """

    hang: float = 0.0
    hang_after: int | None = None
    no_answer: bool = False
    drop_after: int | None = None
    reset: bool = False
    drip: float = 0.0
    swallow: int | None = None
    status: int | None = None
    retry_after: int | None = None
    cut_to: int | None = None
    content_length: int | None = None
    ignore_range: bool = False
    gzip: bool = False
    replace_content: bytes | None = None
    replace_etag: str | None = None
    content_range: str | None = None
    malformed_json: bool = False
    splice_row: Any = _NOTHING
    splice_at: int = 0
    expired_url: bool = False
    headers: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def splices(self) -> bool:
        """Whether a row is to be inserted (None is a row too)."""
        return self.splice_row is not _NOTHING

    def merge(self, other: Effects) -> None:
        """Take over every field that ``other`` sets."""
        for each, neutral in zip(fields(Effects), _NEUTRAL_VALUES, strict=True):
            value = getattr(other, each.name)
            if value is not neutral and value != neutral:
                setattr(self, each.name, value)


_NEUTRAL_VALUES = [getattr(Effects(), each.name) for each in fields(Effects)]


@dataclass(kw_only=True)
class Fault(Effects):
    """Effects and when they strike.

    ``path`` is a regular expression, searched in the decoded path with its ``?query``.
    Matching requests are counted from when the fault was added: ``nth`` strikes one of them, ``first`` the first ones,
    ``since`` that one and all after it. Without any of the three, every request is struck.
    """

    path: str
    method: str | None = None
    role: str | None = None
    nth: int | None = None
    first: int | None = None
    since: int | None = None
    matched: int = field(default=0, init=False)
    struck: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._pattern = re.compile(self.path)
        if self.role not in (None, "hub", "cdn"):
            raise ValueError(f"role is hub or cdn, not {self.role!r}")

    def meets(self, role: str, method: str, target: str) -> bool:
        """Whether this request is one to count."""
        return self.role in (None, role) and self.method in (None, method) and self._pattern.search(target) is not None

    def count(self) -> bool:
        """Count a matching request; whether the fault strikes it."""
        self.matched += 1
        strikes = (
            (self.nth is None or self.matched == self.nth)
            and (self.first is None or self.matched <= self.first)
            and (self.since is None or self.matched >= self.since)
        )
        self.struck += strikes
        return strikes


class Faults:
    """The table, to be changed at any time from any thread. Later entries win over earlier ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: list[Fault] = []

    def add(self, path: str, **settings: Any) -> Fault:
        """Add ``Fault(path=path, **settings)``; what it returns counts what it did and can be removed."""
        fault = Fault(path=path, **settings)
        with self._lock:
            self._table.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Take one fault out; the others keep their counts."""
        with self._lock:
            self._table = [other for other in self._table if other is not fault]

    def clear(self) -> None:
        """Behave from now on."""
        with self._lock:
            self._table.clear()

    def strike(self, role: str, method: str, path: str, query: str) -> Effects:
        """Count this request in every fault that it meets; what they do to it together."""
        target = unquote(path) + (f"?{unquote(query)}" if query else "")
        effects = Effects()
        with self._lock:
            for fault in self._table:
                if fault.meets(role, method, target) and fault.count():
                    effects.merge(fault)
        return effects
