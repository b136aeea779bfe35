"""Many models in one command: ids on stdin, a progress bar on stderr, a row with an error for each failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from indexer.console.advice import for_command_line
from indexer.console.terminal import Progress, emit, say
from indexer.errors import AtlasError, Text
from query.models.texts import read_stdin, text_of

if TYPE_CHECKING:
    from query.contract.results import Answered, Result

MOST_STDIN = 64 << 20
LONGEST_LINE = 4096  # characters, the longest path that Linux takes
_MOST_NOTES = 20  # about all models of a batch together
R = TypeVar("R", bound="Result")


def names_on_stdin() -> list[str]:
    """The models on stdin, one per line; blank lines and text after # are ignored, overlong lines are cut.

    Raises AtlasError if stdin has no model or more than MOST_STDIN bytes.
    """
    if sys.stdin.isatty():
        raise click.UsageError("- reads models from stdin, one per line: query … - < models.txt")
    lines = text_of(read_stdin(MOST_STDIN)).split("\n")
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    names = [name if len(name) <= LONGEST_LINE else f"{name[:100]}… ({len(name):,} characters)" for name in names]
    if not names:
        raise AtlasError("No model came on stdin.", "Give one per line, e.g. owner/name.")
    return names


def print_batch(
    found: Iterable[Answered[R]], count: int, output: str, rows_of: Callable[[str, R], list[dict[str, Any]]]
) -> None:
    """Print the rows of each answer at once, or a row with its error. Raises AtlasError if a model has no answer."""
    failed = 0
    notes: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal failed
        # Answers that are all there already have shown their progress.
        with nullcontext() if isinstance(found, list) else Progress(count, "models") as progress:
            for one in found:
                if one.answer is not None:
                    yield from ({"asked": one.asked} | row for row in rows_of(one.asked, one.answer))
                    named = (note if one.asked in note else Text(f"{one.asked}: ", note) for note in one.answer.notes)
                    notes.extend(named)
                else:
                    failed += 1
                    yield {"asked": one.asked, "error": for_command_line(one.error or "")}
                if progress is not None:
                    progress.update(1)

    emit(rows(), output)
    for note in notes[:_MOST_NOTES]:
        say(for_command_line(note))
    if len(notes) > _MOST_NOTES:
        say(f"… and {len(notes) - _MOST_NOTES:,} more notes")
    if failed:
        raise AtlasError(f"No answer for {failed} of {count} models.", "The column error of their rows says why.")
