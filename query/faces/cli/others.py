"""The commands of `query` that are not questions: explanations of words and tables, and servers for other faces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from indexer.console.option import click_parameter
from indexer.console.terminal import atlas_option, emit, handle_sigterm, output_options, say
from indexer.errors import AtlasError, require
from query.contract.options import Base
from query.faces.cli.printing import LONGEST_LINE, QuestionCommand, opened_atlas, print_sentence

Command = TypeVar("Command", bound=Callable[..., Any])
METHODS = ("umap", "tsne", "pca")


def described_option(name: str, annotation: Any) -> Callable[[Command], Command]:
    """A decorator that adds the option of an argument shared by questions, with the default None."""

    def decorated(command: Command) -> Command:
        option = click_parameter(name, annotation.__origin__, annotation.__metadata__[0], None)
        command.__click_params__ = [*getattr(command, "__click_params__", ()), option]  # type: ignore[attr-defined]
        return command

    return decorated


@click.command(cls=QuestionCommand)
@click.argument("name", required=False)
@atlas_option
@output_options
def schema(name: str | None, atlas: str, output: str) -> None:
    """List the tables, views and macros for `query sql`, or the columns of the one called NAME.

    All atlases of this version have the same. An atlas is opened only if it is named with --atlas.
    """
    from query.contract.glossary import schema as schema_of

    if click.get_current_context().get_parameter_source("atlas") is ParameterSource.COMMANDLINE:
        with opened_atlas(atlas):
            pass
    rows = schema_of(name)
    if output != "table" or not sys.stdout.isatty():
        emit(rows, output)
        return
    # A table would cut the comments to the width of the terminal.
    formatter = click.HelpFormatter(max_width=LONGEST_LINE)
    formatter.write_dl([(" ".join(filter(None, parts)), comment) for *parts, comment in map(dict.values, rows)])
    click.echo(formatter.getvalue(), nl=False)


@click.command("help", cls=QuestionCommand)
@click.argument("word", required=False)
@output_options
@click.pass_context
def explain_word(context: click.Context, word: str | None, output: str) -> None:
    """Explain WORD: a term, a column of an answer or of the database, or a command. Without WORD: list the terms."""
    from query.contract.glossary import explained, words

    group = context.parent.command if context.parent else None
    is_command = isinstance(group, click.Group) and word in group.commands  # imports no question
    try:
        explanations = (
            explained(word) if word else [{"word": term, "meaning": meaning} for term, meaning in words().items()]
        )
    except AtlasError:
        command = group.get_command(context, word) if isinstance(group, click.Group) and word and is_command else None
        if command is None:
            raise
        with click.Context(command, info_name=command.name, parent=context.parent) as inner:
            click.echo(command.get_help(inner))
        return
    if output != "table":
        emit(explanations, output)
        return
    for explanation in explanations:
        where = f" ({explanation['where']})" if explanation.get("where") else ""
        print_sentence(f"{explanation['word']}{where}: {explanation['meaning']}")
    if is_command:
        say(f"the command {word}: query {word} --help")


@click.command(cls=QuestionCommand)
@click.option("--mcp", is_flag=True, expose_value=False, help="Use the Model Context Protocol (the only choice).")
@click.option("--folders", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Let agents also read models from folders in DIR. By default they read no folder.")  # fmt: skip
@atlas_option
def serve(folders: Path | None, atlas: str) -> None:
    """Serve the questions to agents as read-only tools, over the Model Context Protocol on stdin and stdout.

    In the settings of a client, write the command "query" with the arguments "serve --atlas /path/to/atlas" (or
    hf://OWNER/NAME).
    """
    from query.faces.serve.mcp import serve as answer

    with opened_atlas(atlas) as opened:
        answer(opened, folders)


@click.command(cls=QuestionCommand)
@described_option("base", Base)
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port. Default: any free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser, or only print the address.")
@click.option(
    "--method", type=click.Choice(METHODS), show_default="tsne below 1,000 models, else umap",
    help="Projection method of the map.",
)  # fmt: skip
@atlas_option
def browse(base: str | None, port: int, opens: bool, method: str | None, atlas: str) -> None:
    """Explore the atlas on a local page: the map, a table and histograms of all models, and everything about each.

    The page is served to this machine only, until Ctrl-C. The printed address contains its key.
    """
    require("Browsing", "starlette", "uvicorn")
    from query.faces.browse.server import browse as serve

    handle_sigterm()

    def on_start(address: str) -> None:
        click.echo(address)
        say("press Ctrl-C to stop")

    with opened_atlas(atlas) as opened:
        try:
            serve(opened, base, port=port, opens=opens, method=method, on_address=on_start)
        except KeyboardInterrupt as stop:
            raise type(stop)("the page is no longer served.") from stop


def _rows_of_schema() -> tuple[type[Any], ...]:
    from query.contract.glossary import SchemaColumn, SchemaObject

    return SchemaObject, SchemaColumn


OTHERS = (schema, explain_word, serve, browse)
for _command, _example in (
    (schema, "schema models"),
    (explain_word, "help background"),
    (serve, "serve --atlas ./atlas"),
    (browse, "browse --base roberta-base"),
):
    _command.example = _example
schema.answers = _rows_of_schema
