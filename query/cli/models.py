"""The commands about one model or two, and the one about texts: which models were tuned on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_base, complete_model
from indexer.console.terminal import say
from indexer.names import READS
from query.cli.batch import names_on_stdin, predict_batch, print_batch, store_predictions
from query.cli.options import (
    base_option,
    details_option,
    model_argument,
    neighbours_option,
    opened_atlas,
    optional_model,
    out_option,
    picture_file,
    print_result,
    question,
    representation_option,
    theme_option,
)
from query.texts import STDIN
from query.wording import MEASURES, counted

if TYPE_CHECKING:
    from query.results import ThemeName
    from query.similar import SimilarModels

_read_option = click.option(
    "--read", type=click.Choice(READS),
    help="How a model that is not indexed is read: sample, some rows of every matrix (default), or full.",
)  # fmt: skip


@question(
    model_argument,
    neighbours_option("Number of nearest models to show.", 10, "--limit"),
    click.option("--where", metavar="SQL", help='Only models that satisfy this condition, e.g. "downloads > 100".'),
    click.option("--other-authors", is_flag=True, help="Leave out the model's own author."),
    representation_option,
    base_option,
    click.option("--explain", is_flag=True, help="Show how much each layer and family contributes."),
    _read_option,
)
def similar(model: str, atlas: str, output: str, **options: Any) -> None:
    """Find the models most similar to MODEL: an indexed id, any other Hub id, or a local checkpoint folder.

    If MODEL is "-", models are read from stdin, one per line.
    """
    if options["where"] is not None:
        from query.sql import prepare

        prepare()

    def rows(_name: str, found: SimilarModels) -> list[dict[str, Any]]:
        return found.table() if output == "table" else found.to_rows()

    names = names_on_stdin() if model == STDIN else None
    with opened_atlas(atlas) as opened:
        if names is None:
            print_result(opened.similar(model, options.pop("k"), **options), output)
        else:
            print_batch(opened.similar_many(names, options.pop("k"), **options), len(names), output, rows)


@question(model_argument, base_option, details_option)
def show(model: str, base: str | None, details: bool, atlas: str, output: str) -> None:
    """Show what is known of MODEL: the usual facts, or everything (--details, or any other format)."""
    with opened_atlas(atlas) as opened:
        shown = opened.show(model, base)
        print_result(shown, output, details=details, rows=[shown.to_dict()] if output == "jsonl" else None)


@question(
    click.argument("a", metavar="A", shell_complete=complete_model),
    click.argument("b", metavar="B", shell_complete=complete_model),
    base_option,
    representation_option,
    _read_option,
)
def compare(a: str, b: str, atlas: str, output: str, **options: Any) -> None:
    """Compare models A and B: how similar their changes are, and what cards and weights say.

    Each is an indexed id, any other Hub id, or a local folder; both must have the same base.
    """
    with opened_atlas(atlas) as opened:
        print_result(opened.compare(a, b, **options), output)


@question(
    model_argument,
    base_option,
    click.option(
        "--of", type=click.Choice(tuple(MEASURES)), default="relative_norm", show_default=True, help="Measure to show."
    ),
    click.option(
        "--heads", is_flag=True, help="Show how the change of each attention matrix is spread over its heads."
    ),
    _read_option,
    out_option(),
    theme_option,
)
def layers(model: str, of: str, out: str | None, theme: ThemeName, atlas: str, output: str, **options: Any) -> None:
    """Show where MODEL changed, by layer and family: an indexed id, any other Hub id, or a local folder."""
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        found = opened.layers(model, **options)
        if file is not None:
            found.write(file, theme, of)
        print_result(found, output, file=file, table=found.table(of=of))


@question(
    optional_model,
    neighbours_option("Number of nearest models used for the vote."),
    base_option,
    click.option("--undocumented", is_flag=True, help="Predict for every indexed model that names no dataset."),
    click.option("--store", is_flag=True, help="Store the answers in the atlas: query sql 'FROM likely_datasets'."),
    click.option(
        "--evaluate", is_flag=True,
        help="Measure how often predictions are right on this atlas, compared with a baseline.",
    ),
    click.option(
        "--unknown-share", type=click.FloatRange(0, 1), metavar="S",
        help="Share of such models that were tuned on data that no other author names. Default: the share among the "
        "labelled models of the atlas; for ten models or more, it is estimated from them.",
    ),
    out_option("With --evaluate: also draw the reliability: .png, .svg or .pdf."),
    representation_option,
    theme_option,
    details_option,
)  # fmt: skip
def predict(
    model: str | None,
    undocumented: bool,
    store: bool,
    evaluate: bool,
    unknown_share: float | None,
    out: str | None,
    theme: ThemeName,
    details: bool,
    atlas: str,
    output: str,
    **options: Any,
) -> None:
    """Predict the datasets MODEL was tuned on: an indexed id, any other Hub id, or a local folder.

    If MODEL is "-", models are read from stdin, one per line.
    """
    if (model is not None) + evaluate + undocumented != 1:
        raise click.UsageError("Name a MODEL, or use --undocumented or --evaluate without one.")
    if out and not evaluate:
        raise click.UsageError("--out can only be used with --evaluate.")
    if store and evaluate:
        raise click.UsageError("--store can only be used with a MODEL or --undocumented.")
    if unknown_share is not None and evaluate:
        raise click.UsageError("--unknown-share can only be used with a MODEL or --undocumented.")
    names = names_on_stdin() if model == STDIN else None
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        if undocumented or names is not None:
            predict_batch(opened, names, store, output, options | {"unknown_share": unknown_share})
        elif model is not None:
            prediction = opened.predict(model, unknown_share=unknown_share, **options)
            print_result(prediction, output, details=details)
            if store:
                store_predictions(opened, [prediction])
        else:
            evaluation = opened.evaluate_prediction(**options)
            print_result(evaluation, output, details=details, file=file, theme=theme)


@question(
    optional_model,
    click.option(
        "--all", "every", is_flag=True, help="Ask about every indexed model of the base, and store the edges."
    ),
    base_option,
    click.option("--fresh", is_flag=True, help="Read the weights even if there is a stored answer; --all always does."),
    click.option("--no-dates", is_flag=True, help="Do not use creation dates; the edges are not stored."),
    click.option(
        "--expect",
        metavar="BASE",
        shell_complete=complete_base,
        help="Exit with status 1 if MODEL is not made from this base, or from this model of the atlas.",
    ),
    out_option("Also draw the family tree: .svg, .png or .pdf."),
    theme_option,
)
def lineage(
    model: str | None,
    every: bool,
    base: str | None,
    fresh: bool,
    no_dates: bool,
    expect: str | None,
    out: str | None,
    theme: ThemeName,
    atlas: str,
    output: str,
) -> None:
    """Find from the weights which model MODEL was made from, and whether its card agrees.

    MODEL is an indexed id, any other Hub id, or a local checkpoint folder. For an indexed model the stored answer is
    printed with its date, if there is one; otherwise at most 30 MB of weights are read.
    """
    from query.atlas import generations
    from query.lineage.stored import store, stored_edges

    if (model is None) != every:
        raise click.UsageError("Name a MODEL, or use --all without one.")
    if expect is not None and model is None:
        raise click.UsageError("--expect can only be used with a MODEL.")
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        if model is None:
            answers = opened.lineages(base, dates=not no_dates)
            base = answers.base
            print_result(answers, output)
            # After printing: if another process is writing, the answers are not lost.
            if not no_dates:
                generations(opened).asked(store, base, tuple(answers))
        else:
            answer = opened.lineage(model, base, dates=not no_dates, fresh=fresh, expect=expect)
            print_result(answer, output)
            base = answer.base
            if output == "table" and answer.answered_at is None:
                say(f"read {answer.bytes_read / 1e6:.1f} MB of the weights of {counted(answer.models_read, 'model')}")
        if file is not None:
            from query.figures import draw, write_output
            from query.lineage.result import edges_around, tree_figure

            if model is None:
                edges = list(answers.edges) if no_dates else generations(opened).asked(stored_edges, base)
                figure = tree_figure(edges, base, theme)
            else:
                stored = generations(opened).asked(stored_edges, base)
                edges = [edge for edge in stored if edge.child != answer.model]
                figure = tree_figure(edges_around([*edges, *answer.edges], answer.model), base, theme, answer.model)
            write_output(file, draw(figure, file.suffix.lower()))
            say(f"the tree is in {file}")
    if model is None and answers.unanswered:
        click.get_current_context().exit(1)
    if model is not None and not answer.is_as_expected:
        say(f"{answer.model} is not made from {answer.expected}")
        click.get_current_context().exit(1)


@question(
    model_argument,
    base_option,
    click.option("--text", metavar="FILE", help="Compare these texts: lines, .jsonl, .csv, .tsv, .parquet, or -."),
    click.option("--field", metavar="NAME", help="The field or column of FILE that holds the text."),
    click.option("--each", is_flag=True, help="Print the result for each text."),
    click.option(
        "--max-length", type=click.IntRange(min=1), metavar="N",
        help="Number of tokens to which training cut texts. Default: what the position embeddings show, else 24.",
    ),
    click.option("--all-rows", is_flag=True, help="Read the whole embedding of MODEL and of its base, not some rows."),
    _read_option,
    details_option,
)  # fmt: skip
def trace(model: str, details: bool, atlas: str, output: str, **options: Any) -> None:
    """Show what MODEL was trained on, from its input embedding: only rows of tokens in the training text moved.

    With --text, show which texts were certainly not used in any step that changed the embedding. Of more than 10,000
    texts, that many are used, evenly spaced, and of a long text the first 100,000 characters. Empty texts are left out,
    and so are those that cannot be read if they are a tenth or fewer (half of a surrogate pair is always left out); the
    notes say how many and why.
    """
    with opened_atlas(atlas) as opened:
        print_result(opened.trace(model, say=say, **options), output, details=details)


@question(
    click.argument("files", nargs=-1, metavar="FILE"),
    neighbours_option("Number of models to show.", 10, "--limit"),
    base_option,
    click.option("--field", metavar="NAME", help='Field of a row that holds the text. Default: "text".'),
    click.option(
        "--reference", metavar="FILE", type=Path,
        help="Texts that no model was tuned on, ideally like those the base was trained on. Default: shipped texts.",
    ),
    click.option("--where", metavar="SQL", help='Only models that satisfy this condition, e.g. "downloads > 100".'),
    click.option("--model", metavar="MODEL", help="Find which of the files in --among this model was tuned on."),
    click.option(
        "--among", metavar="FILE", multiple=True, type=Path,
        help="With --model: a file of texts, or a folder of such files. More of them may follow.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, cuda:1 …"),
)  # fmt: skip
def ask(files: tuple[str, ...], atlas: str, output: str, **options: Any) -> None:
    """Find the models that were probably tuned on texts like those in FILE: lines, JSON, CSV, TSV or Parquet.

    With --model and --among, find which files a model was tuned on, or none of them. If FILE is "-", texts are read
    from stdin. The texts run through the base model once; no fine-tune is run.

    Of more than 200 texts, that many are used, evenly spaced (with --among, 200 to 1,000 of each file), and of a long
    text its beginning. Empty texts are left out, and so are those that cannot be read if they are a tenth or fewer
    (half of a surrogate pair is always left out); the notes say how many and why.
    """
    is_of_model = options["model"] is not None
    if bool(options["among"]) != is_of_model or (not is_of_model and len(files) != 1):
        raise click.UsageError("Name one FILE of texts, or use --model with --among FILE.")
    if is_of_model:
        options["among"] = (*options["among"], *map(Path, files))
    file = None if is_of_model else files[0]
    if options["where"] is not None:
        from query.sql import prepare

        prepare()
    with opened_atlas(atlas) as opened:
        print_result(opened.ask(file, options.pop("k"), **options), output)


MODELS = (similar, show, trace, compare, layers, predict, lineage, ask)
