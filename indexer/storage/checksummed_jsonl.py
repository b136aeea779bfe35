"""JSON objects with a checksum: one per line of an exported file, one per file in place of a record.

The checksum is the last key, ``"sum": "<16 hex digits of sha256>"``, over the bytes of the object without it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from indexer.errors import WRONG_KINDS
from indexer.regular_files import open_regular
from indexer.storage.atomic_files import replacing
from indexer.untrusted import load_json

_CHECKSUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}\Z')
_MOST_LINE = 64 << 20  # bytes; an answer of the Hub is shorter
MOST_PROBLEMS = 100


def add_checksum(text: str) -> bytes:
    """``text`` (a JSON object with at least one key, in ASCII) with its checksum."""
    body = text.encode("ascii")
    return body[:-1] + b',"sum":"' + _sum(body) + b'"}'


def parse_checksummed(line: bytes) -> dict[str, Any]:
    """The object without its checksum. Raises ValueError if the checksum is missing or wrong, or for other JSON."""
    match = _CHECKSUM.search(line)
    if match is None:
        raise ValueError("it has no checksum")
    line = line[: match.start()] + b"}"
    if _sum(line) != match[1]:
        raise ValueError("its checksum does not match")
    value = load_json(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


class LineReader:
    """The objects in the lines of a file, one by one. A missing file has no lines.

    ``most``: the most bytes that the file may have. ``problems``: of lines that cannot be read, at most 100.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self.most = most
        self.problems: list[str] = []

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines that can be read, with their numbers."""
        try:
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size > self.most:
                    raise OSError(errno.EFBIG, f"it has more than {self.most:,} bytes")
                yield from self._lines(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self.problems.append(f"cannot be read: {error.strerror or error}")

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        while line := file.readline(_MOST_LINE + 1):
            number, end = number + 1, line
            while len(end) > _MOST_LINE and not end.endswith(b"\n"):  # skip the rest of a long line
                end = file.readline(_MOST_LINE + 1)
            if len(line) > _MOST_LINE:
                self.note(number, f"it has more than {_MOST_LINE:,} bytes")
                continue
            try:
                value = parse_checksummed(line.removesuffix(b"\n"))
            except WRONG_KINDS as error:
                self.note(number, error)
                continue
            if not line.endswith(b"\n"):
                self.problems.append("its last line is cut short")
            yield number, value

    def note(self, number: int, why: object) -> None:
        """Add the problem of a line."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(f"line {number} cannot be read: {why}"[:300])


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the file atomically, one object with a checksum per line. Raises OSError."""
    with replacing(path) as file:
        for line in lines:
            # ASCII, so that any text from the Hub can be written, lone surrogates included.
            file.write(add_checksum(json.dumps(dict(line), separators=(",", ":"))) + b"\n")


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()
