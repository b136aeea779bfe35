"""Variables of the environment that huggingface_hub reads once, when it is imported.

It takes the address of the Hub as it is, with blanks and line ends, and ends the import with a ValueError for a number
that is none. ``tidy`` runs when this package is imported, before that library is; ``check`` runs before the Hub is
asked and says in one line which variable is wrong.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from indexer.errors import AtlasError, without_user

_ADDRESS = "HF_ENDPOINT"
_SECONDS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
_MOST_SECONDS = 10**6

_malformed: dict[str, str] = {}  # numbers that were taken out of the environment


def tidy() -> None:
    """Strip the Hub's address, and take out of the environment what is empty and numbers that are none."""
    address = os.environ.get(_ADDRESS)
    if address is not None:
        _set(_ADDRESS, address.strip().rstrip("/"))
    _malformed.clear()
    for name in _SECONDS:
        value = os.environ.get(name)
        if value is None:
            continue
        _set(name, value.strip())
        if value.strip() and not _is_number_of_seconds(value.strip()):
            _malformed[name] = value
            del os.environ[name]


def check() -> None:
    """Raise AtlasError if the Hub's address is not one, or a time limit was not a number."""
    for name, value in _malformed.items():
        raise AtlasError(
            f"{name} is not a whole number of seconds: {value[:40]!r}.", f"Set it to a number like 30, or unset {name}."
        )
    address = os.environ.get(_ADDRESS)
    if address and not _is_address(address):
        try:
            shown = without_user(address)
        except ValueError:
            shown = address.rpartition("@")[2]
        raise AtlasError(
            f"HF_ENDPOINT is not the address of a Hub: {shown[:200]!r}.",
            "Give it like https://huggingface.co, or unset HF_ENDPOINT.",
        )


def _set(name: str, value: str) -> None:
    if not value:
        del os.environ[name]
    elif os.environ[name] != value:
        os.environ[name] = value


def _is_number_of_seconds(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= _MOST_SECONDS


def _is_address(text: str) -> bool:
    if not text.isprintable() or any(character.isspace() for character in text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
