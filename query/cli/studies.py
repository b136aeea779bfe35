"""The commands that study a whole base: clusters, map, rank, predict, report. Thin skins over the library."""

from __future__ import annotations

from typing import Any

import click

from indexer.console.ranges import FiniteRange
from indexer.console.terminal import atlas_option, emit, output_options, say
from query.cli.options import base_option, opened_atlas

representation_option = click.option("--representation", default="input", show_default=True, help="Which vectors.")
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of chance.")
theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the picture."
)


@click.command()
@base_option()
@click.option(
    "--method", type=click.Choice(["hdbscan", "kmeans"]), default="hdbscan", show_default=True, help="How to cluster."
)
@click.option("--min-size", type=click.IntRange(min=2), help="Smallest cluster (hdbscan).")
@click.option("--count", type=click.IntRange(min=2), help="How many clusters (kmeans).")
@representation_option
@seed_option
@atlas_option
@output_options
def clusters(base: str | None, atlas: str, output: str, **options: Any) -> None:
    """Group the fine-tunes of a base by their vectors, and measure how well groups, datasets and authors agree."""
    with opened_atlas(atlas) as opened:
        found = opened.clusters(base, **options)
        if output == "table":
            from query.clusters.table import sheet

            emit(sheet(found), output)
        else:
            emit(found.to_dict(), output)
        for note in found.notes:
            say(note)


@click.command("map")
@base_option()
@click.option(
    "--method", type=click.Choice(["umap", "tsne", "pca"]), default="umap", show_default=True, help="How to flatten."
)
@click.option("--color", default="dataset", show_default=True, metavar="COLUMN",
              help="dataset, author, cluster, or any column of the models view.")  # fmt: skip
@click.option("--out", required=True, metavar="FILE", help="A .png, .svg or .pdf to print, or a .html to explore.")
@representation_option
@seed_option
@theme_option
@atlas_option
@output_options
def draw_map(base: str | None, atlas: str, output: str, out: str, theme: str, **options: Any) -> None:
    """Draw the fine-tunes of a base as points: near where their vectors are near."""
    from query.map.map import checked_map_file

    file = checked_map_file(out)
    with opened_atlas(atlas) as opened:
        drawn = opened.map(base, **options)
        drawn.write(file, theme=theme)
        emit(drawn.to_dict() | {"file": str(file)}, output)


@click.command()
@base_option()
@click.option("--threshold", default=0.5, show_default=True, type=FiniteRange(0, 1, min_open=True),
              help="Share of the energy Σ σ² to hold.")  # fmt: skip
@click.option(
    "--of", type=click.Choice(["delta", "weights"]), default="delta", show_default=True, help="Rank of δW, or of W."
)
@click.option("--model", metavar="MODEL", help="Of one model alone.")
@click.option("--relation", metavar="NAMES", help="Only these relations, e.g. finetune or finetune,adapter.")
@click.option("--whole", is_flag=True, help="Fused matrices (GPT-2's c_attn) whole instead of split.")
@click.option("--out", metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
@theme_option
@atlas_option
@output_options
def rank(base: str | None, atlas: str, output: str, out: str | None, theme: str, **options: Any) -> None:
    """Say how the rank of the change, or of the weights, moves with depth, and the equation that fits best."""
    from query.figures import checked_output

    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        study = opened.rank(base, **options)
        if file is not None:
            study.write(file, theme=theme)
        if output == "csv":
            emit(study.to_rows(), output)
        else:
            from query.rank.table import sheet

            told = sheet(study) if output == "table" else study.to_dict()
            emit(told | ({"file": str(file)} if file else {}), output)
        for note in study.notes:
            say(note)


@click.command()
@click.argument("model", required=False)
@click.option("-k", "--neighbours", "k", default=10, show_default=True, type=click.IntRange(min=1), help="Voters.")
@base_option()
@click.option("--evaluate", is_flag=True, help="Instead: how often it is right on this atlas, against a baseline.")
@click.option("--out", metavar="FILE", help="With --evaluate: draw the reliability, .png, .svg or .pdf.")
@representation_option
@theme_option
@atlas_option
@output_options
def predict(
    model: str | None,
    base: str | None,
    evaluate: bool,
    out: str | None,
    theme: str,
    atlas: str,
    output: str,
    **options: Any,
) -> None:
    """Say which datasets MODEL was probably tuned on: an indexed id, any other Hub id, or a local folder."""
    from query.figures import checked_output

    if (model is None) != evaluate:
        raise click.UsageError("Name a MODEL, or ask for --evaluate without one.")
    if out and not evaluate:
        raise click.UsageError("--out goes with --evaluate.")
    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        if model is not None:
            prediction = opened.predict(model, base=base, **options)
            emit(prediction.to_table() if output == "table" else prediction.to_rows(), output)
            for note in prediction.notes:
                say(note)
            return
        evaluation = opened.evaluate_prediction(base, **options)
        if file is not None:
            evaluation.write(file, theme=theme)
        told = evaluation.to_dict() | ({"file": str(file)} if file else {})
        if output == "table":  # what follows in sentences
            del told["notes"]
            for row in told["intervals"]:
                del row["reason"]
        emit(told, output)
        for note in evaluation.notes:
            say(note)


@click.command()
@base_option()
@click.option("--out", required=True, metavar="FILE", help="The page to write: one .html file, readable offline.")
@seed_option
@atlas_option
@output_options
def report(base: str | None, out: str, seed: int, atlas: str, output: str) -> None:
    """Write one page with everything there is to say of a base's fine-tunes."""
    from query.figures import checked_output, write_output

    file = checked_output(out, (".html",))
    with opened_atlas(atlas) as opened:
        page = opened.report(base, seed=seed)
        write_output(file, page.html.encode())
        emit(page.to_dict() | {"file": str(file)}, output)


STUDIES = (clusters, draw_map, rank, predict, report)
