"""Bytes of one file on the Hub, by ranges.

The file is resolved once: a HEAD on ``/resolve`` gives size, LFS id and, for a file in LFS, the signed
address it is served from. Ranges are read from there, because every request to ``/resolve`` counts against a quota.
Statuses that only need patience (408, 429, 5xx) and connections that do not come about are waited for by the
session's transport (``indexer.session``); what can go wrong once a body has begun is dealt with here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from indexer.byterange import Run, check_range, check_step
from indexer.errors import Failed, ModelError, Skipped
from indexer.session import as_model_error, install_session
from indexer.stored_tensor import shown

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_REDIRECTS = 5
_REFUSALS = frozenset({401, 403, 404, 410})
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Patience:
    """How much trouble is borne once a body has begun.

    A setback is a connection that broke, a body that was cut short or a signed address that ran out; more
    than ``setbacks`` in a row, without ``progress`` bytes in between, are too many. A server that sends fewer than
    ``slowest`` bytes a second for longer than ``slow_seconds`` counts as one that has stopped.
    """

    setbacks: int = 5
    progress: int = 256 << 10
    first_wait: float = 0.5
    longest_wait: float = 8.0
    slowest: float = 1024.0
    slow_seconds: float = 60.0

    def wait(self, setback: int) -> None:
        """Sleep before the next try: twice as long each time."""
        time.sleep(min(self.longest_wait, self.first_wait * 2 ** (setback - 1)))


class _SetbackError(Exception):
    """Another try may help; ``failure`` is what to raise when it does not."""

    def __init__(self, failure: ModelError) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True)
class _Location:
    """What the Hub says of the file: its size, its (linked) ETag and where its bytes are."""

    size: int
    etag: str | None
    address: str


class RemoteFile:
    """One file of one commit on the Hub.

    Raises what the Hub's answers mean (``indexer.hub_errors``), and Failed: ``range_ignored`` where the
    server sends the whole file, or another part of it than was asked for; ``short_body`` and ``network``
    where bodies keep breaking off; ``timeout``; ``file_changed`` where size, ETag or commit are not those of
    the beginning.
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
                problem = _SetbackError(self._failed("short_body", f"was cut short at byte {position}"))
            except _SetbackError as setback:
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
        try:
            found = get_hf_file_metadata(self._url, timeout=None, endpoint=self._endpoint)
        except Exception as error:
            raise self._about(as_model_error(error)) from error
        if found.size is None:
            raise self._failed("server_error", "is given without a size")
        if found.commit_hash and _COMMIT.fullmatch(self._commit) and found.commit_hash != self._commit:
            raise self._failed("file_changed", f"is served from another commit ({shown(found.commit_hash)})")
        return _Location(found.size, found.etag, found.location)

    def _resolve_again(self) -> None:
        """A new signed address, for the very same bytes."""
        found = self._resolve()
        if (found.size, found.etag) != (self._location.size, self._location.etag):
            raise self._failed("file_changed", "was replaced while it was read")
        self._location = found
        self._served_etag = None

    def _body(self, start: int, stop: int) -> Generator[bytes]:
        """The body of the answer to one request, checked; raises _SetbackError if it breaks off."""
        patience = self._patience
        span = {"Range": f"bytes={start}-{stop - 1}"}
        with get(self._location.address, self._endpoint, span, self._about) as response:
            self._check(response, start, stop)
            started, received = time.monotonic(), 0
            try:
                for chunk in response.iter_raw():
                    received += len(chunk)
                    self.bytes_read += len(chunk)
                    if received > stop - start:
                        raise self._failed("range_ignored", "is sent with more bytes than were asked for")
                    yield chunk
                    seconds = time.monotonic() - started
                    if seconds > patience.slow_seconds and received < patience.slowest * seconds:
                        raise _SetbackError(self._failed("timeout", "comes too slowly"))
            except httpx2.TimeoutException as error:
                raise _SetbackError(self._failed("timeout", f"stopped at byte {start + received}")) from error
            except httpx2.TransportError as error:
                reason = "short_body" if received else "network"
                sentence = f"broke off at byte {start + received}"
                raise _SetbackError(self._failed(reason, sentence)) from error

    def _check(self, response: httpx2.Response, start: int, stop: int) -> None:
        """Nothing but exactly the range that was asked for, of the file that was resolved, is let through."""
        status = response.status_code
        if status in _REFUSALS and not is_own(self._location.address, self._endpoint):
            refused = self._failed("server_error", f"cannot be read from its signed address (HTTP {status})")
            self._resolve_again()
            raise _SetbackError(refused)
        told = response.headers.get("Content-Range", "")
        if status == 416:
            if told.endswith(f"/{self.size}"):
                raise self._failed("server_error", "cannot be read in parts (HTTP 416)")
            raise self._failed("file_changed", f"has another size now ({shown(told)}, was {self.size})")
        if status != 206:
            raise_for_status(response, self._about)
            raise self._failed("range_ignored", f"is sent whole where a part was asked for (HTTP {status})")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise self._failed("range_ignored", f"is sent encoded, unasked ({shown(encoding)})")
        found = _CONTENT_RANGE.fullmatch(told)
        if found is None:
            raise self._failed("range_ignored", f"is sent without a usable Content-Range ({shown(told)})")
        first, last, total = (int(number) for number in found.groups())
        if total != self.size:
            raise self._failed("file_changed", f"has another size now ({total}, was {self.size})")
        if (first, last) != (start, stop - 1):
            raise self._failed("range_ignored", f"is sent from {first} to {last}, not {start} to {stop - 1}")
        etag = response.headers.get("ETag")
        if self._served_etag is not None and etag != self._served_etag:
            raise self._failed("file_changed", "was replaced while it was read (another ETag)")
        self._served_etag = etag

    def _failed(self, reason: str, sentence: str) -> Failed:
        return Failed(reason, f"{shown(self.name)} {sentence}")

    def _about(self, error: ModelError) -> ModelError:
        return type(error)(error.reason, f"{shown(self.name)}: {error.detail}")


