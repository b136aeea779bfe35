"""What the questions on the command line share: options, the opened atlas, and how an answer is printed."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base, complete_model, complete_representation
from indexer.console.terminal import atlas_option, clean, emit, output_options, say
from indexer.errors import require

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.results import Drawn, Result, ThemeName

LONGEST_LINE = 100  # columns; longer sentences are broken on a wide terminal
ROWS_ON_A_TERMINAL = 40

model_argument = click.argument("model", shell_complete=complete_model)
optional_model = click.argument("model", required=False, shell_complete=complete_model)
base_option = click.option(
    "--base", metavar="ID", shell_complete=complete_base,
    help="Base model, by old or new id. Needed if the atlas holds several.",
)  # fmt: skip
details_option = click.option("--details", is_flag=True, help="Show everything in the table.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"Maximum number of rows. Default: {ROWS_ON_A_TERMINAL} on a terminal, else all.",
)
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed.")
theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the picture."
)


def out_option(help_text: str = "Also draw it: .png, .svg or .pdf.", required: bool = False) -> Any:
    """``--out FILE``."""
    return click.option("--out", metavar="FILE", required=required, help=help_text)


def neighbours_option(help_text: str, default: int | None = 10, *names: str) -> Any:
    """``-k N``."""
    kind = click.IntRange(min=1)
    return click.option(
        "-k", "--neighbours", *names, "k", default=default, show_default=default is not None, type=kind, help=help_text
    )


def method_option(help_text: str) -> Any:
    """``--method`` of a map."""
    usual = "tsne below 1,000 models, else umap"
    return click.option("--method", type=click.Choice(["umap", "tsne", "pca"]), show_default=usual, help=help_text)


class _Representation(click.Option):
    """Loads the registry of representations only when --help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its text in ``--help``."""
        from indexer.records.representation import REPRESENTATIONS

        self.help = f"Vectors to use: {', '.join(REPRESENTATIONS)}."
        return super().get_help_record(ctx)


representation_option = click.option(
    "--representation",
    default="input",
    show_default=True,
    metavar="NAME",
    cls=_Representation,
    shell_complete=complete_representation,
    help="Vectors to use.",
)


class Question(click.Command):
    """A command whose help explains the columns of its answer."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The columns, then the example."""
        from query.glossary import columns_of

        if columns := columns_of(self.name or ""):
            with formatter.section("Columns"):
                formatter.write_dl(columns)
        super().format_epilog(ctx, formatter)


def question(*options: Callable[[Any], Any], name: str | None = None) -> Callable[[Callable[..., None]], click.Command]:
    """A command with these arguments and options, then ``--atlas`` and how to print the answer."""

    def command_of(ask: Callable[..., None]) -> click.Command:
        for option in reversed((*options, atlas_option, output_options)):
            ask = option(ask)
        return click.command(name, cls=Question)(ask)

    return command_of


def picture_file(out: str | None) -> Path | None:
    """The file of ``--out``, checked before any work is done.

    Raises AtlasError for another suffix, no folder, or if matplotlib is not installed.
    """
    from query.figures import checked_output

    file = checked_output(out) if out else None
    if file is not None:
        require("A picture", "matplotlib")
    return file


def opened_atlas(folder: str) -> Atlas:
    """The atlas in ``folder``, opened; its notes are printed on stderr."""
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
    theme: ThemeName | None = None,
    rows: list[dict[str, Any]] | None = None,
    whole: Any = None,
    table: Any = None,
) -> None:
    """Print a result in the format asked for, then its notes on stderr.

    ``rows``, ``whole`` and ``table``: what CSV and JSON lines, JSON, and a table show instead of the defaults.
    ``file``: where its picture is; with a ``theme`` it is written here.
    """
    if file is not None and theme is not None:
        cast("Drawn", result).write(file, theme=theme)
    written = {"file": str(file)} if file else {}
    if output == "table":
        shown = result.table(details=details) if table is None else table
        if isinstance(shown, dict):
            shown = {name: value for name, value in shown.items() if name != "notes"}  # they are printed below
        if result.SHOW_HEADLINE and result.headline:
            print_sentence(result.headline)
        emit({**shown, **written} if isinstance(shown, dict) else shown, output,
             columns=result.COLUMNS if shown == [] else None, optional_columns=result.OPTIONAL_COLUMNS)  # fmt: skip
    elif output == "json":
        answer = result.to_json() if whole is None else whole
        if isinstance(answer, dict):
            if isinstance(answer.get("notes"), list):
                answer = answer | {"notes": [for_command_line(note) for note in answer["notes"]]}
            answer = {**answer, **written}
        emit(answer, output)
    else:
        emit(result.to_rows() if rows is None else rows, output, columns=result.COLUMNS)
    for note in dict.fromkeys(result.notes):
        say(for_command_line(note))


def print_sentence(sentence: str) -> None:
    """Print a sentence and an empty line; broken into lines on a terminal, whole if piped."""
    words = clean(for_command_line(sentence).replace("\u00a0", " "))
    is_terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, LONGEST_LINE)
    click.echo((textwrap.fill(words, width, break_on_hyphens=False) if is_terminal else words) + "\n")
