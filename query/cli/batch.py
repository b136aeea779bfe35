"""Many models in one command: ids on stdin, a progress bar on stderr, a row with an error for each failure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from indexer.console.advice import for_command_line
from indexer.console.terminal import Progress, emit, say
from indexer.errors import AtlasError
from query.results import Answered
from query.texts import read_stdin, text_of

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.predict.result import Prediction
    from query.results import Result

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
                    named = (note if one.asked in note else f"{one.asked}: {note}" for note in one.answer.notes)
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


def predict_batch(
    opened: Atlas, names: Sequence[str] | None, store: bool, output: str, options: Mapping[str, Any]
) -> None:
    """Print predictions for ``names``, or for the models of a base without a dataset; a table has only the best answer.

    Raises AtlasError at the end if a model has no answer.
    """
    from query.atlas import generations
    from query.predict.predict import assumed_share, undocumented

    asked = generations(opened).asked(undocumented, options["base"]) if names is None else names
    count = len(asked)
    if not count:
        emit([], output)
        return
    kept: list[Prediction] = []

    def rows(name: str, prediction: Prediction) -> list[dict[str, Any]]:
        kept.append(prediction)
        model = {"model": prediction.model}
        if output != "table":
            return [model | row for row in prediction.to_rows()]
        best = prediction.answers[0]
        answer = {"dataset": best.dataset, "probability": best.probability}
        counts = {"agreement": prediction.agreement(best), "authors": best.authors}
        return [(model if name != prediction.model else {}) | answer | counts]

    try:
        with Progress(count, "models") as progress:
            many = opened.predict_many(names, on_progress=lambda _: progress.update(1), **options)
        print_batch(many, count, output, rows)
        if assumed := assumed_share(kept):
            say(assumed)
        if output == "table":
            say("the first answer for each model; every answer: --format jsonl")
    finally:
        # After printing: if another process is writing, the answers are not lost.
        if store:
            store_predictions(opened, kept)


def store_predictions(opened: Atlas, predictions: Sequence[Prediction]) -> None:
    """Store them in the atlas, and print how many."""
    from query.atlas import generations
    from query.predict.predict import keep

    stored = generations(opened).asked(keep, predictions)
    skipped = len(predictions) - stored
    say(f"the atlas keeps the predictions for {stored} models")
    if skipped:
        say(f"{skipped} predictions were skipped because the atlas does not contain their models")
