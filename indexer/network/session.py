"""HttpLimits over HTTP: the one place that gives the huggingface_hub client timeouts, retries and a pace.

``install_session()`` hands the library an HTTP client whose transport does this for every request of the
process, so that ``model_info`` and its kin, which neither retry nor time out by themselves, get it too:

- a connection, a read and a whole body have a time limit, the body of an API answer a limit to its size and to what
  parsing it may take, and every answer, from its status line on, a floor under its speed (``indexer.network.floor``);
- a 429 waits as the ``RateLimit`` header says (``"api";r=0;t=55``: nothing left, 55 seconds to go), else as
  ``Retry-After`` says; when little of the quota is left, what is left is spread over the time that is left;
- a 408, a 5xx or a dropped connection is tried again with a growing wait, where trying again does no harm;
- nothing is tried for ever: when the budget of a request is spent, its last answer or error is handed on as
  it is, so a 429 or a 5xx never looks like an empty answer.

Quotas are counted for each host and kind of request and shared by all processes of the user on this machine.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import httpx2
from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils._http import hf_request_event_hook

from indexer.console.messages import Progress
from indexer.errors import Failed
from indexer.network.floor import Floor, WatchedTransport
from indexer.network.hub_errors import as_model_error, as_user_error
from indexer.network.pace import Pace, told_to_wait
from indexer.network.shared_clock import common_clock
from indexer.untrusted import MOST_VALUES, printable, values_in

__all__ = ["HttpLimits", "as_model_error", "as_user_error", "install_session"]

_MIB = 1 << 20
_RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
# Encodings that can be undone chunk by chunk and cannot grow more than about a thousandfold.
_READABLE_ENCODINGS = ("gzip", "deflate")
# What the library's cache names files by, and what such a name may be.
_NAMING_HEADERS = ("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Xet-Hash")
_FILE_NAME = re.compile(r'(?:W/)?"?\w[\w.:+=\-]{0,199}"?', re.ASCII)


def _read_seconds() -> float:
    """huggingface_hub's own setting where the user made it, else more patience than its default of 10 s."""
    chosen = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT")
    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT) if chosen else 30.0


@dataclass(frozen=True)
class HttpLimits:
    """How long to wait for what. Seconds, bytes and counts, all of one request unless said otherwise."""

    connect_seconds: float = 10.0
    read_seconds: float = field(default_factory=_read_seconds)
    body_seconds: float = 120.0
    total_seconds: float = 900.0
    body_bytes: int = 32 * _MIB
    body_values: int = MOST_VALUES
    floor: Floor = field(default_factory=Floor)
    retries: int = 5
    retries_after_timeout: int = 2
    retries_without_connection: int = 3
    first_wait: float = 0.5
    longest_wait: float = 20.0
    longest_rate_limit_wait: float = 310.0


