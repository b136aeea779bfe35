"""The commands that list and serve what an atlas has, and those about SQL and words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from indexer.console.terminal import FiniteRange, atlas_option, emit, handle_sigterm, output_options, say
from indexer.errors import AtlasError, require
from query.cli.options import (
    LONGEST_LINE,
    ROWS_ON_A_TERMINAL,
    Question,
    base_option,
    limit_option,
    method_option,
    opened_atlas,
    out_option,
    print_sentence,
    question,
)
from query.sandbox.process import MOST_STATEMENT
from query.texts import read_stdin, text_of

if TYPE_CHECKING:
    from query.atlas import Atlas, Inventory

_search_argument = click.argument("search", required=False, default="")


@question(
    _search_argument,
    click.option("--dataset", metavar="NAME", help="Only models tuned on this dataset."),
    base_option,
    limit_option,
)
def models(search: str, dataset: str | None, base: str | None, limit: int | None, atlas: str, output: str) -> None:
    """List the indexed models, most downloads first: all, or those whose id contains SEARCH.

    For any other condition: query sql "SELECT … FROM models WHERE …".
    """
    with opened_atlas(atlas) as opened:
        _list(opened, opened.models(search, dataset=dataset, base=base), output, limit)


@question(_search_argument, base_option, limit_option)
def datasets(search: str, base: str | None, limit: int | None, atlas: str, output: str) -> None:
    """List the datasets that indexed models name, most models first: all, or those whose name contains SEARCH."""
    with opened_atlas(atlas) as opened:
        _list(opened, opened.datasets(search, base=base), output, limit)


def _list(atlas: Atlas, found: Inventory, output: str, limit: int | None) -> None:
    """Print the models or datasets; on a terminal, the first of them."""
    if limit is None and output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    columns = [one for one in found.columns if one != "base" or output != "table" or len(atlas.bases()) > 1]
    shown = [{name: row[name] for name in columns} for row in found[:limit]]
    emit(shown, output, columns=columns, optional_columns=found.OPTIONAL_COLUMNS)
    if len(shown) < len(found):
        say(f"the first {len(shown)} of {len(found):,} are shown; for all: --limit N, --format csv, or a pipe")


@question(
    click.argument("statement"),
    limit_option,
    click.option(
        "--timeout", default=30.0, show_default=True, type=FiniteRange(min=0.1), help="Time limit in seconds."
    ),
    out_option("Write the rows to a file instead: .parquet, .csv, .json or .jsonl."),
)
def sql(statement: str, limit: int | None, timeout: float, out: str | None, atlas: str, output: str) -> None:
    """Run one SELECT statement; "-" reads it from stdin. For tables and columns: query schema."""
    if out is not None:
        from query.figures import checked_output
        from query.tables import FORMATS

        checked_output(out, FORMATS)
    elif limit is None and output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    if statement == "-":
        # UTF-8 in every locale. Other bytes stay as escapes, which `Atlas.sql` refuses with a clear message.
        statement = text_of(read_stdin(4 * MOST_STATEMENT), "surrogateescape")
    with opened_atlas(atlas) as opened:
        found = opened.sql(statement, limit=limit, seconds=timeout)
        if out is not None:
            found.write(out)
            emit({"rows": len(found), "columns": found.columns, "file": out}, output)
            return
        emit(found.to_rows(), output, columns=found.columns)
        if found.truncated:
            say(f"only the first {limit} rows are shown; for all: --limit N, --format csv, or a pipe")


@question(click.argument("name", required=False))
def schema(name: str | None, atlas: str, output: str) -> None:
    """List the tables, views and macros for `query sql`, or the columns of the one called NAME.

    All atlases of this version have the same. An atlas is opened only if it is named with --atlas.
    """
    from query.glossary import schema as schema_of

    if click.get_current_context().get_parameter_source("atlas") is ParameterSource.COMMANDLINE:
        with opened_atlas(atlas):
            pass
    found = schema_of(name)
    if output != "table" or not sys.stdout.isatty():
        emit(found, output)
        return
    # A table would cut the comments to the width of the terminal.
    formatter = click.HelpFormatter(max_width=LONGEST_LINE)
    formatter.write_dl([(" ".join(filter(None, parts)), comment) for *parts, comment in map(dict.values, found)])
    click.echo(formatter.getvalue(), nl=False)


@click.command("help", cls=Question)
@click.argument("word", required=False)
@output_options
@click.pass_context
def explain_word(context: click.Context, word: str | None, output: str) -> None:
    """Explain WORD: a term, a column of an answer or of the database, or a command. Without WORD: list the terms."""
    from query.glossary import explained, words

    group = context.parent.command if context.parent else None
    command = group.get_command(context, word) if isinstance(group, click.Group) and word else None
    try:
        found = explained(word) if word else [{"word": term, "meaning": meaning} for term, meaning in words().items()]
    except AtlasError:
        if command is None:
            raise
        with click.Context(command, info_name=command.name, parent=context.parent) as inner:
            click.echo(command.get_help(inner))
        return
    if output != "table":
        emit(found, output)
        return
    for one in found:
        print_sentence(f"{one['word']}{' (' + one['where'] + ')' if one.get('where') else ''}: {one['meaning']}")
    if command is not None:
        say(f"the command {word}: query {word} --help")


@click.command()
@click.option("--mcp", is_flag=True, expose_value=False, help="Use the Model Context Protocol (the only choice).")
@click.option("--folders", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Let agents also read models from folders in DIR. By default they read no folder.")  # fmt: skip
@atlas_option
def serve(folders: Path | None, atlas: str) -> None:
    """Serve the questions to agents as read-only tools, over the Model Context Protocol on stdin and stdout.

    In the settings of a client, write the command "query" with the arguments "serve --atlas /path/to/atlas" (or
    hf://OWNER/NAME).
    """
    from query.serve.mcp import serve as answer

    with opened_atlas(atlas) as opened:
        answer(opened, folders)


@click.command()
@base_option
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port. Default: any free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser, or only print the address.")
@method_option("Projection method of the map.")
@atlas_option
def browse(base: str | None, port: int, opens: bool, method: str | None, atlas: str) -> None:
    """Explore the atlas on a local page: the map, a table and histograms of all models, and everything about each.

    The page is served to this machine only, until Ctrl-C. The printed address contains its key.
    """
    require("Browsing", "starlette", "uvicorn")
    from query.browse.server import browse as serve

    handle_sigterm()

    def on_start(address: str) -> None:
        click.echo(address)
        say("press Ctrl-C to stop")

    with opened_atlas(atlas) as opened:
        try:
            serve(opened, base, port=port, opens=opens, method=method, on_address=on_start)
        except KeyboardInterrupt as stop:
            raise type(stop)("the page is no longer served.") from stop


ATLAS = (models, datasets, sql, schema, explain_word, serve, browse)
