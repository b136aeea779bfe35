"""Errors: those that the user can act on, and those of one model, permanent or temporary."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

# Exceptions that data of an unexpected type causes; caught where untrusted data is read.
WRONG_KINDS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


# Functions of the library for building an atlas; every other name of a call is a question of one.
BUILDING = ("build", "add", "deepen", "find_starts", "scan")


class Call:
    """A call that a sentence suggests: of a function for building, of a question, or only arguments of one.

    ``Call("clusters", method="kmeans")`` reads ``atlas.clusters(method='kmeans')`` in Python, and
    ``Call(method="kmeans")`` reads ``method='kmeans'``. Every face writes it in its own way: see
    ``indexer.console.advice`` and ``query.faces.serve.tools``.
    """

    def __init__(self, function: str = "", *places: Any, **named: Any) -> None:
        self.function, self.places, self.named = function, places, named

    def __str__(self) -> str:
        values = [*map(repr, self.places), *(f"{name}={value!r}" for name, value in self.named.items())]
        function = self.function if self.function in BUILDING else f"atlas.{self.function}"
        return f"{function}({', '.join(values)})" if self.function else ", ".join(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Text(str):
    """A sentence with calls in it, which Python users read as it is: calls stand in backticks.

    ``parts``: texts and calls in order, from which other faces write it. Texts are added with ``+`` or as parts of
    another; an f-string or a method of ``str`` would leave only what Python users read.
    """

    parts: tuple[str | Call, ...]

    def __new__(cls, *parts: str | Call) -> Self:
        """The texts and calls, one after another."""
        flat = [piece for part in parts for piece in (part.parts if isinstance(part, Text) else (part,))]
        text = super().__new__(cls, "".join(f"`{part}`" if isinstance(part, Call) else part for part in flat))
        text.parts = tuple(flat)
        return text

    def __add__(self, other: str) -> Text:
        return Text(self, other)

    def __radd__(self, other: str) -> Text:
        return Text(other, self)

    def __reduce__(self) -> tuple[type[Text], tuple[str | Call, ...]]:
        return Text, self.parts


class AtlasError(Exception):
    """An error that the user can act on: printed as one line, then exit 1.

    ``message`` says what is wrong and where, ``hint`` what to do next: texts, :class:`Text` with calls, or one call.
    """

    def __init__(self, message: str, hint: str | Call = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = Text(hint) if isinstance(hint, Call) else hint

    @property
    def text(self) -> Text:
        """Both, for every face to write."""
        return Text(self.message, " " if self.message and self.hint else "", self.hint)

    def __str__(self) -> str:
        return str(self.text).strip()


class BadArgument(AtlasError):
    """An argument that is wrong for every atlas: exit 2, as for the usage errors of click."""


class ModelError(Exception):
    """One model failed; ``reason`` is a stable code to group by, ``detail`` a sentence for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[ModelError], tuple[str, str]]:
        # Exceptions are sent between processes; the default would lose the second argument.
        return type(self), (self.reason, self.detail)


class Skipped(ModelError):
    """This model at this commit can never be read: another try would fail in the same way."""


class Failed(ModelError):
    """A temporary failure (network, rate limit, a server error) that is worth another try."""


class UnknownRevision(Failed):
    """The Hub has the model, but not that branch, tag or commit."""


@contextmanager
def first_error_kept(first: BaseException) -> Iterator[None]:
    """For what is still to be saved after an error: if that fails too, the first error is raised.

    On a full disk saving fails as well, and says less. After Ctrl-C (not an Exception) the failure is raised.
    """
    try:
        yield
    except Exception:
        if not isinstance(first, Exception):
            raise
        raise first from None


@contextmanager
def system_errors(ours: Callable[[str], Exception]) -> Iterator[None]:
    """Within the block, OSError becomes ``ours(why)``: what the system says, or that a file is not text."""
    try:
        yield
    except OSError as error:
        raise ours(error.strerror or str(error) or type(error).__name__) from error
    except UnicodeError as error:
        raise ours("it is not text") from error


def without_user(address: str) -> str:
    """An address that may be shown and stored: without user name and password."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else address


def access_hint(model: str) -> str:
    """What to do about a gated repository at the endpoint in use."""
    site = without_user(os.environ.get("HF_ENDPOINT", "").rstrip("/")) or "https://huggingface.co"
    return f"Ask for access at {site}/{model}, log in with `hf auth login` (or set HF_TOKEN), and run it again."


def unreadable(model: str, error: ModelError) -> AtlasError:
    """The error for a model that cannot be read."""
    if isinstance(error, UnknownRevision):
        return AtlasError(f"{error.detail}.", "Give a branch, a tag or a commit of it after the @, or leave that out.")
    if error.reason == "gated":
        return AtlasError(f"{model} is gated, and this account has no access.", access_hint(model))
    return AtlasError(
        f"{model} cannot be read: {error.detail.rstrip('.')}.",
        "Try again later." if isinstance(error, Failed) else "",
    )


# Optional modules: the extra that installs them, and their package.
_EXTRAS = {
    "PIL": ("build", "pillow"),
    "regex": ("build", "regex"),
    "tokenizers": ("build", "tokenizers"),
    "torch": ("build", "torch"),
    "transformers": ("build", "transformers"),
    "distributed": ("dask", "distributed"),
    "matplotlib": ("studies", "matplotlib"),
    "numba": ("studies", "numba"),
    "pandas": ("studies", "pandas"),
    "umap": ("studies", "umap-learn"),
    "anyio": ("agents", "anyio"),
    "mcp": ("agents", "mcp"),
    "pydantic": ("agents", "pydantic"),
    "typing_extensions": ("agents", "typing_extensions"),
    "h11": ("browse", "h11"),
    "starlette": ("browse", "starlette"),
    "uvicorn": ("browse", "uvicorn"),
    "peft": ("demo", "peft"),
    "cyclonedx": ("bom", "cyclonedx-python-lib"),
    "in_toto_attestation": ("bom", "in-toto-attestation"),
    "packageurl": ("bom", "packageurl-python"),
    "spdx_python_model": ("bom", "spdx-python-model"),
}


def install(extra: str) -> str:
    """How to install an extra, from the project's folder: the package is not on an index."""
    return f"Install the extra, in the folder of the project: pip install '.[{extra}]'"


def require(purpose: str, *modules: str) -> None:
    """Check that optional libraries are installed, without importing them, before any work is done.

    Raises AtlasError with ``purpose`` ("A data frame"), what it needs, and how to install it.
    """
    for module in modules:
        try:
            is_there = find_spec(module) is not None
        except (ImportError, ValueError):  # imports of it are blocked
            is_there = False
        if not is_there:
            raise _without(module, purpose)


def missing_extra(error: BaseException, purpose: str = "This") -> AtlasError | None:
    """The error that names the extra to install, if ``error`` is that an optional module is missing; else None."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _without(module, purpose) if module in _EXTRAS else None


def naming_extras(function: Callable[Given, Answer], purpose: str = "This") -> Callable[Given, Answer]:
    """``function``, which raises AtlasError if it imports an optional module that is not installed."""

    @functools.wraps(function)
    def called(*arguments: Given.args, **options: Given.kwargs) -> Answer:
        try:
            return function(*arguments, **options)
        except ModuleNotFoundError as error:
            if (known := missing_extra(error, purpose)) is None:
                raise
            raise known from error

    return called


def _without(module: str, purpose: str) -> AtlasError:
    extra, package = _EXTRAS[module]
    return AtlasError(Text(purpose, f" needs {package}, which is not installed."), install(extra))
