"""What every question on the command line begins and ends with: which atlas and base, and how the answer is told."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base, complete_representation
from indexer.console.terminal import clean, emit, say

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.results import Result

LONGEST_LINE = 100  # columns that sentences are broken at on a wide terminal
details_option = click.option("--details", is_flag=True, help="All there is to say in the table.")

ROWS_ON_A_TERMINAL = 40
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help=f"Most rows; default {ROWS_ON_A_TERMINAL} on a terminal, else all."
)
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of chance.")
theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the picture."
)


def base_option(required: bool = False) -> Any:
    """``--base ID``."""
    text = "Base model, by old or new id." + ("" if required else " Needed where the atlas holds several.")
    return click.option("--base", required=required, metavar="ID", shell_complete=complete_base, help=text)


class _Representation(click.Option):
    """Its help names what the registry holds, which only whoever asks for help waits for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The two columns of ``--help``."""
        from indexer.records.representation import REPRESENTATIONS

        self.help = f"Which vectors: {', '.join(REPRESENTATIONS)}."
        return super().get_help_record(ctx)


representation_option = click.option(
    "--representation",
    default="input",
    show_default=True,
    metavar="NAME",
    cls=_Representation,
    shell_complete=complete_representation,
    help="Which vectors.",
)


class Question(click.Command):
    """A command whose help says what the columns of its answer mean."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The columns, then the example."""
        from query.glossary import columns_of

        if columns := columns_of(self.name or ""):
            with formatter.section("Columns"):
                formatter.write_dl(columns)
        super().format_epilog(ctx, formatter)


def opened_atlas(folder: str) -> Atlas:
    """The atlas in ``folder``, opened; what is odd about it is said on stderr."""
    from query.atlas import Atlas

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
    rows: list[dict[str, Any]] | None = None,
    whole: Any = None,
    table: Any = None,
) -> None:
    """Print a result in the format asked for, then its notes on stderr.

    ``rows``, ``whole`` and ``table``: what CSV and JSON lines, JSON, and a table show, where that is not what the
    result gives when asked for nothing in particular. ``file``: where its picture was written.
    """
    written = {"file": str(file)} if file else {}
    if output == "table":
        shown = result.table(details=details) if table is None else table
        if isinstance(shown, dict):
            shown = {name: value for name, value in shown.items() if name != "notes"}  # they follow in sentences
        if result.SHOW_HEADLINE and result.headline:
            print_sentence(result.headline)
        emit({**shown, **written} if isinstance(shown, dict) else shown, output,
             columns=result.COLUMNS if shown == [] else None, optional_columns=result.OPTIONAL_COLUMNS)  # fmt: skip
    elif output == "json":
        told = result.to_json() if whole is None else whole
        told = told | {"notes": [for_command_line(note) for note in told["notes"]]} if _has_notes(told) else told
        emit({**told, **written} if isinstance(told, dict) else told, output)
    else:
        emit(result.to_rows() if rows is None else rows, output, columns=result.COLUMNS)
    for note in dict.fromkeys(result.notes):
        say(for_command_line(note))


def _has_notes(told: Any) -> bool:
    return isinstance(told, dict) and isinstance(told.get("notes"), list)


def print_sentence(sentence: str) -> None:
    """A sentence and an empty line; broken where a terminal ends, whole where it is piped."""
    words = clean(for_command_line(sentence).replace("\u00a0", " "))
    is_terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, LONGEST_LINE)
    click.echo((textwrap.fill(words, width, break_on_hyphens=False) if is_terminal else words) + "\n")
