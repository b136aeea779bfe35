"""The commands that study a whole base: clusters, map, rank, predict, report, export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import FiniteRange, atlas_option, output_options, say
from query.cli.batch import STDIN, names_on_stdin, predict_batch, store_predictions
from query.cli.options import (
    Question,
    base_option,
    details_option,
    opened_atlas,
    out_option,
    picture_file,
    print_result,
    representation_option,
    seed_option,
    theme_option,
)

if TYPE_CHECKING:
    from query.results import ThemeName


@click.command(cls=Question)
@base_option()
@click.option(
    "--method",
    type=click.Choice(["hdbscan", "kmeans"]),
    default="hdbscan",
    show_default=True,
    help="Clustering method.",
)
@click.option("--min-size", type=click.IntRange(min=2), help="Size of the smallest cluster (hdbscan).")
@click.option("--count", type=click.IntRange(min=2), help="Number of clusters (kmeans).")
@click.option("--by", type=click.Choice(["cluster", "model"]), default="cluster", show_default=True,
              help="Rows of CSV and JSON lines.")  # fmt: skip
@representation_option
@seed_option
@details_option
@atlas_option
@output_options
def clusters(base: str | None, by: str, details: bool, atlas: str, output: str, **options: Any) -> None:
    """Group the fine-tunes of a base by their vectors, and measure how well groups, datasets and authors agree."""
    with opened_atlas(atlas) as opened:
        found = opened.clusters(base, **options)
        print_result(found, output, details=details, rows=found.to_rows(by))


@click.command("map", cls=Question)
@base_option()
@click.option(
    "--method",
    type=click.Choice(["umap", "tsne", "pca"]),
    show_default="tsne below 1,000 models, else umap",
    help="Projection method.",
)
@click.option("--color", default="dataset", show_default=True, metavar="COLUMN",
              help="dataset, author, cluster, or any column of the models view.")  # fmt: skip
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    help=".png, .svg or .pdf to print, .html to explore, .parquet for other viewers.",
)
@representation_option
@seed_option
@theme_option
@atlas_option
@output_options
def draw_map(base: str | None, atlas: str, output: str, out: str, theme: ThemeName, **options: Any) -> None:
    """Draw the fine-tunes of a base as points; points are close if the vectors are."""
    from query.map.model_map import TABLE, checked_map_file, viewer_command

    file = checked_map_file(out)
    with opened_atlas(atlas) as opened:
        drawn = opened.map(base, **options)
        drawn.write(file, theme=theme)
        print_result(drawn, output, file=file)
        if file.suffix.lower() == TABLE:
            say(f"to view it: {viewer_command(file)}")


@click.command(cls=Question)
@base_option()
@click.option("--threshold", default=0.5, show_default=True, type=FiniteRange(0, 1, min_open=True),
              help="Share of the energy Σ σ² that the rank must hold.")  # fmt: skip
@click.option(
    "--of", type=click.Choice(["delta", "weights"]), default="delta", show_default=True, help="Measure δW, or W."
)
@click.option("--model", metavar="MODEL", shell_complete=complete_model, help="Only this model.")
@click.option("--relation", metavar="NAMES", help="Only these relations, e.g. finetune or finetune,adapter.")
@click.option("--whole", is_flag=True, help="Do not split fused matrices (GPT-2's c_attn).")
@out_option()
@theme_option
@details_option
@atlas_option
@output_options
def rank(
    base: str | None, details: bool, atlas: str, output: str, out: str | None, theme: ThemeName, **options: Any
) -> None:
    """Show how the rank of the change, or of the weights, varies with depth, and the equation that fits best."""
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        print_result(opened.rank(base, **options), output, details=details, file=file, theme=theme)


@click.command(cls=Question)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("-k", "--neighbours", "k", default=10, show_default=True, type=click.IntRange(min=1),
              help="Number of nearest models used for the vote.")  # fmt: skip
@base_option()
@click.option("--undocumented", is_flag=True, help="Predict for every indexed model that names no dataset.")
@click.option("--store", is_flag=True, help="Store the answers in the atlas: query sql 'FROM likely_datasets'.")
@click.option(
    "--evaluate", is_flag=True, help="Measure how often predictions are right on this atlas, compared with a baseline."
)
@out_option("With --evaluate: also draw the reliability: .png, .svg or .pdf.")
@representation_option
@theme_option
@details_option
@atlas_option
@output_options
def predict(
    model: str | None,
    base: str | None,
    undocumented: bool,
    store: bool,
    evaluate: bool,
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
    names = names_on_stdin() if model == STDIN else None
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        if undocumented or names is not None:
            predict_batch(opened, names, base, store, output, options)
            return
        if model is not None:
            prediction = opened.predict(model, base=base, **options)
            print_result(prediction, output, details=details)
            if store:
                store_predictions(opened, [prediction])
            return
        evaluation = opened.evaluate_prediction(base, **options)
        print_result(evaluation, output, details=details, file=file, theme=theme)


@click.command(cls=Question)
@base_option()
@out_option("The page to write: one .html file, readable offline.", required=True)
@seed_option
@atlas_option
@output_options
def report(base: str | None, out: str, seed: int, atlas: str, output: str) -> None:
    """Write one page with everything about the fine-tunes of a base."""
    from query.figures import checked_output

    file = checked_output(out, (".html",))
    with opened_atlas(atlas) as opened:
        page = opened.report(base, seed=seed)
        page.write(file)
        print_result(page, output, file=file, table=page.to_dict())


@click.command()
@base_option()
@out_option("The file to write: .parquet or .npz.", required=True)
@representation_option
@atlas_option
@output_options
def export(base: str | None, representation: str, out: str, atlas: str, output: str) -> None:
    """Write the vectors of the fine-tunes of a base, with ids, names and datasets."""
    from query.export import FORMATS
    from query.figures import checked_output

    file = checked_output(out, FORMATS)
    with opened_atlas(atlas) as opened:
        vectors = opened.vectors(base, representation)
        vectors.write(file)
        print_result(vectors, output, file=file, table=vectors.to_dict())


STUDIES = (clusters, draw_map, rank, predict, report, export)
