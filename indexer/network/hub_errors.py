"""Translates errors of huggingface_hub and httpx2: to errors of one model, or errors that a user must act on.

All of them pass through here, so that a 429 or a 5xx is never taken for "there is no such model", and a gated
repository (an exception that the library derives from "not found") is reported as gated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from indexer.errors import AtlasError, Failed, ModelError, Skipped, access_hint, without_user
from indexer.hub_ids import is_hub_id
from indexer.network.addresses import ForbiddenAddressError
from indexer.network.proxies import UnusableProxyError, proxy_for
from indexer.network.session import INVALID_TOKEN, current_session
from indexer.network.transport import certificate_problem
from indexer.untrusted import printable, tidy

_LONGEST = 200

_OF_CERTIFICATES = (
    "If a proxy of your network intercepts https, or this Hub has its own certificate authority, set SSL_CERT_FILE to "
    "a file with that certificate."
)

# The first class that matches decides, so derived classes come first.
_BY_CLASS: tuple[tuple[type[Exception], type[ModelError], str, str], ...] = (
    (OfflineModeIsEnabled, Failed, "network", "HF_HUB_OFFLINE is set, so the Hub is not asked"),
    (GatedRepoError, Skipped, "gated", "the repository is gated and this account has no access"),
    (DisabledRepoError, Skipped, "disabled", "the repository is disabled"),
    (LocalEntryNotFoundError, Failed, "network", "the file is not in the local cache and the Hub did not answer"),
    (RevisionNotFoundError, Failed, "not_found", "there is no such revision"),
    (EntryNotFoundError, Failed, "not_found", "there is no such file"),
    (RepositoryNotFoundError, Failed, "not_found", "there is no such repository, or it is private"),
    (FileMetadataError, Failed, "server_error", "the Hub does not say what the file is"),
    (HFValidationError, Skipped, "malformed", "this is not a valid name on the Hub"),
    (httpx2.TimeoutException, Failed, "timeout", "no answer in time"),
    (httpx2.TooManyRedirects, Failed, "server_error", "there were too many redirects"),
    (httpx2.DecodingError, Failed, "server_error", "the response cannot be read"),
    (ForbiddenAddressError, Failed, "network", "the address is not followed"),
    (httpx2.HTTPError, Failed, "network", "the connection failed"),
    (httpx2.InvalidURL, Failed, "server_error", "the address is not valid"),
    (TimeoutError, Failed, "timeout", "no answer in time"),
    (ConnectionError, Failed, "network", "the connection failed"),
)

# Errors whose class says more than the status code.
_SPECIFIC = (
    GatedRepoError, DisabledRepoError, EntryNotFoundError, RevisionNotFoundError, RepositoryNotFoundError,
)  # fmt: skip

# What to do, by reason.
_HINTS = {
    "network": "Check the network and HF_ENDPOINT, then run it again; what is already here is kept.",
    "timeout": "The Hub may be slow or down: run it again later, what is already here is kept.",
    "rate_limited": "Wait a few minutes and run it again, or set HF_TOKEN: an account has a higher limit.",
    "server_error": "The Hub may be down: run it again later, what is already here is kept.",
    "gated": "Ask for access on its page on the Hub, then log in with `hf auth login` or set HF_TOKEN.",
    "disabled": "It can no longer be read; choose another.",
    "not_found": "Check the spelling; for a private repository log in with `hf auth login` or set HF_TOKEN.",
    "refused": "Check that HF_TOKEN (or the login of `hf auth login`) may read it.",
}


def as_model_error(exception: Exception) -> ModelError:
    """The ``Skipped`` or ``Failed`` for one model that ``exception`` amounts to.

    Raises ``exception`` again if it does not come from the network or the Hub: then it is a bug.
    """
    if isinstance(exception, ModelError):
        return exception
    if isinstance(exception, LocalEntryNotFoundError) and isinstance(exception.__cause__, Exception):
        return as_model_error(exception.__cause__)  # what made the library fall back on its cache
    if isinstance(exception, HfHubHTTPError) and not isinstance(exception, _SPECIFIC):
        status = exception.response.status_code
        if _token_is_invalid(exception):
            return Failed("refused", "the Hub does not accept the access token")
        if status in (401, 403):
            return Failed("refused", _with_detail(f"the Hub refuses to answer (HTTP {status})", exception))
        if status in (404, 410):
            return Failed("not_found", f"there is nothing at this address (HTTP {status})")
        if status in (408, 504):
            return Failed("timeout", f"no answer in time (HTTP {status})")
        if status == 429:
            return Failed("rate_limited", "the rate limit is used up (HTTP 429)")
        return Failed("server_error", _with_detail(f"the Hub answered HTTP {status}", exception))
    if problem := certificate_problem(exception):
        host = exception.request.url.host if isinstance(exception, httpx2.RequestError) else "the server"
        return Failed(
            "network", f"the certificate of {printable(host, 100)} is not trusted ({tidy(problem, _LONGEST)})"
        )
    for known_class, kind, reason, sentence in _BY_CLASS:
        if isinstance(exception, known_class):
            return kind(reason, _with_detail(sentence, exception))
    raise exception


def as_user_error(exception: Exception, what: str) -> AtlasError:
    """The error to show to a user; ``what`` names what was asked for ("the base model x/y").

    Raises ``exception`` again if it does not come from the network or the Hub.
    """
    if isinstance(exception, AtlasError):
        return exception
    if isinstance(exception, OfflineModeIsEnabled):
        return AtlasError(
            f"{what} is not stored locally, and HF_HUB_OFFLINE forbids asking the Hub.",
            "Unset HF_HUB_OFFLINE and run it again.",
        )
    if isinstance(exception, HfHubHTTPError) and _token_is_invalid(exception):
        return AtlasError(
            f"The Hub does not accept the access token (asked for {what}).",
            "Log in again with `hf auth login`, or correct or unset HF_TOKEN.",
        )
    error = as_model_error(exception)
    identifier = what.rpartition(" ")[2]
    is_gated = error.reason == "gated" and is_hub_id(identifier)
    hint = access_hint(identifier) if is_gated else _HINTS.get(error.reason, "")
    if certificate_problem(exception):
        hint = _OF_CERTIFICATES
    elif isinstance(exception, UnusableProxyError):
        hint = "Correct the variable, or unset it."
    elif isinstance(exception, httpx2.ProxyError):
        hint = "Check the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, or name the Hub's host in NO_PROXY."
    elif isinstance(exception, ForbiddenAddressError):
        hint = "Check HF_ENDPOINT: this Hub, or something between it and here, leads elsewhere."
    endpoint = current_session().endpoint
    where = without_user(endpoint) or "an empty HF_ENDPOINT"
    if proxy := proxy_for(endpoint):
        where += f" through the proxy {proxy}"
    return AtlasError(f"Cannot get {what} from {where}: {error.detail}.", hint)


@contextmanager
def model_errors(about: str = "") -> Iterator[None]:
    """Within the block, errors of the network and the Hub become ModelError, whose details begin with ``about``.

    Other errors are not changed.
    """
    try:
        yield
    except AtlasError:
        raise
    except Exception as error:
        meaning = as_model_error(error)
        if about:
            raise type(meaning)(meaning.reason, f"{about}: {meaning.detail}") from error
        if meaning is error:
            raise
        raise meaning from error


@contextmanager
def user_errors(what: str) -> Iterator[None]:
    """Within the block, errors of the network and the Hub become AtlasError; ``what``: see ``as_user_error``.

    Other errors are not changed.
    """
    try:
        yield
    except AtlasError:
        raise
    except Exception as error:
        raise as_user_error(error, what) from error


@contextmanager
def optional_answer() -> Iterator[None]:
    """Within the block, errors of the network and the Hub end it: nothing depends on its answer."""
    try:
        yield
    except Exception as error:
        as_model_error(error)  # raises any other again


def _token_is_invalid(exception: HfHubHTTPError) -> bool:
    message = f"{exception.response.headers.get('X-Error-Message', '')} {exception.server_message or ''}"
    return exception.response.status_code == 401 and INVALID_TOKEN in message


def _with_detail(sentence: str, exception: Exception) -> str:
    """The sentence, and the first line of the server's message, which is untrusted: printable and short."""
    message = exception.server_message if isinstance(exception, HfHubHTTPError) else str(exception)
    lines = (message or "").strip().splitlines()
    line = tidy(lines[0], _LONGEST) if lines else ""
    return f"{sentence} ({line.rstrip('.')})" if line else sentence
