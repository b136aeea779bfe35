"""The commands that study a whole base: clusters, map, rank, predict, report, export. Thin skins over the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import FiniteRange, atlas_option, output_options, say
from query.cli.batch import STDIN, names_on_stdin
from query.cli.options import (
    Question,
    base_option,
    details_option,
    opened_atlas,
    print_result,
    representation_option,
    seed_option,
    theme_option,
)
from query.cli.predictions import keep_predictions, predict_batch

if TYPE_CHECKING:
    from query.results import ThemeName


@click.command(cls=Question)
@base_option()
@click.option(
    "--method", type=click.Choice(["hdbscan", "kmeans"]), default="hdbscan", show_default=True, help="How to cluster."
)
@click.option("--min-size", type=click.IntRange(min=2), help="Smallest cluster (hdbscan).")
@click.option("--count", type=click.IntRange(min=2), help="How many clusters (kmeans).")
@click.option("--by", type=click.Choice(["cluster", "model"]), default="cluster", show_default=True,
              help="A row of CSV and JSON lines for each.")  # fmt: skip
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
    help="How to flatten.",
)
@click.option("--color", default="dataset", show_default=True, metavar="COLUMN",
              help="dataset, author, cluster, or any column of the models view.")  # fmt: skip
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    help="A .png, .svg or .pdf to print, a .html to explore, a .parquet for other viewers.",
)
@representation_option
@seed_option
@theme_option
@atlas_option
@output_options
def draw_map(base: str | None, atlas: str, output: str, out: str, theme: ThemeName, **options: Any) -> None:
    """Draw the fine-tunes of a base as points: near where their vectors are near."""
    from query.map.map import TABLE, checked_map_file
    from query.map.parquet import viewer_command

    file = checked_map_file(out)
    with opened_atlas(atlas) as opened:
        drawn = opened.map(base, **options)
        drawn.write(file, theme=theme)
        print_result(drawn, output, file=file)
        if file.suffix.lower() == TABLE:
            say(f"to look at it: {viewer_command(file)}")


@click.command(cls=Question)
@base_option()
@click.option("--threshold", default=0.5, show_default=True, type=FiniteRange(0, 1, min_open=True),
              help="Share of the energy Σ σ² to hold.")  # fmt: skip
@click.option(
    "--of", type=click.Choice(["delta", "weights"]), default="delta", show_default=True, help="Rank of δW, or of W."
)
@click.option("--model", metavar="MODEL", shell_complete=complete_model, help="Of one model alone.")
@click.option("--relation", metavar="NAMES", help="Only these relations, e.g. finetune or finetune,adapter.")
@click.option("--whole", is_flag=True, help="Fused matrices (GPT-2's c_attn) whole instead of split.")
@click.option("--out", metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
@theme_option
@details_option
@atlas_option
@output_options
def rank(
    base: str | None, details: bool, atlas: str, output: str, out: str | None, theme: ThemeName, **options: Any
) -> None:
    """Say how the rank of the change, or of the weights, moves with depth, and the equation that fits best."""
    from query.figures import checked_output

    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        study = opened.rank(base, **options)
        if file is not None:
            study.write(file, theme=theme)
        print_result(study, output, details=details, file=file)


@click.command(cls=Question)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("-k", "--neighbours", "k", default=10, show_default=True, type=click.IntRange(min=1),
              help="How many of the nearest models: so many vote.")  # fmt: skip
@base_option()
@click.option("--undocumented", is_flag=True, help="Instead: of every indexed model that names no dataset.")
@click.option("--store", is_flag=True, help="Keep the answers in the atlas: query sql 'FROM likely_datasets'.")
@click.option("--evaluate", is_flag=True, help="Instead: how often it is right on this atlas, against a baseline.")
@click.option("--out", metavar="FILE", help="With --evaluate: draw the reliability, .png, .svg or .pdf.")
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
    """Say which datasets MODEL was probably tuned on: an indexed id, any other Hub id, or a local folder.

    MODEL may be "-": models are read from stdin, one a line.
    """
    from query.figures import checked_output

    if (model is not None) + evaluate + undocumented != 1:
        raise click.UsageError("Name a MODEL, or ask for --undocumented or --evaluate without one.")
    if out and not evaluate:
        raise click.UsageError("--out goes with --evaluate.")
    if store and evaluate:
        raise click.UsageError("--store goes with a MODEL or --undocumented.")
    names = names_on_stdin() if model == STDIN else None
    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        if undocumented or names is not None:
            predict_batch(opened, names, base, store, output, options)
            return
        if model is not None:
            prediction = opened.predict(model, base=base, **options)
            print_result(prediction, output, details=details)
            if store:
                keep_predictions(opened, [prediction])
            return
        evaluation = opened.evaluate_prediction(base, **options)
        if file is not None:
            evaluation.write(file, theme=theme)
        print_result(evaluation, output, details=details, file=file)


@click.command(cls=Question)
@base_option()
@click.option("--out", required=True, metavar="FILE", help="The page to write: one .html file, readable offline.")
@seed_option
@atlas_option
@output_options
def report(base: str | None, out: str, seed: int, atlas: str, output: str) -> None:
    """Write one page with everything there is to say of a base's fine-tunes."""
    from query.figures import checked_output

    file = checked_output(out, (".html",))
    with opened_atlas(atlas) as opened:
        page = opened.report(base, seed=seed)
        page.write(file)
        print_result(page, output, file=file, table=page.to_dict())


@click.command()
@base_option()
@click.option("--out", required=True, metavar="FILE", help="The file to write: .parquet or .npz.")
@representation_option
@atlas_option
@output_options
def export(base: str | None, representation: str, out: str, atlas: str, output: str) -> None:
    """Write the vectors of a base's fine-tunes with their ids, names and datasets: models × numbers."""
    from query.export import FORMATS
    from query.figures import checked_output

    file = checked_output(out, FORMATS)
    with opened_atlas(atlas) as opened:
        vectors = opened.vectors(base, representation)
        vectors.write(file)
        print_result(vectors, output, file=file, table=vectors.to_dict())


STUDIES = (clusters, draw_map, rank, predict, report, export)
