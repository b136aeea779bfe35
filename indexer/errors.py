"""The three ways a thing can go wrong: for the user, for good with one model, for now with one model."""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

# What data of the wrong kind makes of code that takes it for the right one: to be caught where strangers' data is read.
WRONG_KINDS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class AtlasError(Exception):
    """Something the user can act on: printed as one line, then exit 1.

    ``message`` says what is wrong and where, ``hint`` what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class BadArgument(AtlasError):
    """An argument that is wrong whatever the atlas holds: exit 2, as for the usage errors of click."""


class ModelError(Exception):
    """One model came to nothing; ``reason`` is a stable code to group by, ``detail`` the sentence for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[ModelError], tuple[str, str]]:
        # Exceptions cross process borders; the default reduce would lose the second argument.
        return type(self), (self.reason, self.detail)


class Skipped(ModelError):
    """This model at this commit can never be a record: the same bytes would be refused again."""


class Failed(ModelError):
    """It went wrong this time (network, rate limit, a server that misbehaved) and is worth another try."""


class UnknownRevision(Failed):
    """The Hub knows the model, but not that branch, tag or commit of it."""


def without_user(address: str) -> str:
    """An address as it may be shown and kept: without a name and a password before the host."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else address


def access_hint(model: str) -> str:
    """What to do about a gated repository, whose page is that of the endpoint that is asked."""
    site = without_user(os.environ.get("HF_ENDPOINT", "").rstrip("/")) or "https://huggingface.co"
    return f"Ask for access at {site}/{model}, log in with `hf auth login` (or set HF_TOKEN), and run it again."


def unreadable(model: str, error: ModelError) -> AtlasError:
    """What a person is told of a model that cannot be read."""
    if isinstance(error, UnknownRevision):
        return AtlasError(f"{error.detail}.", "Give a branch, a tag or a commit of it after the @, or leave that out.")
    if error.reason == "gated":
        return AtlasError(f"{model} is gated, and this account has no access.", access_hint(model))
    return AtlasError(
        f"{model} cannot be read: {error.detail.rstrip('.')}.",
        "Try again later." if isinstance(error, Failed) else "",
    )


# The extra that brings a module that the plain install does not need, and the package it is in.
_EXTRAS = {
    "torch": ("build", "torch"),
    "transformers": ("build", "transformers"),
    "distributed": ("dask", "distributed"),
    "matplotlib": ("studies", "matplotlib"),
    "pandas": ("studies", "pandas"),
    "umap": ("studies", "umap-learn"),
    "mcp": ("agents", "mcp"),
    "starlette": ("browse", "starlette"),
    "uvicorn": ("browse", "uvicorn"),
}


def install(extra: str) -> str:
    """How to install an extra, from the folder of the project: the package is on no index."""
    return f"Install the extra, in the folder of the project: pip install '.[{extra}]'"


def require(purpose: str, *modules: str) -> None:
    """Check that optional libraries can be imported, before any work is done.

    Nothing is imported here. Raises AtlasError: ``purpose`` ("A data frame"), what it needs, and how to install it.
    """
    for module in modules:
        try:
            is_there = find_spec(module) is not None
        except (ImportError, ValueError):  # blocked by somebody
            is_there = False
        if not is_there:
            extra, package = _EXTRAS[module]
            raise AtlasError(f"{purpose} needs {package}, which is not installed.", install(extra))
