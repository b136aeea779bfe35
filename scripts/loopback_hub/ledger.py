"""Bookkeeping: every request, and how many body bytes it cost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass
class RequestRecord:
    """One request as it was answered.

    ``role`` is "hub" or "cdn". ``path`` and ``query`` are as they were sent (still percent-encoded), header
    names in lower case. ``status`` is None where there is no answer yet, or the connection was closed without
    one. ``body_bytes`` are the bytes of the response's body handed to the socket. ``repo_id`` is the
    canonical id, whatever spelling was asked for.
    """

    number: int
    role: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    at: float = field(default_factory=time.monotonic)
    status: int | None = None
    body_bytes: int = 0
    repo_id: str | None = None
    filename: str | None = None

    @property
    def range(self) -> str | None:
        """The Range header that was sent, if any."""
        return self.headers.get("range")

    @property
    def authorized(self) -> bool:
        """Whether an Authorization header was sent (its value is not kept)."""
        return "authorization" in self.headers


class Ledger:
    """A thread-safe log of requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: list[RequestRecord] = []
        self._numbers = itertools.count(1)

    def open(self, role: str, method: str, path: str, query: str, headers: Mapping[str, str]) -> RequestRecord:
        """A new record, already in the log: a request that hangs is seen there too."""
        kept = dict(headers)
        if "authorization" in kept:
            kept["authorization"] = "(not kept)"
        record = RequestRecord(next(self._numbers), role, method, path, query, kept)
        with self._lock:
            self._records.append(record)
        return record

    def set_status(self, record: RequestRecord, status: int) -> None:
        """Note the status before it is sent, so that the client that receives it finds it noted."""
        with self._lock:
            record.status = status

    def set_file(self, record: RequestRecord, repo_id: str | None, filename: str | None) -> None:
        """Note which repository and file the request turned out to be about."""
        with self._lock:
            record.repo_id, record.filename = repo_id, filename

    def add_body(self, record: RequestRecord, count: int) -> None:
        """Count body bytes: before they are sent, and back again (negative) where they could not be."""
        with self._lock:
            record.body_bytes += count

    def records(self) -> list[RequestRecord]:
        """Copies of all records, oldest first."""
        with self._lock:
            return [replace(record) for record in self._records]

    def body_bytes(self, repo_id: str | None = None, filename: str | None = None) -> int:
        """Body bytes of all answers about a repository and a file; None means any."""
        with self._lock:
            return sum(
                record.body_bytes
                for record in self._records
                if repo_id in (None, record.repo_id) and filename in (None, record.filename)
            )

    def clear(self) -> None:
        """Forget every request so far; those still being answered are forgotten too."""
        with self._lock:
            self._records.clear()
