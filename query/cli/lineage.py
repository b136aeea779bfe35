"""`query lineage`: which model a model was made from. A thin skin over the library."""

from __future__ import annotations

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import atlas_option, output_options, say
from query.cli.options import Question, base_option, opened_atlas, print_result


@click.command(cls=Question)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option(
    "--all", "every", is_flag=True, help="Of every indexed model of the base; the edges are kept in the atlas."
)
@base_option()
@click.option("--fresh", is_flag=True, help="Read the weights even where the atlas keeps an answer; --all always does.")
@click.option("--no-dates", is_flag=True, help="Let the weights alone say who was first; the edges are not kept.")
@click.option("--out", metavar="FILE", help="Also draw the family tree: .svg, .png or .pdf.")
@click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the picture."
)
@atlas_option
@output_options
def lineage(
    model: str | None,
    every: bool,
    base: str | None,
    fresh: bool,
    no_dates: bool,
    out: str | None,
    theme: str,
    atlas: str,
    output: str,
) -> None:
    """Say which model MODEL was made from, by its weights, and whether its card agrees.

    MODEL is an indexed id, any other Hub id, or a local checkpoint folder. Of an indexed model the answer that the
    atlas keeps is printed, with its date; else at most 30 MB of weights are read.
    """
    from query.figures import checked_output
    from query.lineage.stored import store, stored_edges

    if (model is None) != every:
        raise click.UsageError("Name a MODEL, or ask for --all without one.")
    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        if model is None:
            told_base = opened.base_named(base)
            answers = opened.lineages(told_base, dates=not no_dates)
            print_result(answers, output)
            # Behind the answers: where another process is writing, what was found out is not lost.
            if not no_dates:
                store(opened, told_base, tuple(answers))
            unanswered = len(answers.unanswered)
        else:
            unanswered = 0
            answer = opened.lineage(model, base, dates=not no_dates, fresh=fresh)
            print_result(answer, output)
            told_base = answer.base
            if output == "table" and answer.told is None:
                say(f"read {answer.bytes_read / 1e6:.1f} MB of the weights of {answer.models_read} models")
        if file is not None:
            from query.lineage.tree import around, write_tree

            edges = stored_edges(opened, told_base)
            if model is None and no_dates:
                edges = [edge for one in answers for edge in one.edges]
            if model is not None:
                edges = around([*(edge for edge in edges if edge.child != answer.model), *answer.edges], answer.model)
            write_tree(file, edges, told_base, theme, marked=None if model is None else answer.model)
            say(f"the tree is in {file}")
    if unanswered:
        click.get_current_context().exit(1)
