"""Servers other than a Hub that keep models: JSON from their API, and ranges of their files.

Requests go through the same transport as those to a Hub, with its limits, its minimum throughput, its rules for the
addresses that a server may name, and the same retries. Nothing that is for a Hub is sent: no token, no header of its
client, and HF_HUB_OFFLINE does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import httpx2
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import AtlasError, Failed, ModelError
from indexer.network.addresses import ForbiddenAddressError
from indexer.network.byterange import RangedFile
from indexer.network.hub_errors import as_model_error
from indexer.network.hub_requests import Parameters, is_own, parse_json
from indexer.network.rate_limit import count_received
from indexer.network.retries import RetryPolicy, TransientError
from indexer.network.session import SENT_ONCE, STREAMED, Session, current_session
from indexer.untrusted import load_json, printable, tidy
from indexer.version import __version__

_MOST_REDIRECTS = 5
_USER_AGENT = f"vectors-in-the-wild/{__version__}"
_LONGEST_MESSAGE = 200
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_REASONS = {
    401: "refused", 403: "refused", 404: "not_found", 408: "timeout", 410: "not_found", 429: "rate_limited",
    504: "timeout",
}  # fmt: skip


class Server:
    """A server at ``endpoint``, http or https, which messages call ``title``. Can be shared between threads.

    ``headers`` are sent to the endpoint's own origin only, and their values are kept out of messages. Methods raise
    Failed: "refused", "not_found", "rate_limited", "timeout", "network", "server_error". Raises AtlasError for an
    endpoint that is no address, or that holds a user or a password.
    """

    def __init__(self, title: str, endpoint: str, headers: Mapping[str, str] | None = None) -> None:
        self.title = title
        self.endpoint = endpoint.rstrip("/")
        self._headers = dict(headers or {})
        try:
            parts = urlsplit(self.endpoint)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_address = False
        if not is_address or parts.username or parts.password or parts.query or parts.fragment:
            shown = printable(self.endpoint.rpartition("@")[2], 100)
            raise AtlasError(f"The address {shown} of {title} is not of the form http://host:port.", "Correct it.")
        self._session = Session(current_session().limits, endpoint=self.endpoint)

    def ask(self, path: str, parameters: Parameters = (), *, body: Any = None, method: str = "") -> Any:
        """The JSON that the API answers, parsed. ``body``: JSON to send, by POST unless a ``method`` is given."""
        address = self.endpoint + path + (f"?{urlencode(list(parameters))}" if parameters else "")
        content = None if body is None else json.dumps(body).encode()

        def once() -> Any:
            with closing(self._sent(method or ("GET" if body is None else "POST"), address, content)[0]) as response:
                answer = response.read()
            try:
                return parse_json(answer)
            except ValueError as error:
                raise TransientError(Failed("server_error", f"the answer of {self.title} is not JSON")) from error

        return self._tried(once)

    def file(
        self, path: str, parameters: Parameters, name: str, size: int, *, retries: RetryPolicy | None = None
    ) -> RangedFile:
        """A file of ``size`` bytes, as the server has said, to be read by ranges."""
        address = self.endpoint + path + (f"?{urlencode(list(parameters))}" if parameters else "")
        return RangedFile(name, size, partial(self._range, _Location(address), name, size, retries))

    def _range(
        self, location: _Location, name: str, size: int, retries: RetryPolicy | None, start: int, stop: int
    ) -> bytes:
        def once() -> bytes:
            requested = location.now
            try:
                response, address = self._sent("GET", requested, None, {"Range": f"bytes={start}-{stop - 1}"})
            except (HfHubHTTPError, httpx2.RequestError) as error:
                if requested != location.first:  # where it was stored a while ago: that may have expired
                    location.now = location.first
                    raise TransientError(Failed("server_error", f"{name} cannot be read where it is stored")) from error
                raise
            with closing(response):
                self._check_range(response, name, size, start, stop)
                content = bytearray()
                for chunk in response.iter_raw():
                    content += chunk
                    count_received(len(chunk))
                    if len(content) > stop - start:
                        break
            if len(content) != stop - start:
                raise TransientError(Failed("short_body", f"{name} was sent with another number of bytes than asked"))
            location.now = address
            return bytes(content)

        try:
            return self._tried(once, retries)
        except Failed as error:
            message = error.detail if name in error.detail else f"{name}: {error.detail}"
            raise Failed(error.reason, message) from error

    def _check_range(self, response: httpx2.Response, name: str, size: int, start: int, stop: int) -> None:
        stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        is_whole = response.status_code == 200 and (start, stop) == (0, size)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise TransientError(Failed("range_ignored", f"{name} was sent encoded, which was not requested"))
        if is_whole:
            return
        if response.status_code != 206 or stated is None:
            raise Failed("range_ignored", f"{self.title} does not send parts of {name}")
        first, last, total = map(int, stated.groups())
        if total != size:
            raise Failed("file_changed", f"{name} has {total} bytes, and {self.title} stated {size}")
        if (first, last) != (start, stop - 1):
            raise TransientError(Failed("range_ignored", f"another part of {name} was sent than asked for"))

    def _sent(
        self, method: str, address: str, content: bytes | None, span: Mapping[str, str] | None = None
    ) -> tuple[httpx2.Response, str]:
        """The response to one request, redirects followed, and its address; with a ``span`` its body is not read yet.

        The API does not lead to other hosts. Raises HfHubHTTPError, which is any server's here, for a status of 400 and
        more.
        """
        for _ in range(_MOST_REDIRECTS):
            is_here = is_own(address, self.endpoint)
            if span is None and not is_here:
                raise Failed("network", f"{self.title} points to another host ({printable(address, 100)})")
            if urlsplit(address).scheme not in {"https", urlsplit(self.endpoint).scheme}:
                raise Failed("network", f"{self.title} points to an address without https")
            headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": _USER_AGENT}
            headers |= dict(span or {}) | (self._headers if is_here else {})
            if content is not None:
                headers["Content-Type"] = "application/json"
            extensions = {SENT_ONCE: True, STREAMED: span is not None}
            request = httpx2.Request(method, address, headers=headers, content=content, extensions=extensions)
            response = self._session.transport.handle_request(request)
            if response.has_redirect_location:
                response.close()
                address = urljoin(address, response.headers["Location"])
                continue
            if response.status_code >= 400:
                raise HfHubHTTPError(f"HTTP {response.status_code}", response=response)
            return response, address
        raise Failed("server_error", f"{self.title} redirects too many times")

    def _tried(self, once: Any, retries: RetryPolicy | None = None) -> Any:
        try:
            return self._session.transport.retries.following(retries).call(once)
        except HfHubHTTPError as error:
            status = error.response.status_code
            reason = _REASONS.get(status, "server_error")
            message = self._message(error.response) if reason != "refused" else ""
            raise Failed(reason, f"{self.title} answered HTTP {status}{message}") from error
        except ForbiddenAddressError as error:
            raise Failed("network", f"{self.title} points to an address that is not public") from error
        except (ModelError, AtlasError):
            raise
        except ValueError as error:
            raise Failed("server_error", f"{self.title} points to an invalid address") from error
        except Exception as error:
            meaning = as_model_error(error)
            raise Failed(meaning.reason, f"{self.title}: {meaning.detail}") from error

    def _message(self, response: httpx2.Response) -> str:
        """What the body of an error says, one short line; "" if it says nothing."""
        try:
            value = load_json(response.read()[:4000])
        except (ValueError, httpx2.HTTPError):
            return ""
        spellings = [value.get(key) for key in ("message", "Message")] if isinstance(value, dict) else []
        stated = next(filter(None, spellings), "")
        text = tidy(str(stated), _LONGEST_MESSAGE).rstrip(".")
        is_private = any(part in text for secret in self._headers.values() for part in secret.split() if len(part) > 5)
        return f": {text}" if text and not is_private else ""


class _Location:
    """Where a file is asked for first, and where its ranges are ``now`` read from."""

    def __init__(self, address: str) -> None:
        self.first = self.now = address
