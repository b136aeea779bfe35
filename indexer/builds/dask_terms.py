"""What a Dask worker must have, or its work would be lost: this version, this Hub, this folder.

All workers are asked before any work, and one that comes later before its first unit.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from indexer.errors import AtlasError, without_user
from indexer.version import __version__

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Terms:
    """``token`` is a file in the atlas's folder that is there as long as the build runs."""

    version: str
    endpoint: str
    token: Path


@contextmanager
def terms_of(atlas: Path) -> Iterator[Terms]:
    """What this process has."""
    from huggingface_hub import constants

    for left in atlas.glob(".seen-*.token"):  # of a client that was killed: there is one writer at a time
        left.unlink(missing_ok=True)
    token = atlas / f".seen-{uuid4().hex}.token"  # a publish in the midst of the build removes what ends in .tmp
    token.write_text(token.name, encoding="ascii")
    try:
        yield Terms(__version__, without_user(constants.ENDPOINT), token)
    finally:
        token.unlink(missing_ok=True)


def check_workers(client: Client, terms: Terms) -> None:
    """Ask all workers that are there now. Raises AtlasError that names one that does not fit."""
    for name, answer in client.run(_introduce, terms.token, on_error="return").items():
        if not isinstance(answer, dict):
            raise AtlasError(
                f"The Dask worker {name} cannot work: {told_in_a_line(answer)}.",
                "Install vectors-in-the-wild on every worker.",
            )
        _check(terms, answer, name)


@lru_cache(maxsize=8)
def check_here(terms: Terms) -> None:
    """Run on a worker. Raises AtlasError where it does not fit."""
    from distributed import get_worker

    _check(terms, _introduce(terms.token), get_worker().address)


def _introduce(token: Path) -> dict[str, Any]:
    """Run on each worker."""
    from huggingface_hub import constants

    return {
        "host": socket.gethostname(),
        "version": __version__,
        "endpoint": without_user(constants.ENDPOINT),
        "sees_folder": token.is_file() and os.access(token.parent, os.W_OK),
    }


def _check(terms: Terms, answer: dict[str, Any], name: str) -> None:
    for what, wanted, todo in (
        ("version", terms.version, "Install the same version everywhere."),
        ("endpoint", terms.endpoint, "Start workers with the same HF_ENDPOINT."),
        ("sees_folder", True, f"Mount the folder {terms.token.parent} there under the same path."),
    ):
        if answer[what] != wanted:
            raise AtlasError(
                f"The Dask worker {name} on {answer['host']} has {what}={answer[what]!r}, not {wanted!r}.", todo
            )


def told_in_a_line(error: object) -> str:
    """What an error says, short."""
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