class StreamRun:
    """A run over a body that comes in chunks."""

    def __init__(self, chunks: Generator[bytes], start: int, stop: int) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._stop = stop
        self.position = start

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``."""
        check_step(self.position, self.position + len(buffer), self._stop)
        done = 0
        while done < len(buffer):
            piece = self._next(len(buffer) - done)
            buffer[done : done + len(piece)] = piece
            done += len(piece)

    def read(self, count: int) -> bytearray:
        """The next ``count`` bytes."""
        check_step(self.position, self.position + count, self._stop)
        buffer = bytearray(count)
        self.read_into(memoryview(buffer))
        return buffer

    def skip_to(self, position: int) -> None:
        """Receive and drop what lies before ``position``."""
        check_step(self.position, position, self._stop)
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


def fetch_small(
    repository: str,
    filename: str,
    commit: str,
    limit: int,
    *,
    endpoint: str | None = None,
    patience: Patience | None = None,
) -> bytes:
    """A small file whole, by one plain GET.

    Raises Skipped("malformed") where it is longer than ``limit`` (no more than that is read), and what the
    Hub's answers mean.
    """
    ensure_session()
    patience = patience or Patience()
    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    url = hf_hub_url(repository, filename, revision=commit, endpoint=endpoint)

    def about(error: ModelError) -> ModelError:
        return type(error)(error.reason, f"{shown(filename)}: {error.detail}")

    for setback in range(1, patience.setbacks + 2):
        try:
            return _fetch_whole(url, endpoint, limit, about)
        except _SetbackError as problem:
            if setback > patience.setbacks:
                raise problem.failure from problem
            patience.wait(setback)
    raise AssertionError("unreachable")


def _fetch_whole(url: str, endpoint: str, limit: int, about: Callable[[ModelError], ModelError]) -> bytes:
    body = bytearray()
    with get(url, endpoint, {}, about) as response:
        if response.status_code != 200:
            raise_for_status(response, about)
            raise about(Failed("server_error", f"the Hub answered HTTP {response.status_code}"))
        try:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > limit:
                    raise about(Skipped("malformed", f"it is longer than the {limit} bytes that are read"))
        except httpx2.TimeoutException as error:
            raise _SetbackError(about(Failed("timeout", "it stopped half-way"))) from error
        except httpx2.TransportError as error:
            raise _SetbackError(about(Failed("short_body", "it was cut short"))) from error
    return bytes(body)


def ensure_session() -> None:
    """Give huggingface_hub a client with time limits and retries, unless it has one."""
    if getattr(get_session(), "manners", None) is None:
        install_session()


@contextmanager
def get(
    address: str, endpoint: str, headers: dict[str, str], about: Callable[[ModelError], ModelError]
) -> Iterator[httpx2.Response]:
    """One GET, its redirects followed, its body not yet read.

    The access token goes to the endpoint's own origin and nowhere else. From an https endpoint nothing leads
    to plain http.
    """
    for _ in range(_MOST_REDIRECTS):
        if _origin(address)[0] not in {"https", _origin(endpoint)[0]}:
            raise about(Failed("server_error", "its address is not one to read from"))
        sent = build_hf_headers() if is_own(address, endpoint) else build_hf_headers(token=False)
        sent = {**sent, "Accept-Encoding": "identity", **headers}
        try:
            request = get_session().build_request("GET", address, headers=sent)
            response = get_session().send(request, stream=True, follow_redirects=False)
        except Exception as error:
            raise about(as_model_error(error)) from error
        try:
            if not response.has_redirect_location:
                yield response
                return
            address = _joined(address, response.headers["Location"])
        finally:
            response.close()
    raise about(Failed("server_error", "its address is a chain of redirects"))


def raise_for_status(response: httpx2.Response, about: Callable[[ModelError], ModelError]) -> None:
    """Raise what an answer of 400 or more means; its body is looked at where the session bounded it."""
    status = response.status_code
    if status == 429:
        raise about(Failed("rate_limited", "the rate limit is used up (HTTP 429)"))
    if status in (408, 504):
        raise about(Failed("timeout", f"no answer in time (HTTP {status})"))
    if status >= 500:
        raise about(Failed("server_error", f"the server answered HTTP {status}"))
    try:
        hf_raise_for_status(response)
    except Exception as error:
        raise about(as_model_error(error)) from error


def is_own(address: str, endpoint: str) -> bool:
    """Whether ``address`` has the endpoint's scheme, host and port."""
    return _origin(address) == _origin(endpoint)


def _origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port; three times nothing for what is no address."""
    try:
        parts = urlsplit(address)
        return parts.scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return "", "", None


def _joined(address: str, location: str) -> str:
    try:
        return urljoin(address, location)
    except ValueError:
        return ""
