"""The HTTP client that huggingface_hub is given: time limits and rate limits for every request to the Hub.

``install_session()`` gives huggingface_hub a client whose transport applies them to all requests of the process,
including those of ``model_info`` and similar functions, which neither retry nor time out by themselves:

- Connecting, each read and a whole body have a time limit. The body of an API response is limited in size and in the
  number of values to parse. Every response has a minimum throughput (``indexer.network.transport``).
- When little of a quota is left, requests are spread over the remaining time (``indexer.network.rate_limit``).
- Requests of the library are tried again as ``indexer.network.retries`` decides.
- A request with a token that is answered by 401 or 403 is sent once more without it: a fine-grained token can be
  refused what is public.
"""

from __future__ import annotations

import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx2
from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.utils import build_hf_headers
from huggingface_hub.utils._http import hf_request_event_hook

from indexer.environment import check
from indexer.errors import AtlasError, Failed, system_errors
from indexer.network.rate_limit import (
    RateLimiter,
    announce,
    common_limiter,
    is_file,
    limit_name,
    listen,
    note_response,
    request_kind,
)
from indexer.network.retries import Retries, RetryPolicy
from indexer.network.transport import MinThroughput, WatchedTransport
from indexer.untrusted import MOST_VALUES, printable, values_in

# In the refusal of a token that is wrong or has expired. Without a token public models would be served, and missing
# private ones would go unnoticed.
INVALID_TOKEN = "Invalid credentials"

_MIB = 1 << 20
# Encodings that can be decoded chunk by chunk and expand at most about a thousandfold.
_READABLE_ENCODINGS = ("gzip", "deflate")
# Headers that the library's cache names files by, and the form such a name may have.
_NAMING_HEADERS = ("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Xet-Hash")
_SIZE = re.compile(r"[0-9]{1,15}")
_FILE_NAME = re.compile(r'(?:W/)?"?\w[\w.:+=\-]{0,199}"?', re.ASCII)
_PUBLIC_HOSTS = ("huggingface.co", "hf.co", "hub-ci.huggingface.co")
# A value of "Authorization": tokens are "hf_" and letters, those of other Hubs may hold any visible character of ASCII.
_TOKEN = re.compile(r"(Bearer [!-~]+)?")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


# Set in the extensions of a request whose caller tries again by itself.
SENT_ONCE = "sent_once"
# Set in the extensions of a request to another server than a Hub: whether the caller reads the body as it comes. Of a
# request to a Hub the address says it.
STREAMED = "streamed"


@dataclass(frozen=True, kw_only=True)
class HttpLimits(RetryPolicy):
    """Limits of one request, in seconds, bytes and counts, and of its tries."""

    connect_seconds: float = 10.0
    read_seconds: float = field(
        # huggingface_hub's setting if the user made it, otherwise more than its default of 10 s.
        default_factory=lambda: float(
            constants.HF_HUB_DOWNLOAD_TIMEOUT if os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") else 30
        )
    )
    body_seconds: float = 120.0
    body_bytes: int = 32 * _MIB
    body_values: int = MOST_VALUES
    throughput: MinThroughput = field(default_factory=MinThroughput)


