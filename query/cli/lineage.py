"""The command `query lineage`: which model a model was made from."""

from __future__ import annotations

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import atlas_option, output_options, say
from query.cli.options import Question, base_option, opened_atlas, print_result


@click.command(cls=Question)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option(
    "--all", "every", is_flag=True, help="For every indexed model of the base; the edges are stored in the atlas."
)
@base_option()
@click.option("--fresh", is_flag=True, help="Read the weights even if there is a stored answer; --all always does.")
@click.option("--no-dates", is_flag=True, help="Do not use creation dates; the edges are not stored.")
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
    """Find the model that MODEL was made from, by its weights, and whether its card agrees.

    MODEL is an indexed id, any other Hub id, or a local checkpoint folder. For an indexed model the stored answer is
    printed with its date, if there is one; otherwise at most 30 MB of weights are read.
    """
    from query.figures import checked_output
    from query.lineage.stored import store, stored_edges

    if (model is None) != every:
        raise click.UsageError("Name a MODEL, or use --all without one.")
    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        if model is None:
            base = opened.base_named(base)
            answers = opened.lineages(base, dates=not no_dates)
            print_result(answers, output)
            # After printing: if another process is writing, the answers are not lost.
            if not no_dates:
                store(opened, base, tuple(answers))
        else:
            answer = opened.lineage(model, base, dates=not no_dates, fresh=fresh)
            print_result(answer, output)
            base = answer.base
            if output == "table" and answer.answered_at is None:
                say(f"read {answer.bytes_read / 1e6:.1f} MB of the weights of {answer.models_read} models")
        if file is not None:
            from query.lineage.tree import around, write_tree

            if model is None:
                edges = list(answers.edges) if no_dates else stored_edges(opened, base)
                write_tree(file, edges, base, theme)
            else:
                edges = [edge for edge in stored_edges(opened, base) if edge.child != answer.model]
                write_tree(file, around([*edges, *answer.edges], answer.model), base, theme, marked=answer.model)
            say(f"the tree is in {file}")
    if model is None and answers.unanswered:
        click.get_current_context().exit(1)
