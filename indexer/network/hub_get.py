"""One request to the Hub or to where it sends us, and what the answer means.

The access token goes to the endpoint's own origin and to nobody else. Statuses that only need patience (408,
429, 5xx) and connections that do not come about are waited for by the session's transport
(``indexer.network.session``); what can go wrong once a body has begun is for the caller, within ``Patience``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from indexer.errors import Failed, ModelError, Skipped
from indexer.names import is_hub_id
from indexer.network.session import as_model_error, install_session
from indexer.untrusted import shown

_MOST_REDIRECTS = 5
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Patience:
    """How much trouble is borne once a body has begun.

    A setback is a connection that broke, a body that was cut short, an answer to another question (the whole file,
    another part of it, another file) or a signed address that ran out; more
    than ``setbacks`` in a row, without ``progress`` bytes in between, are too many. A server that sends fewer
    than ``slowest`` bytes a second for longer than ``slow_seconds`` counts as one that has stopped. A small file has
    to be whole after ``small_seconds`` of waiting for it, all tries together. Only what is waited for counts, by
    ``clock``, not what is done with it.
    """

    setbacks: int = 5
    progress: int = 256 << 10
    first_wait: float = 0.5
    longest_wait: float = 8.0
    slowest: float = 1024.0
    slow_seconds: float = 60.0
    small_seconds: float = 180.0
    clock: Callable[[], float] = time.monotonic

    def wait(self, setback: int) -> None:
        """Sleep before the next try: twice as long each time."""
        time.sleep(min(self.longest_wait, self.first_wait * 2 ** (setback - 1)))


class SetbackError(Exception):
    """Another try may help; ``failure`` is what to raise when it does not."""

    def __init__(self, failure: ModelError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def ensure_session() -> None:
    """Give huggingface_hub a client with time limits and retries, unless it has one."""
    if getattr(get_session(), "limits", None) is None:
        install_session()


@contextmanager
def get(
    address: str,
    endpoint: str,
    headers: dict[str, str],
    about: Callable[[ModelError], ModelError],
    stay: str | None = None,
) -> Iterator[httpx2.Response]:
    """One GET, its redirects followed, its body not yet read; with ``stay`` not to another repository than that.

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
            raise about(meaning_of(error)) from error
        try:
            if not response.has_redirect_location:
                yield response
                return
            address = _joined(address, response.headers["Location"])
            found = _repository_in(address, endpoint)
            if stay is not None and found not in (None, stay):
                raise Skipped("renamed", f"the model is called {found} now")
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
        raise about(meaning_of(error)) from error


def meaning_of(error: Exception) -> ModelError:
    """What an exception of a request means; an address that cannot be parsed is the server's mistake."""
    if type(error) is ValueError:
        return Failed("server_error", "the address it is served from is none")
    return as_model_error(error)


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


def _repository_in(address: str, endpoint: str) -> str | None:
    """The id of the repository whose file an address of the endpoint's own names."""
    if not is_own(address, endpoint):
        return None
    name, resolve, _ = urlsplit(address).path.removeprefix(urlsplit(endpoint).path).strip("/").partition("/resolve/")
    return name if resolve and is_hub_id(name) else None


def _joined(address: str, location: str) -> str:
    try:
        return urljoin(address, location)
    except ValueError:
        return ""


def fetch_small(
    repository: str,
    filename: str,
    commit: str,
    limit: int,
    *,
    endpoint: str | None = None,
    patience: Patience | None = None,
    stay: bool = False,
) -> bytes:
    """A small file whole, by one plain GET.

    Raises Skipped("renamed") where ``stay`` is asked for and the file is served from a repository of another name,
    Skipped("malformed") where it is longer than ``limit`` (no more than that is read), and what the
    Hub's answers mean.
    """
    ensure_session()
    patience = patience or Patience()
    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    url = hf_hub_url(repository, filename, revision=commit, endpoint=endpoint)

    def about(error: ModelError) -> ModelError:
        return type(error)(error.reason, f"{shown(filename)}: {error.detail}")

    waiting = Waiting(patience.clock)
    for setback in range(1, patience.setbacks + 2):
        try:
            return _fetch_whole(url, endpoint, limit, about, patience, waiting, repository if stay else None)
        except SetbackError as problem:
            if setback > patience.setbacks:
                raise problem.failure from problem
            patience.wait(setback)
    raise AssertionError("unreachable")


class Waiting:
    """Counts the ``seconds`` spent on waiting for chunks; what their taker does with them does not count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seconds = 0.0

    def timed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The same chunks."""
        while True:
            before = self._clock()
            try:
                chunk = next(chunks, None)
            finally:
                self.seconds += self._clock() - before
            if chunk is None:
                return
            yield chunk


def _fetch_whole(
    url: str,
    endpoint: str,
    limit: int,
    about: Callable[[ModelError], ModelError],
    patience: Patience,
    waiting: Waiting,
    stay: str | None,
) -> bytes:
    body = bytearray()
    with get(url, endpoint, {}, about, stay) as response:
        if response.status_code != 200:
            raise_for_status(response, about)
            raise SetbackError(about(Failed("server_error", f"the Hub answered HTTP {response.status_code}")))
        try:
            for chunk in waiting.timed(response.iter_bytes()):
                if waiting.seconds > patience.small_seconds:
                    raise about(Failed("timeout", f"it took longer than {patience.small_seconds:g} s"))
                body += chunk
                if len(body) > limit:
                    raise about(Skipped("malformed", f"it is longer than the {limit} bytes that are read"))
        except httpx2.TimeoutException as error:
            stopped = about(Failed("timeout", "it stopped half-way"))
            if waiting.seconds > patience.small_seconds:
                raise stopped from error
            raise SetbackError(stopped) from error
        except httpx2.TransportError as error:
            raise SetbackError(about(Failed("short_body", "it was cut short"))) from error
    return bytes(body)
