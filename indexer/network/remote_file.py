"""Bytes of one file on the Hub, by ranges.

The file is resolved once: a HEAD on ``/resolve`` gives size, LFS id and, for a file in LFS, the signed
address it is served from. Ranges are read from there: every request to ``/resolve`` counts against a quota.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

from indexer.errors import Failed, ModelError
from indexer.network.bandwidth import received as count_bytes
from indexer.network.byterange import Run, check_range
from indexer.network.floor import Floor
from indexer.network.hub_get import (
    Patience,
    SetbackError,
    Waiting,
    ensure_session,
    fetch_small,
    get,
    is_own,
    meaning_of,
    raise_for_status,
)
from indexer.untrusted import shown

__all__ = ["Patience", "RemoteFile", "ensure_session", "fetch_small", "is_own"]

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFUSALS = frozenset({401, 403, 404, 410})


@dataclass(frozen=True)
class _Location:
    """What the Hub says of the file: its size, its (linked) ETag and where its bytes are."""

    size: int
    etag: str | None
    address: str


class RemoteFile:
    """One file of one commit on the Hub.

    Raises what the Hub's answers mean (``indexer.network.hub_errors``), and Failed: ``range_ignored`` where the
    server keeps sending the whole file, or another part of it than was asked for; ``short_body`` and ``network``
    where bodies keep breaking off; ``timeout``; ``file_changed`` where size, ETag or commit keep being others than
    those of the beginning. No single answer decides: what helps against a body that is cut short helps here.
    """

    def __init__(
        self,
        repository: str,
        filename: str,
        commit: str,
        *,
        endpoint: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        ensure_session()
        self.name = filename
        self.bytes_read = 0
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._patience = patience or Patience()
        self._commit = commit
        self._url = hf_hub_url(repository, filename, revision=commit, endpoint=self._endpoint)
        self._location = self._resolve()
        self._served_etag: str | None = None
        self._kept: list[tuple[int, bytes]] = []
        self.size = self._location.size
        etag = self._location.etag or ""
        self.sha256 = etag if _SHA256.fullmatch(etag) else None

    def read(self, start: int, stop: int, keep: bool = False) -> bytes:
        """Exactly the bytes [start, stop). With ``keep`` a later read or run takes them from memory."""
        content = b"".join(self.stream(start, stop))
        if keep:
            self._kept.append((start, content))
        return content

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """The bytes [start, stop) as they come, some 64 KiB at a time; resumed where a body breaks off."""
        check_range(self, start, stop)
        position = start
        known = self._kept_from(start, stop)
        if known:
            position += len(known)
            yield known
        setbacks, resumed_at = 0, position
        while position < stop:
            try:
                with closing(self._body(position, stop)) as chunks:
                    for chunk in chunks:
                        position += len(chunk)
                        yield chunk
                problem = self._setback("short_body", f"was cut short at byte {position}")
            except SetbackError as setback:
                problem = setback
            if position == stop:
                return
            setbacks = 1 if position - resumed_at >= self._patience.progress else setbacks + 1
            resumed_at = position
            if setbacks > self._patience.setbacks:
                raise problem.failure
            self._patience.wait(setbacks)

    def run(self, start: int, stop: int) -> Run:
        """The stretch [start, stop) by one request; what is skipped in it is received all the same."""
        check_range(self, start, stop)
        return StreamRun(self.stream(start, stop), start, stop)

    def close(self) -> None:
        """Drop the kept bytes; connections belong to the session."""
        self._kept.clear()

    def _kept_from(self, start: int, stop: int) -> bytes:
        for kept_start, content in self._kept:
            if kept_start <= start < kept_start + len(content):
                return content[start - kept_start : stop - kept_start]
        return b""

    def _resolve(self) -> _Location:
        for setback in range(1, self._patience.setbacks + 2):
            try:
                return self._resolve_once()
            except SetbackError as problem:
                if setback > self._patience.setbacks:
                    raise problem.failure from problem
                self._patience.wait(setback)
        raise AssertionError("unreachable")

    def _resolve_once(self) -> _Location:
        try:
            found = get_hf_file_metadata(self._url, timeout=None, endpoint=self._endpoint)
        except Exception as error:
            raise self._about(meaning_of(error)) from error
        if found.size is None:
            raise self._setback("server_error", "is given without a size")
        if found.commit_hash and _COMMIT.fullmatch(self._commit) and found.commit_hash != self._commit:
            raise self._setback("file_changed", f"is served from another commit ({shown(found.commit_hash)})")
        return _Location(found.size, found.etag, found.location)

    def _resolve_again(self) -> None:
        """A new signed address, for the very same bytes."""
        found = self._resolve()
        if (found.size, found.etag) != (self._location.size, self._location.etag):
            raise self._failed("file_changed", "was replaced while it was read")
        self._location = found
        self._served_etag = None

    def _body(self, start: int, stop: int) -> Generator[bytes]:
        """The body of the answer to one request, checked; raises SetbackError if it breaks off."""
        patience = self._patience
        floor = Floor(patience.slowest, patience.slow_seconds)
        span = {"Range": f"bytes={start}-{stop - 1}"}
        with get(self._location.address, self._endpoint, span, self._about) as response:
            self._check(response, start, stop)
            received, waiting = 0, Waiting(patience.clock)
            try:
                for chunk in waiting.timed(response.iter_raw()):
                    received += len(chunk)
                    self.bytes_read += len(chunk)
                    count_bytes(len(chunk))
                    if received > stop - start:
                        raise self._setback("range_ignored", "is sent with more bytes than were asked for")
                    yield chunk
                    if floor.is_missed(received, waiting.seconds):
                        raise self._setback("timeout", "comes too slowly")
            except httpx2.TimeoutException as error:
                raise self._setback("timeout", f"stopped at byte {start + received}") from error
            except httpx2.TransportError as error:
                reason = "short_body" if received else "network"
                sentence = f"broke off at byte {start + received}"
                raise self._setback(reason, sentence) from error

    def _check(self, response: httpx2.Response, start: int, stop: int) -> None:
        """Nothing but exactly the range that was asked for, of the file that was resolved, is let through.

        Raises SetbackError: an answer of another kind may have come from one bad cache of many.
        """
        status = response.status_code
        if status in _REFUSALS and not is_own(self._location.address, self._endpoint):
            refused = self._failed("server_error", f"cannot be read from its signed address (HTTP {status})")
            self._resolve_again()
            raise SetbackError(refused)
        told = response.headers.get("Content-Range", "")
        if status == 416:
            if told.endswith(f"/{self.size}"):
                raise self._setback("server_error", "cannot be read in parts (HTTP 416)")
            raise self._setback("file_changed", f"has another size now ({shown(told)}, was {self.size})")
        if status != 206:
            raise_for_status(response, self._about)
            raise self._setback("range_ignored", f"is sent whole where a part was asked for (HTTP {status})")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise self._setback("range_ignored", f"is sent encoded, unasked ({shown(encoding)})")
        found = _CONTENT_RANGE.fullmatch(told)
        if found is None:
            raise self._setback("range_ignored", f"is sent without a usable Content-Range ({shown(told)})")
        first, last, total = (int(number) for number in found.groups())
        if total != self.size:
            raise self._setback("file_changed", f"has another size now ({total}, was {self.size})")
        if (first, last) != (start, stop - 1):
            raise self._setback("range_ignored", f"is sent from {first} to {last}, not {start} to {stop - 1}")
        etag = response.headers.get("ETag")
        if self._served_etag is not None and etag != self._served_etag:
            raise self._setback("file_changed", "was replaced while it was read (another ETag)")
        self._served_etag = etag

    def _setback(self, reason: str, sentence: str) -> SetbackError:
        return SetbackError(self._failed(reason, sentence))

    def _failed(self, reason: str, sentence: str) -> Failed:
        return Failed(reason, f"{shown(self.name)} {sentence}")

    def _about(self, error: ModelError) -> ModelError:
        return type(error)(error.reason, f"{shown(self.name)}: {error.detail}")


class StreamRun(Run):
    """A run over a body that comes in chunks."""

    def __init__(self, chunks: Generator[bytes], start: int, stop: int) -> None:
        super().__init__(start, stop)
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``."""
        self._check_step(self.position + len(buffer))
        done = 0
        while done < len(buffer):
            piece = self._next(len(buffer) - done)
            buffer[done : done + len(piece)] = piece
            done += len(piece)

    def skip_to(self, position: int) -> None:
        """Receive and drop what lies before ``position``."""
        self._check_step(position)
        while self.position < position:
            self._next(position - self.position)

    def close(self) -> None:
        """Finish the body where all of it was wanted, so that the connection can be used again."""
        if self.position == self._stop:
            for _ in self._chunks:
                pass
        self._chunks.close()

    def _next(self, limit: int) -> memoryview:
        while not self._rest:
            self._rest = memoryview(next(self._chunks))
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        self.position += len(piece)
        return piece
