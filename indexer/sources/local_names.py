"""What models of this machine are called: ``local:NAME`` after their folders, whose paths are private."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence

from indexer.sources.runs import is_named_in_run

LOCAL = "local:"
_LONGEST_NAME = 80


def hash_of(path: str) -> str:
    """Identifies a place without its path: the first 16 hex digits of the path's sha256."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def name_of_words(words: Sequence[str], more: int = 0) -> str:
    """``local:NAME`` by the last of ``words`` (of a path), the checkpoint of a run by the last two, and ``more``."""
    count = (2 if is_named_in_run(words[-1]) else 1) + more
    joined = "-".join(filter(None, words[-count:]))
    plain = re.sub(r"[^\w.\-]+", "-", joined, flags=re.ASCII)
    plain = re.sub(r"\.{2,}", ".", plain).strip("-.") or "model"
    return f"{LOCAL}{plain[:_LONGEST_NAME]}"


def free_name(first: str, taken: Container[str]) -> str:
    """The name itself, or with the first number that makes it one that is not ``taken``."""
    number, name = 1, first
    while name in taken:
        number += 1
        name = f"{first}-{number}"
    return name
