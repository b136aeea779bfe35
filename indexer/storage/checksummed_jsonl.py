"""JSON objects with a checksum: one per line of a listing, one per file in place of a record.

The checksum is the last key, ``"sum": "<16 hex digits of sha256>"``, over the bytes of the object without it, so lines
can be appended.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from indexer.untrusted import load_json

_CHECKSUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')


def add_checksum(text: str) -> bytes:
    """``text`` (a JSON object with at least one key, in ASCII) with its checksum."""
    body = text.encode("ascii")
    return body[:-1] + b',"sum":"' + _sum(body) + b'"}'


def parse_checksummed(line: bytes) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError if that is missing or wrong, or the line is not an object."""
    found_sum = _CHECKSUM.search(line)
    if found_sum is None:
        raise ValueError("it has no checksum")
    line = line[: found_sum.start()] + b"}"
    if _sum(line) != found_sum[1]:
        raise ValueError("its checksum does not match")
    found = load_json(line)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()
