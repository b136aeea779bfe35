"""What a client of `query serve` writes, as the SDK can read it.

JSON may name half of a surrogate pair, U+D800 for example, and programs that cut texts do so. The SDK refuses the whole
line and answers nothing, so that the client waits for ever. Here each is replaced by U+FFFD.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_ESCAPE = re.compile(rb"\\u[dD][89abAB-Fc-f]")
_HALF = re.compile("[\ud800-\udfff]")


def without_halves(line: bytes) -> bytes:
    """A line of JSON without halves of surrogate pairs; one that is not JSON is returned as it is."""
    if not _ESCAPE.search(line):
        return line
    try:
        return json.dumps(_mended(json.loads(line))).encode() + b"\n"
    except (ValueError, RecursionError):
        return line


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(one) for name, one in value.items()}
    return value


class Requests(io.RawIOBase):
    """The lines of a stream, each as ``without_halves`` gives it."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the next bytes; the number of bytes, 0 at the end."""
        self._rest = self._rest or without_halves(self._lines.readline())
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


@contextmanager
def readable_stdin() -> Iterator[None]:
    """In this block ``sys.stdin`` gives requests that the SDK can read, and descriptor 0 nothing to anybody else."""
    before = sys.stdin
    kept, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        # Not closed: a thread may still wait for it at the end.
        lines = os.fdopen(kept, "rb", closefd=False)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(Requests(lines)), encoding="utf-8", errors="replace")
        yield
    finally:
        os.dup2(kept, 0)
        sys.stdin = before