class PacedTransport(httpx2.BaseTransport):
    """Sends each request through ``inner`` within the limits above. Safe to share between threads."""

    def __init__(
        self, inner: httpx2.BaseTransport, limits: HttpLimits, pace: Pace, say: Callable[[str], None] | None = None
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._pace = pace
        self._say = say or (lambda sentence: None)
        self._exhausted = _Exhausted()

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send, wait and send again as often as it is worth it.

        Raises what httpx2 raises when no answer came; an answer is returned whatever its status.
        """
        limits = self._limits
        _fill_in_timeouts(request, limits)
        quota = _quota_of(request.url)
        wait = self._pace.take_turn(quota, math.inf) or 0.0
        self._sleep(min(wait, limits.longest_rate_limit_wait), "close to the rate limit")
        deadline = time.monotonic() + limits.total_seconds
        most = 0 if self._exhausted.has(request) else limits.retries
        for attempt in range(most + 1):
            response: httpx2.Response | None = None
            error: httpx2.RequestError | None = None
            try:
                response = self._send(request)
                if response.status_code != 429:  # what that one tells is a pause, which all are given below
                    self._pace.note(quota, response.headers, limits.longest_rate_limit_wait)
            except httpx2.RequestError as raised:
                error = raised
            seconds = self._wait_before_retry(request, response, error, attempt, quota)
            left = deadline - time.monotonic()
            turn = None if seconds is None or seconds > left else self._pace.take_turn(quota, left)
            if seconds is None or turn is None or attempt == most:
                self._exhausted.note(request, gave_up=error is not None or seconds is not None)
                break
            if response is not None:
                response.close()
            self._sleep(max(seconds, turn))
        if error is not None:
            raise error
        assert response is not None
        return response

    def _send(self, request: httpx2.Request) -> httpx2.Response:
        if _is_api(request.url):
            request.headers["Accept-Encoding"] = ", ".join(_READABLE_ENCODINGS)
        response = self._inner.handle_request(request)
        response.request = request
        if request.method == "HEAD":
            _check_names(response)
        # A file is for the caller to read, as far as it wants; anything else is short, or ought to be.
        if request.method == "HEAD" or (response.is_success and not _is_api(request.url)):
            return response
        return _read_bounded(response, request, self._limits)

    def _wait_before_retry(
        self,
        request: httpx2.Request,
        response: httpx2.Response | None,
        error: httpx2.RequestError | None,
        attempt: int,
        quota: str,
    ) -> float | None:
        """Seconds until another try makes sense; None when none does."""
        limits = self._limits
        backoff = min(limits.longest_wait, limits.first_wait * 2**attempt) * random.uniform(0.75, 1.25)
        if not (_may_repeat(request) or _was_turned_away(request, response)):
            return None
        if response is None:
            return backoff if attempt < _retries_after(error, limits) else None
        if response.status_code not in _RETRIED_STATUS:
            return None
        told = told_to_wait(response.status_code, response.headers)
        if response.status_code != 429:
            return backoff if told is None else min(told, limits.longest_rate_limit_wait)
        seconds = min(backoff if told is None else told, limits.longest_rate_limit_wait)
        if self._pace.pause(quota, seconds) and attempt < limits.retries:
            self._say(f"rate limited, waiting {math.ceil(seconds)} s")
        return seconds

    def _sleep(self, seconds: float, why: str = "") -> None:
        if why and seconds >= 5:
            self._say(f"{why}, waiting {math.ceil(seconds)} s")
        if seconds > 0:
            time.sleep(seconds)


class _Exhausted:
    """Requests that all patience was spent on just now: asked again, they get one try.

    The library wraps some calls in retries of its own, which would multiply with ours.
    """

    _SECONDS = 60.0
    _MOST = 1000

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def has(self, request: httpx2.Request) -> bool:
        since = self._since.get((request.method, str(request.url)))
        return since is not None and time.monotonic() - since < self._SECONDS

    def note(self, request: httpx2.Request, *, gave_up: bool) -> None:
        name = (request.method, str(request.url))
        if not gave_up:
            self._since.pop(name, None)
            return
        if len(self._since) >= self._MOST:
            self._since.clear()
        self._since[name] = time.monotonic()


def _retries_after(error: httpx2.RequestError | None, limits: HttpLimits) -> int:
    if isinstance(error, httpx2.TimeoutException):
        return limits.retries_after_timeout
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return limits.retries_without_connection
    if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return limits.retries
    return 0


def _may_repeat(request: httpx2.Request) -> bool:
    """Reading twice does no harm; ``paths-info`` reads by POST."""
    return request.method in ("GET", "HEAD", "OPTIONS") or "/paths-info/" in request.url.path


def _was_turned_away(request: httpx2.Request, response: httpx2.Response | None) -> bool:
    """What a rate limit refused was not done, and what is in memory can be sent again."""
    return response is not None and response.status_code == 429 and isinstance(request.stream, httpx2.ByteStream)


def _is_api(url: httpx2.URL) -> bool:
    # The Hub redirects small files to /api/resolve-cache/…: a file like any other.
    return "/api/" in url.path and not _is_file(url)


def _is_file(url: httpx2.URL) -> bool:
    return "/resolve/" in url.path or "/resolve-cache/" in url.path


def _quota_of(url: httpx2.URL) -> str:
    kind = "resolve" if _is_file(url) else "git" if ".git/" in url.path else "api"
    return f"{url.netloc.decode('ascii', 'replace')} {kind}"


def _fill_in_timeouts(request: httpx2.Request, limits: HttpLimits) -> None:
    """Where the caller set no limit (the library passes ``timeout=None`` while paging), set ours."""
    ours = {
        "connect": limits.connect_seconds,
        "read": limits.read_seconds,
        "write": limits.read_seconds,
        "pool": limits.body_seconds,
    }
    given = request.extensions.get("timeout") or {}
    chosen = {name: value for name, value in given.items() if value is not None}
    request.extensions = {**request.extensions, "timeout": {**ours, **chosen}}


def _read_bounded(response: httpx2.Response, request: httpx2.Request, limits: HttpLimits) -> httpx2.Response:
    """The same answer with its body read and decoded, within the limits of ``limits``.

    Raises httpx2.ReadTimeout where it takes too long, httpx2.DecodingError where it is unreadable, too large or
    (before all of it is read) holds more values than should be parsed. Of a redirect or an error, where the status
    says it all, what can be read is kept.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    deadline = time.monotonic() + limits.body_seconds
    body, values = bytearray(), 0
    refusal = "" if encoding in ("", "identity", *_READABLE_ENCODINGS) else f"encoded as {encoding[:40]!r}, unasked"
    try:
        for chunk in () if refusal else response.iter_bytes():
            if len(body) + len(chunk) > limits.body_bytes:
                refusal = f"larger than {limits.body_bytes:,} bytes"
                break
            values += values_in(chunk)
            if values > limits.body_values:
                refusal = f"one of more than {limits.body_values:,} values"
                break
            body += chunk
            if time.monotonic() > deadline:
                slow = f"the answer took longer than {limits.body_seconds:g} s"
                raise httpx2.ReadTimeout(slow, request=request)
    finally:
        response.close()
    if refusal and response.is_success:
        raise httpx2.DecodingError(f"the answer is {refusal}", request=request)
    described = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=described, content=bytes(body), request=request)


