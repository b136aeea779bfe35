"""Many models in one command: a progress bar on stderr, a row with an error for each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from indexer.console.advice import for_command_line
from indexer.console.terminal import Progress, emit, say
from indexer.errors import AtlasError, Text

if TYPE_CHECKING:
    from query.contract.results import Answered, Result

_MOST_NOTES = 20  # about all models of a batch together
R = TypeVar("R", bound="Result")


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
