"""The output of questions on the command line: notes of the atlas, the answer, and the columns in --help."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from indexer.console.advice import for_command_line
from indexer.console.terminal import clean, emit, say
from indexer.errors import require

if TYPE_CHECKING:
    from query.contract.results import Drawn, Result, ThemeName
    from query.faces.atlas import Atlas

LONGEST_LINE = 100  # columns; longer sentences are broken on a wide terminal


class QuestionCommand(click.Command):
    """A command whose help explains the columns of its answers.

    Attributes:
        example: a command line without the program.
        answers: returns the classes of the answers.
    """

    example = ""
    answers: Callable[[], Sequence[type[Any]]] = tuple

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The columns, then the example."""
        from query.contract.glossary import documented

        if columns := documented(self.answers()):
            with formatter.section("Columns"):
                formatter.write_dl(list(columns.items()))
        super().format_epilog(ctx, formatter)


def picture_file(out: str | None) -> Path | None:
    """The file of ``--out``, checked before any work is done.

    Raises AtlasError for another suffix, a missing folder, or if matplotlib is not installed.
    """
    from query.contract.figures import checked_output

    file = checked_output(out) if out else None
    if file is not None:
        require("A picture", "matplotlib")
    return file


def opened_atlas(folder: str) -> Atlas:
    """Open the atlas in ``folder``, and print its notes on stderr."""
    from query.faces.atlas import Atlas

    opened = Atlas(folder)
    for note in opened.notes:
        say(note)
    return opened


def print_result(
    result: Result,
    output: str,
    *,
    details: bool = False,
    file: Path | None = None,
    theme: ThemeName | None = None,
    rows: list[dict[str, Any]] | None = None,
    whole: Any = None,
    table: Any = None,
) -> None:
    """Print a result in the format ``output``, then its notes on stderr.

    Args:
        result: the answer.
        output: table, json, jsonl or csv.
        details: show everything in the table.
        file: the file of its picture, which is printed, too; it is written if there is a ``theme``.
        theme: the colours of the picture.
        rows: for CSV and JSON lines, instead of ``result.to_rows()``.
        whole: for JSON, instead of ``result.to_json()``.
        table: for a table, instead of ``result.table()``.
    """
    if file is not None and theme is not None:
        cast("Drawn", result).write(file, theme=theme)
    extra = {"file": str(file)} if file else {}
    if output == "table":
        content = result.table(details=details) if table is None else table
        if isinstance(content, dict):
            content = {name: value for name, value in content.items() if name != "notes"}  # they are printed below
        if result.SHOW_HEADLINE and result.headline:
            print_sentence(result.headline)
        emit({**content, **extra} if isinstance(content, dict) else content, output,
             columns=result.COLUMNS if content == [] else None, optional_columns=result.OPTIONAL_COLUMNS)  # fmt: skip
    elif output == "json":
        answer = result.to_json() if whole is None else whole
        if isinstance(answer, dict):
            if isinstance(answer.get("notes"), list):
                answer = answer | {"notes": [for_command_line(note) for note in answer["notes"]]}
            answer = {**answer, **extra}
        emit(answer, output)
    else:
        emit(result.to_rows() if rows is None else rows, output, columns=result.COLUMNS)
    for note in dict.fromkeys(result.notes):
        say(for_command_line(note))


def print_sentence(sentence: str) -> None:
    """Print a sentence and an empty line. On a terminal the sentence is wrapped."""
    words = clean(for_command_line(sentence).replace("\u00a0", " "))
    is_terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, LONGEST_LINE)
    click.echo((textwrap.fill(words, width, break_on_hyphens=False) if is_terminal else words) + "\n")