def _check_names(response: httpx2.Response) -> None:
    """Raises Failed where a header that huggingface_hub makes a file's name of could lead to another folder."""
    for header in _NAMING_HEADERS:
        value = response.headers.get(header)
        if value is not None and not _FILE_NAME.fullmatch(value):
            response.close()
            raise Failed("server_error", f"the {header} of its answer is no checksum ({printable(value, 60)})")


class PacedClient(httpx2.Client):
    """The client that huggingface_hub is given; it remembers how it was made."""

    def __init__(self, limits: HttpLimits, pace: Pace, say: Callable[[str], None]) -> None:
        self.limits = limits
        timeout = httpx2.Timeout(limits.read_seconds, connect=limits.connect_seconds)
        super().__init__(
            transport=PacedTransport(WatchedTransport(limits.floor), limits, pace, say),
            event_hooks={"request": [hf_request_event_hook]},
            follow_redirects=True,
            timeout=timeout,
        )


_listener: Callable[[str], None] | None = None


@cache
def common_pace() -> Pace:
    """The pace that all processes of this user keep together."""
    return Pace(common_clock(_tell_once))


def _tell(sentence: str) -> None:
    if _listener is not None:
        _listener(sentence)


def _tell_once(sentence: str) -> None:
    """What is true of this process and of its workers alike is said by this one."""
    if multiprocessing.parent_process() is None:
        _tell(sentence)


def bars_like_ours() -> AbstractContextManager[object]:
    """Within the block huggingface_hub draws bars only where ours may be drawn; a variable of its own comes first."""
    is_free = constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    return disable_progress_bars() if is_free and not Progress.may_draw() else nullcontext()


def install_session(limits: HttpLimits | None = None, say: Callable[[str], None] | None = None) -> None:
    """Give huggingface_hub our client; called by every command that may ask the Hub, as often as it likes.

    ``say`` gets one short sentence whenever a wait is long enough to wonder about; None keeps the last one.
    """
    global _listener
    if say is not None:
        _listener = say
    wanted = limits or HttpLimits()
    if getattr(get_session(), "limits", None) != wanted:
        set_client_factory(lambda: PacedClient(wanted, common_pace(), _tell))
