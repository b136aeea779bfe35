"""JSON objects with a checksum: one per line of a listing, one per file in place of a record.

The checksum is the last key, ``"sum": "<16 hex digits of sha256>"``, over the bytes of the object without it, so lines
can be appended. Objects from before there were checksums are read as they are.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from indexer.untrusted import load_json

_CHECKSUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')
_HEX = re.compile(r"[0-9a-f]{16}")
# Last keys of objects without a checksum that are as short as "sum".
_LAST_OF_OLD = frozenset({"raw", "why", "cut", "row", "ids", "was"})


def add_checksum(text: str) -> bytes:
    """``text`` (a JSON object with at least one key, in ASCII) with its checksum."""
    body = text.encode("ascii")
    return body[:-1] + b',"sum":"' + _sum(body) + b'"}'


def parse_checksummed(line: bytes) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError if that does not match, or if the line is not an object."""
    found_sum = _CHECKSUM.search(line)
    if found_sum is not None:
        line = line[: found_sum.start()] + b"}"
        if _sum(line) != found_sum[1]:
            raise ValueError("its checksum does not match")
    found = load_json(line)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    if found_sum is None:
        # An object whose checksum was altered in its key or its value must not pass as one without.
        last = next(reversed(found), "")
        value = found.get(last)
        is_like_sum = isinstance(value, str) and _HEX.fullmatch(value) and len(last) == 3
        if "sum" in found or (is_like_sum and last not in _LAST_OF_OLD):
            raise ValueError("its checksum cannot be read")
    return found


def has_checksum(line: bytes) -> bool:
    """Whether a line is complete and has a checksum that matches."""
    try:
        parse_checksummed(line)
    except (ValueError, RecursionError):
        return False
    return _CHECKSUM.search(line) is not None


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()
