"""The `query` command and its questions about single models, words and SQL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import AtlasGroup, FiniteRange, atlas_option, emit, output_options, say
from indexer.errors import AtlasError
from query.cli.batch import STDIN, names_on_stdin, print_batch, read_stdin
from query.cli.depths import DEPTHS
from query.cli.examples import EXAMPLES
from query.cli.lineage import lineage
from query.cli.models import MODELS
from query.cli.options import (
    ROWS_ON_A_TERMINAL,
    Question,
    base_option,
    details_option,
    limit_option,
    opened_atlas,
    out_option,
    picture_file,
    print_result,
    print_sentence,
    representation_option,
    theme_option,
)
from query.cli.serve import browse, serve
from query.cli.studies import STUDIES
from query.sandbox.process import MOST_STATEMENT

if TYPE_CHECKING:
    from query.batches import Answered
    from query.results import ThemeName
    from query.similar import SimilarModels


@click.group(cls=AtlasGroup, examples=EXAMPLES)
def main() -> None:
    """Ask an atlas of fine-tuned models."""


@main.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@click.option("-k", "--neighbours", "--limit", "k", default=10, show_default=True, type=click.IntRange(min=1),
              help="Number of nearest models to show.")  # fmt: skip
@click.option("--where", metavar="SQL", help='Only models that satisfy this condition, e.g. "downloads > 100".')
@click.option("--other-authors", is_flag=True, help="Leave out the model's own author.")
@representation_option
@base_option()
@click.option("--explain", is_flag=True, help="Show how much each layer and family contributes.")
@atlas_option
@output_options
def similar(model: str, atlas: str, output: str, **options: Any) -> None:
    """Find the models most similar to MODEL: an indexed id, any other Hub id, or a local checkpoint folder.

    If MODEL is "-", models are read from stdin, one per line.
    """
    if options["where"] is not None:
        from query.sql import prepare

        prepare()
    names = names_on_stdin() if model == STDIN else None
    with opened_atlas(atlas) as opened:
        if names is not None:
            many = opened.similar_many(names, options.pop("k"), **options)
            print_batch(many, len(names), output, lambda one: _batch_rows(one, output))
            return
        print_result(opened.similar(model, options.pop("k"), **options), output)


@main.command(cls=Question)
@base_option()
@representation_option
@click.option(
    "--by",
    type=click.Choice(["dataset", "model"]),
    default="dataset",
    show_default=True,
    help="Rows to print.",
)
@click.option("-k", "--neighbours", "k", type=click.IntRange(min=1),
              help="Number of nearest models to consider. Default: as many as share its dataset.")  # fmt: skip
@click.option("--no-kin", is_flag=True, help="Leave out models of the same family tree (after query lineage --all).")
@click.option("--confusions", is_flag=True, help="Print which datasets are mistaken for which, compared with chance.")
@out_option("Also draw it, by dataset: .png, .svg or .pdf.")
@theme_option
@details_option
@atlas_option
@output_options
def purity(
    base: str | None,
    representation: str,
    by: str,
    k: int | None,
    no_kin: bool,
    confusions: bool,
    out: str | None,
    theme: ThemeName,
    details: bool,
    atlas: str,
    output: str,
) -> None:
    """Measure whether models tuned on the same dataset are close to each other.

    Purity is the share of a model's nearest neighbours that share a dataset with it, averaged over models.
    """
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        result = opened.purity(base, representation=representation, k=k, kin=not no_kin, confusions=confusions)
        whole = result.to_dict(by_model=by == "model", confusions=confusions)
        by = "confusion" if confusions else by
        rows, table = result.lines(by), result.table(details=details, by=by)
        print_result(result, output, rows=rows, whole=whole, table=table, file=file, theme=theme)


@main.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@base_option()
@details_option
@atlas_option
@output_options
def show(model: str, base: str | None, details: bool, atlas: str, output: str) -> None:
    """Show what is known of MODEL: the usual facts, or everything (--details, or any other format)."""
    with opened_atlas(atlas) as opened:
        shown = opened.show(model, base)
        print_result(shown, output, details=details, rows=[shown.to_dict()] if output == "jsonl" else None)


@main.command(cls=Question)
@click.argument("name", required=False)
@output_options
def schema(name: str | None, output: str) -> None:
    """List the tables, views and macros for `query sql`, or the columns of the one called NAME."""
    from query.schema import schema as schema_of

    emit(schema_of(name), output)


@main.command("help")
@click.argument("word", required=False)
@output_options
@click.pass_context
def explain_word(context: click.Context, word: str | None, output: str) -> None:
    """Explain WORD: a term, a column of an answer or of the database, or a command. Without WORD: list the terms."""
    from query.glossary import explained, words

    command = main.get_command(context, word) if word else None
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


@main.command(cls=Question)
@click.argument("statement")
@limit_option
@click.option("--timeout", default=30.0, show_default=True, type=FiniteRange(min=0.1), help="Time limit in seconds.")
@atlas_option
@output_options
def sql(statement: str, limit: int | None, timeout: float, atlas: str, output: str) -> None:
    """Run one SELECT statement; "-" reads it from stdin. For tables and columns: query schema."""
    if limit is None and output == "table" and sys.stdout.isatty():
        limit = ROWS_ON_A_TERMINAL
    if statement == "-":
        # UTF-8 in every locale. Other bytes stay as escapes, which `Atlas.sql` refuses with a clear message.
        statement = read_stdin(4 * MOST_STATEMENT).decode("utf-8", "surrogateescape")
    with opened_atlas(atlas) as opened:
        found = opened.sql(statement, limit=limit, seconds=timeout)
        emit(found.to_rows(), output, columns=found.columns)
        if found.truncated:
            say(f"only the first {limit} rows are shown; for all: --limit N, --format csv, or a pipe")


def _batch_rows(one: Answered[SimilarModels], output: str) -> list[dict[str, Any]]:
    """The rows of one answer, each with the name of its model."""
    assert one.answer is not None
    rows = one.answer.table() if output == "table" else one.answer.to_rows()
    return [{"asked": one.asked} | row for row in rows]


for command in (lineage, browse, serve):
    main.add_command(command)
for study in (*STUDIES, *MODELS, *DEPTHS):
    main.add_command(study)
