"""Single requests to the Hub: JSON from its API, and files.

The access token is sent to the endpoint's own origin only. A question is tried again as a whole, as
``indexer.network.retries`` decides; the functions that send its requests only raise.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

import httpx2
from huggingface_hub import constants, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from indexer.errors import Failed, ModelError, Skipped
from indexer.hub_ids import is_hub_id
from indexer.network.hub_errors import as_model_error
from indexer.network.retries import Retries, RetryPolicy, TransientError
from indexer.network.session import SENT_ONCE, HubClient, current_session, ensure_session
from indexer.untrusted import load_json, printable, shown, tidy

Parameters = Sequence[tuple[str, str]]

_MOST_REDIRECTS = 5
_LONGEST_REASON = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class HubAnswer:
    """Parsed JSON, and the address of the next page if there is one ("" if that is invalid)."""

    value: Any
    next_link: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The objects in it, if it is a page of a list; empty if it is not a list."""
        return [row for row in self.value if isinstance(row, dict)] if isinstance(self.value, list) else []


def get_json(path: str, parameters: Parameters = ()) -> HubAnswer:
    """GET JSON from the endpoint; ``path`` is below it, or a whole address of the endpoint's own host.

    The JSON is raw, because one malformed field in a typed client ends a whole listing. Raises the library's exceptions
    for statuses of 400 and more, Failed("server_error") for a body that stays unreadable, and Failed("network") for a
    redirect to a host that is neither the endpoint nor the Hub.
    """
    ensure_session()
    endpoint = current_session().endpoint
    address = path if "://" in path else endpoint + path
    if parameters:
        address = f"{address}?{urlencode(list(parameters))}"

    def get_json() -> HubAnswer:
        response, final = _send(address, endpoint, {}, is_api=True)
        with closing(response):
            hf_raise_for_status(response)  # its body is bounded by the session
            content = response.read()
        try:
            value = parse_json(content)
        except ValueError as error:
            raise TransientError(Failed("server_error", "the Hub's answer is not JSON")) from error
        link = response.links.get("next", {}).get("url")
        if not link:
            return HubAnswer(value)
        link, public = _joined(final, link), constants.HUGGINGFACE_CO_URL_HOME.rstrip("/")
        if not is_own(link, endpoint) and is_own(link, public):  # a mirror passes on links to the Hub itself
            link = endpoint + link[len(public) :]
        return HubAnswer(value, link)

    return session_retries().call(get_json)


def parse_json(body: bytes) -> Any:
    """Parsed JSON. Raises ValueError for anything wrong with it."""
    # Python refuses to read integers of thousands of digits, and one of them would cost the whole page.
    return load_json(body, whole_number=lambda digits: int(digits) if len(digits) <= 400 else float(digits))


def with_parameter(address: str, name: str, value: str) -> str:
    """The address with one query parameter set."""
    parts = urlsplit(address)
    pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*pairs, (name, value)])))


def fetch_small(
    repository: str,
    filename: str,
    commit: str,
    limit: int,
    *,
    repo_type: str = "model",
    retries: RetryPolicy | None = None,
    stay: bool = False,
) -> bytes:
    """The content of a small file.

    With ``stay``, raises Skipped("renamed") if the file is served from a repository of another name. Raises
    Skipped("malformed") if it is longer than ``limit`` bytes (no more are read), and ModelError for the Hub's errors.
    """
    ensure_session()
    tries = session_retries(retries)
    endpoint = current_session().endpoint
    url = hf_hub_url(repository, filename, repo_type=repo_type, revision=commit, endpoint=endpoint)
    most = tries.policy.small_file_seconds
    seconds = 0.0  # of receiving, all tries together; waits for a rate limit do not count

    def fetch() -> bytes:
        nonlocal seconds
        body = bytearray()
        with closing(opened(url, endpoint, {}, filename, repository if stay else None)) as response:
            if response.status_code != 200:
                hf_raise_for_status(response)
                raise TransientError(about(filename, Failed("server_error", f"HTTP {response.status_code}")))
            began = time.monotonic() - seconds
            try:
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > limit:
                        problem = f"it is longer than the {limit} bytes that are read"
                        raise about(filename, Skipped("malformed", problem))
                    seconds = time.monotonic() - began
                    if seconds > most:
                        raise about(filename, Failed("timeout", f"it took longer than {most:g} s"))
            except httpx2.TimeoutException as error:
                seconds = time.monotonic() - began
                stopped = about(filename, Failed("timeout", "the transfer stopped half-way"))
                raise (stopped if seconds > most else TransientError(stopped)) from error
            except httpx2.TransportError as error:
                seconds = time.monotonic() - began
                raise TransientError(about(filename, Failed("short_body", "it was cut short"))) from error
        return bytes(body)

    with errors_about(filename):
        return tries.call(fetch)


def session_retries(policy: RetryPolicy | None = None) -> Retries:
    """The retries of this thread's session, by another policy if one is given."""
    ensure_session()
    client = get_session()
    assert isinstance(client, HubClient)
    return client.retries.following(policy)


