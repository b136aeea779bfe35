"""JSON objects that carry a checksum of themselves: one a line in a listing, one a file in place of a record.

The checksum stands last, ``"sum": "<16 hex digits of sha256>"``, and is over the object's own bytes without it, so it
can be appended line by line. Objects of before there was one are taken as they are.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from indexer.untrusted import load_json

_SEAL = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')
_HEX = re.compile(r"[0-9a-f]{16}")
# What stands last in objects of before, and is as short as "sum".
_LAST_OF_OLD = frozenset({"raw", "why", "cut", "row", "ids", "was"})


def sealed(text: str) -> bytes:
    """``text`` (a JSON object with at least one key, ASCII) with its checksum."""
    body = text.encode("ascii")
    return body[:-1] + b',"sum":"' + _sum(body) + b'"}'


def unsealed(line: bytes) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError where that does not fit, or it is no object."""
    seal = _SEAL.search(line)
    if seal is not None:
        line = line[: seal.start()] + b"}"
        if _sum(line) != seal[1]:
            raise ValueError("its checksum does not fit")
    found = load_json(line)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if seal is None and _was_sealed(found):
        raise ValueError("its checksum cannot be read")
    return found


def is_sealed(line: bytes) -> bool:
    """Whether it is whole and carries a checksum that fits."""
    try:
        unsealed(line)
    except (ValueError, RecursionError):
        return False
    return _SEAL.search(line) is not None


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()


def _was_sealed(found: dict[str, Any]) -> bool:
    """A checksum whose name or value was altered is not to pass for an object that never had one."""
    last = next(reversed(found), "")
    value = found.get(last)
    is_like_one = len(last) == 3 and last not in _LAST_OF_OLD and isinstance(value, str) and _HEX.fullmatch(value)
    return "sum" in found or bool(is_like_one)
