"""Ranges of one file on the Hub.

The file is resolved once: a HEAD on ``/resolve`` gives the size, the LFS id and, for a file in LFS, the signed address
it is served from. Ranges are read from there, because every request to ``/resolve`` counts against a quota. A signed
address expires while others read from it: every refusal is judged by the address that was asked, and the first thread
that needs a new one gets it for all.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NoReturn
from urllib.parse import parse_qsl, urlsplit

import httpx2
from huggingface_hub import hf_hub_url
from huggingface_hub.utils import hf_raise_for_status

from indexer.errors import Failed, ModelError
from indexer.network.byterange import Run, check_range
from indexer.network.hub_requests import about, errors_about, is_own, opened, reason_in, resolved, session_retries
from indexer.network.rate_limit import count_received, date_in
from indexer.network.retries import RetryPolicy, TransientError
from indexer.network.session import current_session, ensure_session
from indexer.untrusted import COMMIT, SHA256, shown

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
# How storage refuses an address: CloudFront by 403, S3 by 403 or (a token in it has expired) 400, others by 401.
_REFUSALS = frozenset({400, 401, 403, 404, 410})
# What the body of a refusal says of an address that has expired, or of one that was signed by a clock ahead of its own.
_SAYS_EXPIRED = re.compile(r"expire|not yet|time frame|too ?skewed", re.IGNORECASE)
_AMZ_DATE = "%Y%m%dT%H%M%SZ"
_SIZE = re.compile(r"[0-9]{1,15}")


@dataclass
class _Location:
    """Where a file is served from, and what the Hub says of it; ``has_served``: whether a range came from there."""

    location: str
    size: int
    etag: str | None
    commit_hash: str | None
    has_served: bool = False
    served_etag: str | None = None


class RemoteFile:
    """One file of one commit on the Hub.

    Raises ModelError for the Hub's errors (``indexer.network.hub_errors``), and Failed with one of these reasons:
    "range_ignored" if the server keeps sending the whole file or another part of it, "short_body" or "network" if
    bodies keep breaking off, "timeout", "refused" if two signed addresses in a row that have neither expired nor served
    anything are refused, and "file_changed" if the size, ETag or commit keeps differing from the first one. Every
    unexpected response is retried, because it may have come from one bad cache among many.
    """

    def __init__(
        self,
        repository: str,
        filename: str,
        commit: str,
        *,
        retries: RetryPolicy | None = None,
    ) -> None:
        ensure_session()
        self.name = filename
        self.bytes_read = 0
        self._lock = threading.Lock()  # ranges may be read by several threads
        self._resolving = threading.Lock()
        self._session = current_session()
        self._endpoint = self._session.endpoint
        self._retries = session_retries(retries)
        self._commit = commit
        self._url = hf_hub_url(repository, filename, revision=commit, endpoint=self._endpoint)
        with errors_about(filename):
            self._location = self._retries.call(self._resolve)
        self._refused: _Location | None = None  # the address to be replaced
        self._was_refused = False  # by an address that should have opened, and none has opened since
        self._kept: list[tuple[int, bytes]] = []
        self.size = self._location.size
        etag = self._location.etag or ""
        self.sha256 = etag if SHA256.fullmatch(etag) else None

    def read(self, start: int, stop: int, keep: bool = False) -> bytes:
        """Exactly the bytes [start, stop). With ``keep`` a later read or run takes them from memory."""
        content = b"".join(self.stream(start, stop))
        if keep:
            self._kept.append((start, content))
        return content

    def stream(self, start: int, stop: int) -> Generator[bytes]:
        """The bytes [start, stop) as they arrive, about 64 KiB at a time; resumed if a body breaks off."""
        check_range(self, start, stop)
        position = start
        for kept_start, content in self._kept:
            if kept_start <= start < kept_start + len(content):
                known = content[start - kept_start : stop - kept_start]
                position += len(known)
                yield known
                break
        tries, resumed_at = self._retries.begin(), position
        while position < stop:
            try:
                with closing(self._body(position, stop)) as chunks:
                    for chunk in chunks:
                        position += len(chunk)
                        yield chunk
                if position < stop:
                    raise self._transient("short_body", f"was cut short at byte {position}")
            except Exception as problem:
                if position == stop and isinstance(problem, TransientError):
                    return
                if position - resumed_at >= self._retries.policy.progress:
                    tries.progress()
                resumed_at = position
                with errors_about(self.name):
                    tries.wait_after(problem)

    @property
    def location(self) -> str:
        """The address that ranges are read from."""
        return self._location.location

    def run(self, start: int, stop: int) -> Run:
        """The bytes [start, stop) by one request; skipped bytes are received all the same."""
        check_range(self, start, stop)
        return StreamRun(self.stream(start, stop), start, stop)

    def close(self) -> None:
        """Drop the kept bytes; connections belong to the session."""
        self._kept.clear()

    def _resolve(self) -> _Location:
        """Size, ETag and address of the file."""
        try:
            with self._session.used():
                response, address = resolved(self._url, self._endpoint)
        except ModelError as error:
            raise about(self.name, error) from error
        headers = response.headers
        # A file in LFS has its size and id in headers of their own; the others would be those of the redirect.
        stated = headers.get("X-Linked-Size") or (None if response.is_redirect else headers.get("Content-Length"))
        size = stated or ""
        commit = headers.get("X-Repo-Commit")
        if not _SIZE.fullmatch(size):
            raise self._transient("server_error", "is served without a size" + (f" ({shown(size)})" if size else ""))
        if commit and COMMIT.fullmatch(self._commit) and commit != self._commit:
            raise self._transient("file_changed", f"is served from another commit ({shown(commit)})")
        etag = headers.get("X-Linked-Etag") or headers.get("ETag")
        return _Location(address, int(size), etag.removeprefix("W/").strip('"') if etag else None, commit)

    def _usable(self) -> _Location:
        """An address that was not refused: the first thread that needs another gets it for all."""
        with self._resolving:
            if self._location is self._refused:
                before, found = self._location, self._resolve()
                if (found.size, found.etag) != (before.size, before.etag):
                    raise Failed("file_changed", f"{shown(self.name)} was replaced while being read")
                self._location = found
            return self._location

    def _opened(self, location: _Location, span: dict[str, str]) -> httpx2.Response:
        with self._session.used():
            return opened(location.location, self._endpoint, span, self.name)

    def _body(self, start: int, stop: int) -> Generator[bytes]:
        """The checked body of the response to one request; raises TransientError if it breaks off."""
        span, location = {"Range": f"bytes={start}-{stop - 1}"}, self._usable()
        with closing(self._opened(location, span)) as response:
            self._check(response, location, start, stop)
            received = 0
            try:
                for chunk in response.iter_raw():
                    received += len(chunk)
                    with self._lock:
                        self.bytes_read += len(chunk)
                    count_received(len(chunk))
                    if received > stop - start:
                        raise self._transient("range_ignored", "was sent with more bytes than requested")
                    yield chunk
            except httpx2.TimeoutException as error:
                raise self._transient("timeout", f"stopped at byte {start + received}") from error
            except httpx2.TransportError as error:
                reason = "short_body" if received else "network"
                raise self._transient(reason, f"broke off at byte {start + received}") from error

    def _check(self, response: httpx2.Response, location: _Location, start: int, stop: int) -> None:
        """Raise TransientError unless the response is exactly the requested range of the resolved file."""
        status = response.status_code
        if status in _REFUSALS and self._is_signed(location):
            self._refuse(response, location)
        content_range = response.headers.get("Content-Range", "")
        if status == 416:
            if content_range.endswith(f"/{self.size}"):
                raise self._transient("server_error", "cannot be read in parts (HTTP 416)")
            sentence = f"changed size while being read ({shown(content_range)}, was {self.size})"
            raise self._transient("file_changed", sentence)
        if status != 206:
            hf_raise_for_status(response)
            raise self._transient("range_ignored", f"was sent whole instead of in part (HTTP {status})")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise self._transient("range_ignored", f"was sent encoded, which was not requested ({shown(encoding)})")
        span = _CONTENT_RANGE.fullmatch(content_range)
        if span is None:
            raise self._transient("range_ignored", f"was sent without a usable Content-Range ({shown(content_range)})")
        first, last, total = (int(number) for number in span.groups())
        if total != self.size:
            sentence = f"changed size while being read ({total} bytes, previously {self.size})"
            raise self._transient("file_changed", sentence)
        if (first, last) != (start, stop - 1):
            raise self._transient("range_ignored", f"was sent from {first} to {last}, not {start} to {stop - 1}")
        etag = response.headers.get("ETag")
        with self._lock:
            self._was_refused, location.has_served = False, True
            is_other = location.served_etag is not None and etag != location.served_etag
            location.served_etag = location.served_etag if is_other else etag
        if is_other:
            raise self._transient("file_changed", "was replaced while being read (another ETag)")

    def _is_signed(self, location: _Location) -> bool:
        """Whether an address opens by what is in it, not by the token: a Hub may keep files at its own address."""
        return not is_own(location.location, self._endpoint) or expiry_of(location.location) is not None

    def _refuse(self, response: httpx2.Response, location: _Location) -> NoReturn:
        """Raises TransientError, so that the next try gets another address; Failed if that would not help."""
        reason = reason_in(response)
        refusal = f"its signed address (HTTP {response.status_code}{reason})"
        has_opened = location.has_served or has_expired(location.location, response.headers) is not False
        with self._lock:
            if self._location is location and not has_opened and not _SAYS_EXPIRED.search(reason):
                if self._was_refused:
                    sentence = f"{shown(self.name)} is refused by {refusal}, which has not expired"
                    raise Failed("refused", sentence)
                self._was_refused = True
            if self._location is location:
                self._refused = location
        raise self._transient("server_error", f"cannot be read from {refusal}")

    def _transient(self, reason: str, sentence: str) -> TransientError:
        return TransientError(Failed(reason, f"{shown(self.name)} {sentence}"))


def expiry_of(address: str) -> datetime | None:
    """When a signed address expires, by its own parameters (CloudFront's or S3's); None if it does not say.

    Some addresses have both kinds; the first that runs out counts.
    """
    try:
        parameters = dict(parse_qsl(urlsplit(address).query))
    except ValueError:
        return None
    found = []
    for read in (_amz_expiry, _cloudfront_expiry):
        with suppress(KeyError, ValueError, OverflowError, OSError):
            found.append(read(parameters))
    return min(found, default=None)


def _amz_expiry(parameters: Mapping[str, str]) -> datetime:
    signed = datetime.strptime(parameters["X-Amz-Date"], _AMZ_DATE).replace(tzinfo=UTC)
    return signed + timedelta(seconds=float(parameters["X-Amz-Expires"]))


def _cloudfront_expiry(parameters: Mapping[str, str]) -> datetime:
    return datetime.fromtimestamp(float(parameters["Expires"]), UTC)


def has_expired(address: str, headers: Mapping[str, str]) -> bool | None:
    """Whether a signed address has expired; None if it does not say when it does.

    ``headers`` of the response: the time is the server's ``Date``, because the local clock may be wrong.
    """
    expires = expiry_of(address)
    return None if expires is None else expires <= (date_in(headers) or datetime.now(UTC))


class StreamRun(Run):
    """A run over a body that arrives in chunks."""

    def __init__(self, chunks: Generator[bytes], start: int, stop: int) -> None:
        super().__init__(start, stop, self._receive)
        self._chunks = chunks
        self._rest = memoryview(b"")

    def skip_to(self, position: int) -> None:
        """Receive and drop the bytes before ``position``."""
        self._check_step(position)
        while self.position + len(self._rest) < position:
            self.position += len(self._rest)
            self._rest = memoryview(next(self._chunks))
        self._rest = self._rest[position - self.position :]
        self.position = position

    def close(self) -> None:
        """Finish the body if all of it was wanted, so that the connection can be used again."""
        if self.position == self._stop:
            for _ in self._chunks:
                pass
        self._chunks.close()

    def _receive(self, position: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            while not self._rest:
                self._rest = memoryview(next(self._chunks))
            piece = self._rest[: len(buffer) - done]
            buffer[done : done + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            done += len(piece)
