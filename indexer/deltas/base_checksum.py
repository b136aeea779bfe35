"""The checksum of a stored base: sha256 of the whole file, in its own header.

It is taken with zeros in its own place, so that one file can hold both, and every bit of it counts: the length of the
header, its blanks, every number. Bases of before there was one have none.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from indexer.weights.safetensors_header import MOST_HEADER

UNKNOWN = "0" * 64

_NOTE = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # within the notes of the base itself every quote is escaped


def with_checksum(header: bytes, data: Path) -> bytes:
    """``header`` (length and JSON, with UNKNOWN as its checksum) with that of the file it makes with ``data``."""
    digest = hashlib.sha256(header)
    with data.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    start, stop = _place(header)
    return header[:start] + digest.hexdigest().encode() + header[stop:]


def stated_checksum(path: Path) -> str | None:
    """The checksum that the header names, unchecked; None where there is none. Raises OSError."""
    found = _NOTE.search(_header(path))
    return found[1].decode() if found else None


def actual_checksum(path: Path) -> str:
    """The checksum of the file as it is. Raises OSError, and ValueError where its header names none."""
    header = _header(path)
    start, stop = _place(header)
    digest = hashlib.sha256(header[:start] + UNKNOWN.encode() + header[stop:])
    with path.open("rb") as file:
        file.seek(len(header))
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _header(path: Path) -> bytes:
    """The length and what is that long, up to what a header may have."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), MOST_HEADER))


def _place(header: bytes) -> tuple[int, int]:
    found = _NOTE.search(header)
    if found is None:
        raise ValueError("no checksum")
    return found.span(1)
