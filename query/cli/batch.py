"""Many models in one command: ids on stdin, a bar on stderr, a row with an error for one that cannot be answered."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from indexer.console.advice import for_command_line
from indexer.console.terminal import Progress, emit, say
from indexer.errors import AtlasError
from query.batches import Answered

STDIN = "-"
MOST_STDIN = 64 << 20
LONGEST_LINE = 4096  # characters, the longest path that Linux takes
MOST_NOTES = 20  # about all models of a batch together
SILENCE_SECONDS = 600.0
T = TypeVar("T")


def read_stdin(most: int, seconds: float = SILENCE_SECONDS) -> bytes:
    """All of stdin. Raises AtlasError if it has more than ``most`` bytes, or nothing comes for ``seconds``."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a stream in memory, as notebooks and tests have it
        found = sys.stdin.buffer.read(most + 1)
    else:
        found = bytearray()
        while len(found) <= most:
            if not select.select([descriptor], [], [], seconds)[0]:
                raise AtlasError(f"Nothing came on stdin for {seconds:g} s.", "Check the program that writes to it.")
            if not (piece := os.read(descriptor, 1 << 16)):
                break
            found += piece
    if len(found) > most:
        raise AtlasError(f"stdin holds more than {most:,} bytes.", "Send less at a time.")
    return bytes(found)


def names_on_stdin() -> list[str]:
    """A model a line; blank lines and what follows a # are no models. A line that no name can be is cut short.

    Raises AtlasError where stdin holds no model or more than MOST_STDIN bytes.
    """
    if sys.stdin.isatty():
        raise click.UsageError("- reads models from stdin, one a line: query … - < models.txt")
    lines = read_stdin(MOST_STDIN).decode("utf-8", "replace").split("\n")
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    names = [name if len(name) <= LONGEST_LINE else f"{name[:100]}… ({len(name):,} characters)" for name in names]
    if not names:
        raise AtlasError("No model came on stdin.", "Give one a line, e.g. owner/name.")
    return names


def print_batch(
    found: Iterable[Answered[T]], count: int, output: str, rows_of: Callable[[Answered[T]], list[dict[str, Any]]]
) -> None:
    """Print the rows of each answer as they come, or a row with its error. Raises AtlasError where one had none."""
    failed = []
    notes: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        with Progress(count, "models") as progress:
            for one in found:
                if one.error is None:
                    yield from rows_of(one)
                    notes.extend(_noted(one.asked, note) for note in getattr(one.answer, "notes", ()))
                else:
                    failed.append(one.asked)
                    yield {"asked": one.asked, "error": for_command_line(one.error)}
                progress.update(1)

    emit(rows(), output)
    for note in notes[:MOST_NOTES]:
        say(for_command_line(note))
    if len(notes) > MOST_NOTES:
        say(f"… and {len(notes) - MOST_NOTES:,} more notes")
    if failed:
        raise AtlasError(f"No answer for {len(failed)} of {count} models.", "Their rows say why (error).")


def _noted(asked: str, note: str) -> str:
    """A note that says which model it is about."""
    return note if asked in note else f"{asked}: {note}"
