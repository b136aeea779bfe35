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
    answers: Iterable[Answered[R]], count: int, output: str, rows_of: Callable[[str, R], list[dict[str, Any]]]
) -> None:
    """Print the rows of each answer at once, or a row with its error. Raises AtlasError if a model has no answer."""
    failed = 0
    notes: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal failed
        # Answers that are all there already have shown their progress.
        with nullcontext() if isinstance(answers, list) else Progress(count, "models") as progress:
            for entry in answers:
                if entry.answer is not None:
                    yield from ({"asked": entry.asked} | row for row in rows_of(entry.asked, entry.answer))
                    entry_notes = (
                        note if entry.asked in note else Text(f"{entry.asked}: ", note) for note in entry.answer.notes
                    )
                    notes.extend(entry_notes)
                else:
                    failed += 1
                    yield {"asked": entry.asked, "error": for_command_line(entry.error or "")}
                if progress is not None:
                    progress.update(1)

    emit(rows(), output)
    for note in notes[:_MOST_NOTES]:
        say(for_command_line(note))
    if len(notes) > _MOST_NOTES:
        say(f"… and {len(notes) - _MOST_NOTES:,} more notes")
    if failed:
        raise AtlasError(f"No answer for {failed} of {count} models.", "The column error of their rows says why.")