@contextmanager
def errors_about(filename: str) -> Iterator[None]:
    """Turn errors of requests into ModelErrors with the file's name; those that are ModelErrors have it."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise about(filename, error) from error


def opened(
    address: str, endpoint: str, headers: dict[str, str], filename: str, stay: str | None = None
) -> httpx2.Response:
    """GET a file, following redirects (with ``stay`` only within that repository); the body is not read yet.

    The caller closes the response. Raises ModelError that names the file, or the error of a request.
    """
    try:
        return _send(address, endpoint, headers, stay=stay)[0]
    except ModelError as error:
        raise about(filename, error) from error


def _send(
    address: str, endpoint: str, headers: dict[str, str], *, stay: str | None = None, is_api: bool = False
) -> tuple[httpx2.Response, str]:
    """The response to a GET, redirects followed, and its address; ``is_api``: only on the endpoint's own host.

    A mirror may also send questions on to the Hub, as hf-mirror.com does since 2026 (huggingface_hub issue 4637).
    The access token is sent to the endpoint's own origin only. An https endpoint never leads to plain http.
    """
    for _ in range(_MOST_REDIRECTS):
        if is_api and not is_own(address, endpoint) and not is_own(address, constants.HUGGINGFACE_CO_URL_HOME):
            raise Failed("network", f"the Hub points to another host ({printable(address, 100)})")
        response = _send_once("GET", address, endpoint, headers, is_api=is_api)
        if not response.has_redirect_location:
            return response, address
        response.close()
        address = _joined(address, response.headers["Location"])
        if stay is not None and is_own(address, endpoint):
            path = urlsplit(address).path.removeprefix(urlsplit(endpoint).path).strip("/")
            model, resolve, _ = path.partition("/resolve/")
            if resolve and is_hub_id(model) and model != stay:
                raise Skipped("renamed", f"the model is called {model} now")
    raise Failed("server_error", "its address redirects too many times")


def resolved(address: str, endpoint: str) -> tuple[httpx2.Response, str]:
    """The headers that the Hub sends of a file, and the address that the file is served from.

    Redirects are followed within the Hub. One to where a file is stored is not, at whatever host: the headers of the
    file come with it. Raises the library's exceptions for statuses of 400 and more.
    """
    for _ in range(_MOST_REDIRECTS):
        response = _send_once("HEAD", address, endpoint, {})
        response.close()
        hf_raise_for_status(response)
        if not response.has_redirect_location:
            return response, address
        address = _joined(address, response.headers["Location"])
        is_hub = is_own(address, endpoint) or is_own(address, constants.HUGGINGFACE_CO_URL_HOME)
        is_stored = "X-Linked-Size" in response.headers and "/resolve" not in urlsplit(address).path
        if not is_hub or is_stored:
            return response, address
    raise Failed("server_error", "its address redirects too many times")


def _send_once(
    method: str, address: str, endpoint: str, headers: dict[str, str], *, is_api: bool = False
) -> httpx2.Response:
    """The response to one request, its body not read; a token is sent to the session's own Hub only."""
    if _origin(address)[0] not in {"https", _origin(endpoint)[0]}:
        raise Failed("server_error", "its address is neither https nor of the endpoint's own scheme")
    hub = current_session()
    token = build_hf_headers(token=hub.token if is_own(address, hub.endpoint) else False)
    session, headers_sent, url = get_session(), {**token, "Accept-Encoding": "identity", **headers}, _url(address)
    once = {SENT_ONCE: True}
    if isinstance(session, HubClient) and not (is_api or url.userinfo):
        return session.get_file(url, headers_sent, method, **once)
    request = session.build_request(method, url, headers=headers_sent, extensions=once)
    return session.send(request, stream=True, follow_redirects=False)


@lru_cache(maxsize=64)
def _url(address: str) -> httpx2.URL:
    """The parsed address: a file is asked for by hundreds of ranges. Raises httpx2.InvalidURL."""
    return httpx2.URL(address)


_MESSAGE = re.compile(r"<Message>([^<]{1,500})", re.IGNORECASE)
_CODE = re.compile(r"<Code>([^<]{1,100})", re.IGNORECASE)


def reason_in(response: httpx2.Response) -> str:
    """The reason that the body of a refusal gives, for a message: ": Access denied"; "" if it gives none.

    The body is XML (of S3 and CloudFront), JSON (of the Hub), or plain text, whose first line counts.
    """
    try:
        text = response.read()[:4000].decode("utf-8", errors="replace").strip()
    except httpx2.HTTPError:
        return ""
    if match := _MESSAGE.search(text) or _CODE.search(text):
        text = match[1]
    elif text.startswith("{"):
        with suppress(ValueError):
            value = load_json(text)
            text = str(value.get("error", "")) if isinstance(value, dict) else ""
    elif text.startswith("<"):
        return ""
    line = tidy(text.splitlines()[0], _LONGEST_REASON) if text else ""
    return f": {line.rstrip('.')}" if line else ""


def about(filename: str, error: Exception) -> ModelError:
    """The ModelError for an exception of a request, with the file's name. Raises the exception again if it is a bug."""
    if type(error) is ValueError:
        error = Failed("server_error", "it is served from an invalid address")
    meaning = as_model_error(error)
    return type(meaning)(meaning.reason, f"{shown(filename)}: {meaning.detail}")


def is_own(address: str, endpoint: str) -> bool:
    """Whether ``address`` has the endpoint's scheme, host and port."""
    return _origin(address) == _origin(endpoint)


@lru_cache(maxsize=64)
def _origin(address: str) -> tuple[str, str, int | None]:
    """Scheme, host and port; all empty for an invalid address."""
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
