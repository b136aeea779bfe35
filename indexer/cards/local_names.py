"""What a model of a folder is called in an atlas, and what its files say: names of folders, never their paths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indexer.names import LOCAL

_LONGEST = 80
_PATH = re.compile(r"(?:file:/*|~|[A-Za-z]:)?[/\\].*?([^/\\]*)[/\\]*", re.DOTALL)
_OF_A_RUN = re.compile(r"(checkpoint|step|epoch)[-_]?\d+|final|best|last|model|output", re.IGNORECASE)


def place_of(folder: Path) -> str:
    """What tells a folder from others of its name without saying where it lies: the beginning of a sha256."""
    return hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def local_name(folder: Path, taken: Mapping[str, str]) -> str:
    """``local:NAME``, with a number behind it where another folder has that name.

    ``taken``: the names that are given, with the :func:`place_of` each. A folder that has one keeps it. Of a
    checkpoint of a run (``run/checkpoint-500``) both names count.
    """
    place = place_of(folder)
    for name, of in taken.items():
        if of == place:
            return name
    words = [folder.parent.name, folder.name] if _OF_A_RUN.fullmatch(folder.name) else [folder.name]
    plain = re.sub(r"[^\w.\-]+", "-", "-".join(filter(None, words)), flags=re.ASCII).strip("-.") or "model"
    first = f"{LOCAL}{plain[:_LONGEST]}"
    number, name = 1, first
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name


def without_paths(said: Any) -> Any:
    """What a folder's card and configuration say, with ``./NAME`` for every text that is an absolute path.

    ``said`` is JSON: the same comes back, and nothing else of it changes.
    """
    if isinstance(said, dict):
        return {name: without_paths(value) for name, value in said.items()}
    if isinstance(said, list):
        return [without_paths(value) for value in said]
    path = _PATH.fullmatch(said) if isinstance(said, str) else None
    return f"./{path[1]}" if path else said
