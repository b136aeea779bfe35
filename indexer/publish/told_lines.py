"""Lines of what questions told of models, as the atlas keeps them: one sealed JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from indexer.errors import WRONG_KINDS
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.storage.checksummed_jsonl import add_checksum, parse_checksummed

Line = dict[str, Any]

_MOST_BYTES = 256 << 20
_MOST_PROBLEMS = 100

# Keys of lines that versions before schema 7 wrote.
_RENAMED = {"told": "answered_at", "because": "evidence"}


def write_told(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Put the file in place. Raises OSError."""
    text = (json.dumps(dict(line), sort_keys=True, allow_nan=False) for line in lines)
    write_atomically(path, b"".join(add_checksum(one) + b"\n" for one in text))


def read_told(path: Path, checked: Callable[[Line], Line] = dict) -> tuple[list[Line], list[str]]:
    """The lines that can be read, and what is wrong with the others, by number; nothing where there is no file.

    ``checked`` gives a line as it is used; it raises one of WRONG_KINDS where this program does not write such a line.
    Whether the values fit the table is for the table to say.
    """
    try:
        content = read_regular(path, most=_MOST_BYTES)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"cannot be read: {error.strerror}"]
    lines: list[Line] = []
    problems: list[str] = []
    for number, raw in enumerate(content.split(b"\n"), start=1):
        if not raw:
            continue
        try:
            lines.append(checked({_RENAMED.get(key, key): value for key, value in parse_checksummed(raw).items()}))
        except WRONG_KINDS as error:
            if len(problems) < _MOST_PROBLEMS:
                problems.append(f"line {number} cannot be read: {error}"[:300])
    if content and not content.endswith(b"\n"):
        problems.append("its last line is cut short")
    return lines, problems
