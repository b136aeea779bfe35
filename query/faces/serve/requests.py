"""The input of `query serve`, changed so that the SDK can read it.

JSON may contain half of a surrogate pair as an escape, U+D800 for example; programs that cut texts write it. The SDK
refuses the whole line without an answer, so that the client waits for ever. Here U+FFFD replaces each such half.
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
    """A line of JSON without halves of surrogate pairs; any other line is returned unchanged."""
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
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(item) for name, item in value.items()}
    return value


class Requests(io.RawIOBase):
    """The lines of a stream after ``without_halves``."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with the next bytes; return their number, 0 at the end."""
        self._rest = self._rest or without_halves(self._lines.readline())
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


@contextmanager
def readable_stdin() -> Iterator[None]:
    """Within this block ``sys.stdin`` gives requests that the SDK can read; descriptor 0 is empty for other readers."""
    former_stdin = sys.stdin
    descriptor, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        # The descriptor stays open: a thread may still wait for it at the end.
        lines = os.fdopen(descriptor, "rb", closefd=False)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(Requests(lines)), encoding="utf-8", errors="replace")
        yield
    finally:
        os.dup2(descriptor, 0)
        sys.stdin = former_stdin
