"""Tables in Markdown and for a terminal, and the marked parts of documents that are filled with them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Sequence[str]]  # the first row is the head


def markdown(rows: Rows) -> str:
    """A table in Markdown; what would end a cell or a line is escaped."""
    lines = [" | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([f"| {lines[0]} |", "|---" * len(rows[0]) + "|", *(f"| {line} |" for line in lines[1:])])


def aligned(rows: Rows) -> str:
    """A table for a terminal: the first column to the left, the others, which are mostly numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def decimal(number: float | None, digits: int = 3) -> str:
    """A number without the zero before the point, as ".912"; a dash for None."""
    return "–" if number is None else re.sub(r"^(-?)0\.", r"\1.", f"{number:.{digits}f}")


def p_value(value: float, permutations: int = 100_000, digits: int = 2) -> str:
    """A p-value of random permutations: (1 + reached)/(1 + permutations), and only a bound where none reached it."""
    is_bound = value * (1 + permutations) < 1.5
    return f"{'≤ ' if is_bound else ''}{value:.{1 if is_bound else digits}g}"


def fill(path: Path, parts: Mapping[str, str]) -> None:
    """Write ``filled`` into a document. Raises ValueError if it lacks a part; then nothing is written."""
    try:
        text = filled(path.read_text(encoding="utf-8"), parts)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None
    path.write_text(text, encoding="utf-8")


def write_from_run(
    parser: argparse.ArgumentParser, run: Path, write: Callable[[dict[str, Any]], None], document: Path
) -> int:
    """What ``--doc`` does: ``write`` the document from the JSON of a run; 0, or a usage error of ``parser``."""
    try:
        write(json.loads(run.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{run}: {error!r}")
    print(f"{document} is filled from {run}", file=sys.stderr)
    return 0


def filled(document: str, parts: Mapping[str, str]) -> str:
    """A document with each text between its markers, ``<!-- name -->`` and ``<!-- /name -->``.

    Parts with names like ``family:member`` end with ``<!-- /family -->``. Raises ValueError if a marker is missing.
    """
    for name, body in parts.items():
        end = name.partition(":")[0]
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{end} -->)", re.DOTALL)
        found = pattern.search(document)
        if found is None:
            raise ValueError(f"has no part <!-- {name} --> … <!-- /{end} -->")
        document = f"{document[: found.start()]}{found[1]}{body}\n{found[2]}{document[found.end() :]}"
    return document