class HubTransport(httpx2.BaseTransport):
    """Sends requests through ``inner`` within the limits. Can be shared between threads."""

    def __init__(
        self,
        inner: httpx2.BaseTransport,
        limits: HttpLimits,
        limiter: RateLimiter,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._limiter = limiter
        self._say = say or (lambda sentence: None)
        self.retries = Retries(limits, limiter, self._say)
        self._has_warned_of_token = False

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()

    def forget_connections(self) -> None:
        """Begin without connections, and close none: in a fork they are the other process's."""
        getattr(self._inner, "forget_connections", self._inner.close)()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and try again while that makes sense and its caller does not do so (``SENT_ONCE``).

        Returns a response whatever its status. Raises the error of httpx2 if there is no response.
        """
        limits = self._limits
        # Timeouts that the caller did not set (the library passes ``timeout=None`` while paging).
        timeouts = dict.fromkeys(("read", "write"), limits.read_seconds)
        timeouts |= {"connect": limits.connect_seconds, "pool": limits.body_seconds}
        own_timeouts = request.extensions.get("timeout") or {}
        timeouts |= {name: value for name, value in own_timeouts.items() if value is not None}
        request.extensions = {**request.extensions, "timeout": timeouts}
        if SENT_ONCE in request.extensions:
            return self._send_once(request)
        # Two ranges of one file are two requests: one that cannot be read says little of the other.
        key = (request.method, str(request.url), request.headers.get("Range", ""))
        tries = self.retries.begin(0 if self._limiter.is_spent(key) else None)
        while True:
            problem: httpx2.Response | httpx2.RequestError
            try:
                problem = self._send_once(request)
            except httpx2.RequestError as error:
                problem = error
            seconds = tries.next_wait(problem) if _may_be_repeated(request, problem) else None
            if seconds is None:
                break
            if isinstance(problem, httpx2.Response):
                problem.close()
            time.sleep(seconds)
        if tries.are_spent:
            self._limiter.note_spent(key)
        if isinstance(problem, httpx2.RequestError):
            raise problem
        return problem

    def _send_once(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request when it is its turn."""
        limit = limit_name(request.url)
        wait = min(self._limiter.take_turn(limit, math.inf) or 0.0, self._limits.longest_rate_limit_wait)
        if wait >= 5:
            self._say(f"close to the rate limit, waiting {math.ceil(wait)} s")
        if wait > 0:
            time.sleep(wait)
        response = self._send(request)
        if STREAMED not in request.extensions:  # quotas are the Hub's
            note_response(request_kind(request.url), response.headers)
        if response.status_code != 429:  # a 429 pauses everybody (Tries)
            self._limiter.note_quota(limit, response.headers, self._limits.longest_rate_limit_wait)
        # The token may be the reason for a refusal: one with few permissions can be refused what is public.
        may_be_public = request.method in ("GET", "HEAD") and "Authorization" in request.headers
        may_be_public = may_be_public and STREAMED not in request.extensions
        if response.status_code in (401, 403) and may_be_public:
            message = response.headers.get("X-Error-Message", "")
            if response.headers.get("X-Error-Code") != "GatedRepo" and INVALID_TOKEN not in message:
                return self._sent_without_token(request, response)
        return response

    def _sent_without_token(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response to the same request without a token if that is served, else the one there was."""
        headers = [pair for pair in request.headers.multi_items() if pair[0].lower() != "authorization"]
        again = httpx2.Request(request.method, request.url, headers=headers, extensions=request.extensions)
        try:
            other = self._send(again)
        except httpx2.RequestError:
            return response
        note_response(request_kind(request.url), other.headers)
        if other.status_code >= 400:
            other.close()
            return response
        response.close()
        if not self._has_warned_of_token:
            self._has_warned_of_token = True
            self._say(
                "the Hub refuses the access token where none is needed, so public models are asked for without it; "
                "let the token read public repositories (huggingface.co/settings/tokens), or unset HF_TOKEN"
            )
        return other

    def _send(self, request: httpx2.Request) -> httpx2.Response:
        # huggingface_hub sends the token of any endpoint on to the public Hub if that redirects there.
        if request.url.host in _PUBLIC_HOSTS and not self._is_endpoint(request.url.host):
            request.headers.pop("Authorization", None)
        is_api = "/api/" in request.url.path and not is_file(request.url)
        is_api = not request.extensions.get(STREAMED, not is_api)
        if is_api:
            request.headers["Accept-Encoding"] = ", ".join(_READABLE_ENCODINGS)
        response = self._inner.handle_request(request)
        response.request = request
        if request.method == "HEAD":
            if not _SIZE.fullmatch(response.headers.get("X-Linked-Size", "0")):
                del response.headers["X-Linked-Size"]  # negative, or no number: the library takes any integer
            for header in _NAMING_HEADERS:
                value = response.headers.get(header)
                if value is not None and not _FILE_NAME.fullmatch(value):  # it could lead to another folder
                    response.close()
                    raise Failed(
                        "server_error", f"the {header} of the response is not a checksum ({printable(value, 60)})"
                    )
        # Files are streamed by the caller, as far as needed. Everything else is read here.
        if request.method == "HEAD" or (response.is_success and not is_api):
            return response
        return _read_bounded(response, request, self._limits)

    @staticmethod
    def _is_endpoint(host: str) -> bool:
        session = _current.get() or _last
        endpoint_host = httpx2.URL(session.endpoint if session is not None else constants.ENDPOINT).host
        return endpoint_host in _PUBLIC_HOSTS or endpoint_host == host


def _may_be_repeated(request: httpx2.Request, problem: httpx2.Response | httpx2.RequestError) -> bool:
    """Whether sending a request again does no harm: it reads, or nothing was done and its body is in memory."""
    if request.method in ("GET", "HEAD", "OPTIONS") or "/paths-info/" in request.url.path:  # which reads by POST
        return True
    is_rate_limited = isinstance(problem, httpx2.Response) and problem.status_code == 429
    return is_rate_limited and isinstance(request.stream, httpx2.ByteStream)


def _read_bounded(response: httpx2.Response, request: httpx2.Request, limits: HttpLimits) -> httpx2.Response:
    """The response with its body read and decoded.

    Raises httpx2.ReadTimeout if that takes too long. Raises httpx2.DecodingError if the body is unreadable, too large
    or (before all of it is read) holds more values than should be parsed. The body of a redirect or an error may be
    incomplete, because its status says enough.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    deadline = time.monotonic() + limits.body_seconds
    body, values = bytearray(), 0
    problem = ""
    if encoding not in ("", "identity", *_READABLE_ENCODINGS):
        problem = f"is encoded as {encoding[:40]!r}, which was not requested"
    try:
        for chunk in () if problem else response.iter_bytes():
            if len(body) + len(chunk) > limits.body_bytes:
                problem = f"is larger than {limits.body_bytes:,} bytes"
                break
            values += values_in(chunk)
            if values > limits.body_values:
                problem = f"holds more than {limits.body_values:,} values"
                break
            body += chunk
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout(f"the response took longer than {limits.body_seconds:g} s", request=request)
    finally:
        response.close()
    if problem and response.is_success:
        raise httpx2.DecodingError(f"the response {problem}", request=request)
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=bytes(body), request=request)


class HubClient(httpx2.Client):
    """A client within limits, as huggingface_hub needs it; ``limits`` are those it was made with."""

    def __init__(self, limits: HttpLimits, limiter: RateLimiter, say: Callable[[str], None]) -> None:
        self._limits = limits
        transport = HubTransport(WatchedTransport(limits.throughput), limits, limiter, say)
        self._retries = transport.retries
        self._begin(transport)

    def _begin(self, transport: httpx2.BaseTransport) -> None:
        # Without a timeout of its own: the transport gives every request the limits.
        hooks = {"request": [hf_request_event_hook]}
        super().__init__(transport=transport, event_hooks=hooks, follow_redirects=True, timeout=None)

    @property
    def limits(self) -> HttpLimits:
        """The limits of the requests of this thread."""
        return self._limits

    @property
    def retries(self) -> Retries:
        """The retries of the requests of this thread."""
        return self._retries

    def get_file(
        self, url: httpx2.URL, headers: Mapping[str, str], method: str = "GET", **extensions: Any
    ) -> httpx2.Response:
        """GET a file: the response as it comes, a redirect too, before its body is read.

        What ``send`` does for cookies, passwords in addresses and other uses of a client takes longer than the request.
        """
        request = httpx2.Request(method, url, headers={"Accept": "*/*", **headers}, extensions=extensions)
        hf_request_event_hook(request)
        return self._transport.handle_request(request)


class Session:
    """Whose requests these are: their limits, connections, and the Hub and token that they are for.

    ``endpoint`` and ``token``: None for those of the environment; an endpoint without a token is asked without one.
    Every thread has the session that was installed in it, and a file that was opened keeps the one of its thread, so
    two sessions in one process do not change each other. Can be shared between threads. Raises AtlasError if the file
    of certificates that the environment names cannot be read.
    """

    def __init__(
        self, limits: HttpLimits | None = None, *, endpoint: str | None = None, token: str | None = None
    ) -> None:
        self.limits = limits or HttpLimits()
        self._endpoint, self._token = endpoint, token
        self._certificates = _certificates()
        try:
            watched = WatchedTransport(self.limits.throughput, lambda: endpoint or constants.ENDPOINT)
        except OSError as error:  # of ssl, too
            raise _without_certificates(error) from error
        self.transport = HubTransport(watched, self.limits, common_limiter(), announce)
        weakref.finalize(self, self.transport.close).atexit = False
        _sessions.add(self)

    @property
    def endpoint(self) -> str:
        """The Hub's address, without a slash at its end."""
        return (self._endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def token(self) -> str | bool | None:
        """What huggingface_hub takes as a token: a string, None for that of the environment, False for none."""
        return False if self._endpoint and not self._token else self._token

    @property
    def hub(self) -> dict[str, Any]:
        """Endpoint and token, as huggingface_hub's functions take them."""
        return {"endpoint": self.endpoint, "token": self.token}

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for another Hub or token than the environment names."""
        return self._endpoint is not None or self._token is not None

    def with_limits(self, limits: HttpLimits) -> Session:
        """This session, or one for the same Hub if it has other limits or certificates."""
        if self.limits == limits and self._certificates == _certificates():
            return self
        return Session(limits, endpoint=self._endpoint, token=self._token)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Requests of this thread belong to this session until the block ends."""
        token = _current.set(self)
        try:
            _share_client(self.limits)
            yield
        finally:
            _current.reset(token)


def _certificates() -> tuple[str | None, ...]:
    return os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")


def _without_certificates(error: OSError) -> AtlasError:
    name = "SSL_CERT_FILE" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_DIR"
    problem = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it holds no certificate"
    return AtlasError(
        f"The certificates in {printable(os.environ.get(name, ''), 200)} cannot be read ({name}): {problem}.",
        f"Correct {name}, or unset it to use the certificates of the system.",
    )


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_current: ContextVar[Session | None] = ContextVar("session", default=None)
_last: Session | None = None  # for threads without one: libraries start threads of their own


def current_session() -> Session:
    """The session of this thread, else the one that was installed last; a new one with the default limits if needed."""
    session = _current.get() or _last
    if session is None:
        install_session()
        session = _current.get()
    assert session is not None
    return session


class _SharedTransport(httpx2.BaseTransport):
    """Hands each request to the session of its thread."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return current_session().transport.handle_request(request)


class _SharedClient(HubClient):
    """The one client of huggingface_hub, for all sessions.

    The library has one client in a process and closes it when it is given another one, and after some errors. So this
    one holds no connections, and closing it closes nothing.
    """

    def __init__(self) -> None:
        self._begin(_SharedTransport())

    @property
    def limits(self) -> HttpLimits:
        return current_session().limits

    @property
    def retries(self) -> Retries:
        return current_session().transport.retries

    def close(self) -> None:
        """Do nothing: other threads may be in the middle of a request."""


def _forget_connections() -> None:
    """In a fork: the connections are the other process's."""
    for session in list(_sessions):
        session.transport.forget_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)


def install_session(limits: HttpLimits | None = None, say: Callable[[str], None] | None = None) -> Session:
    """Give this thread a session with these limits, and huggingface_hub our client.

    Every command that may ask the Hub calls this, as often as it likes: nothing changes if the thread, or the process
    for a thread without one, has such a session. Sessions of other threads stay as they are. ``say`` is called with one
    short sentence about each long wait; None keeps the previous function. Raises AtlasError if the environment holds
    what cannot be used: a token, an endpoint, a number, a file of certificates.
    """
    global _last
    if say is not None:
        listen(say)
    new_limits = limits or HttpLimits()
    session_here = _current.get()
    before = session_here or (_last if _last is not None and not _last.is_elsewhere else None)
    session = Session(new_limits) if before is None else before.with_limits(new_limits)
    if session is not before:
        _check_environment()
        set_client_factory(_SharedClient)
        _last = session
    _current.set(session)
    _share_client(new_limits)
    return session


def _share_client(limits: HttpLimits) -> None:
    """Let huggingface_hub use the session of each thread, unless it has a client with these limits."""
    if getattr(get_session(), "limits", None) != limits:
        set_client_factory(_SharedClient)


def _check_environment() -> None:
    """Raise AtlasError for a token or an address that no request can be made of."""
    check()
    if constants.ENDPOINT.strip() != constants.ENDPOINT:  # huggingface_hub was imported before this package
        raise AtlasError("HF_ENDPOINT begins or ends with a blank.", "Take it out.")
    if constants.HF_HUB_OFFLINE:
        return
    problem = f"The access token in {printable(constants.HF_TOKEN_PATH, 200)} cannot be read"
    with system_errors(lambda why: AtlasError(f"{problem}: {why}.", "Log in again with `hf auth login`.")):
        value = build_hf_headers().get("authorization", "")
    if not _TOKEN.fullmatch(value):
        name = next((name for name in _TOKEN_VARIABLES if os.environ.get(name)), constants.HF_TOKEN_PATH)
        raise AtlasError(
            f"The access token in {printable(name, 200)} is none: it holds a character other than letters and digits.",
            "Copy it again from huggingface.co/settings/tokens, or unset it.",
        )


def ensure_session() -> None:
    """Install a session with the default limits unless one of ours is installed."""
    if (_current.get() or _last) is None:
        install_session()
    elif getattr(get_session(), "limits", None) is None:
        set_client_factory(_SharedClient)
