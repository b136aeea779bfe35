"""One GET of JSON from the Hub's API, from the endpoint's own host and no other.

Answers are raw JSON, because one malformed field in a typed client ends a whole listing. Waiting and trying
again where the Hub says no is the business of ``indexer.network.session``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from indexer.errors import Failed
from indexer.network.hub_get import ensure_session, is_own
from indexer.untrusted import load_json, printable

Parameters = Sequence[tuple[str, str]]

_MOST_REDIRECTS = 5
_WAITS_FOR_JSON = (1.0, 3.0)


class GarbledError(ValueError):
    """A body that is not JSON; of its own, because the library's exception for a 400 is a ValueError too."""


@dataclass(frozen=True)
class HubAnswer:
    """Parsed JSON, the address it came from, and the address of the next page, if the Hub names one."""

    value: Any
    address: str
    next_link: str | None = None


def ask(path: str, parameters: Parameters = ()) -> HubAnswer:
    """GET JSON from the endpoint; ``path`` below it, or a whole address of the endpoint's own.

    A body that is not JSON is asked for again, three times in all. Raises the library's exceptions for
    statuses of 400 and more, Failed("server_error") for a body that stays unreadable and for a way that leads
    to another host.
    """
    ensure_session()
    for wait in (*_WAITS_FOR_JSON, None):
        try:
            return _ask_once(path, parameters)
        except GarbledError as error:
            if wait is None:
                raise Failed("server_error", "the Hub's answer is not JSON") from error
            time.sleep(wait)
    raise AssertionError("unreachable")


def _ask_once(path: str, parameters: Parameters) -> HubAnswer:
    endpoint = constants.ENDPOINT.rstrip("/")
    address = path if "://" in path else endpoint + path
    if parameters:
        address = f"{address}?{urlencode(list(parameters))}"
    for _ in range(_MOST_REDIRECTS):
        if not is_own(address, endpoint):
            raise Failed("server_error", f"the Hub points to another host ({printable(address, 100)})")
        response = get_session().get(address, headers=build_hf_headers(), follow_redirects=False)
        if not response.has_redirect_location:
            hf_raise_for_status(response)
            return HubAnswer(parse_json(response.content), address, _next_link(response.links, address))
        address = _joined(address, response.headers["Location"])
    raise Failed("server_error", "the Hub's answer is a chain of redirects")


def parse_json(body: bytes) -> Any:
    """JSON, or GarbledError for whatever is wrong with it."""
    try:
        return load_json(body, whole_number=_whole_number)
    except ValueError as error:
        raise GarbledError(str(error)) from error


def _whole_number(digits: str) -> int | float:
    """Python refuses to read integers of thousands of digits, and one of them would cost the whole page."""
    return int(digits) if len(digits) <= 400 else float(digits)


def _joined(address: str, location: str) -> str:
    try:
        return urljoin(address, location)
    except ValueError:
        return ""


def _next_link(links: dict[Any, dict[str, str]], address: str) -> str | None:
    """The next page's address; a mirror that passes on the Hub's own links is asked in the Hub's place."""
    link = links.get("next", {}).get("url")
    if not link:
        return None
    link, endpoint = _joined(address, link), constants.ENDPOINT.rstrip("/")
    public = constants.HUGGINGFACE_CO_URL_HOME.rstrip("/")
    if not is_own(link, endpoint) and is_own(link, public):
        return endpoint + link[len(public) :]
    return link


def with_parameter(address: str, name: str, value: str) -> str:
    """The address with one query parameter set, the others as they are."""
    parts = urlsplit(address)
    pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != name]
    return urlunsplit(parts._replace(query=urlencode([*pairs, (name, value)])))
