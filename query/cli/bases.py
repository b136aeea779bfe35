"""The commands about all fine-tunes of a base."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import FiniteRange, say
from query.cli.options import (
    base_option,
    details_option,
    method_option,
    neighbours_option,
    opened_atlas,
    out_option,
    picture_file,
    print_result,
    question,
    representation_option,
    seed_option,
    theme_option,
)

if TYPE_CHECKING:
    from query.results import ThemeName


@question(
    base_option,
    representation_option,
    click.option(
        "--by", type=click.Choice(["dataset", "model", "task"]), default="dataset", show_default=True,
        help="Rows to print. task: measure purity by task instead of dataset, also within datasets.",
    ),
    neighbours_option("Number of nearest models to consider. Default: as many as share its dataset.", None),
    click.option(
        "--no-kin", is_flag=True, help="Leave out models of the same family tree (after query lineage --all)."
    ),
    click.option(
        "--within", multiple=True,
        type=click.Choice(["head", "language", "author", "length", "norm", "seed", "dataset"]),
        help="Also print chance if only models with the same head (language, …) exchange labels. May be given several "
        "times. norm: ‖δW‖ within a factor of two. seed: the seed of adapters' factors.",
    ),
    click.option(
        "--confusions", is_flag=True, help="Print which datasets are mistaken for which, compared with chance."
    ),
    out_option("Also draw it, by dataset: .png, .svg or .pdf."),
    theme_option,
    details_option,
)  # fmt: skip
def purity(
    by: str, no_kin: bool, out: str | None, theme: ThemeName, details: bool, atlas: str, output: str, **options: Any
) -> None:
    """Measure whether models tuned on the same dataset are close to each other.

    Purity is the share of a model's nearest neighbours that share a dataset with it, averaged over models.
    """
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        result = opened.purity(**options, kin=not no_kin, by="task" if by == "task" else "dataset")
        whole = result.to_dict(by_model=by == "model", confusions=options["confusions"])
        by = "confusion" if options["confusions"] else by
        rows, table = result.lines(by), result.table(details=details, by=by)
        print_result(result, output, rows=rows, whole=whole, table=table, file=file, theme=theme)


@question(
    base_option,
    click.option(
        "--method", type=click.Choice(["hdbscan", "kmeans"]), default="hdbscan", show_default=True,
        help="Clustering method.",
    ),
    click.option("--min-size", type=click.IntRange(min=2), help="Size of the smallest cluster (hdbscan)."),
    click.option("--count", type=click.IntRange(min=2), help="Number of clusters (kmeans)."),
    click.option(
        "--by", type=click.Choice(["cluster", "model", "task"]), default="cluster", show_default=True,
        help="Rows of CSV and JSON lines. task: also compare clusters with tasks, overall and within datasets.",
    ),
    representation_option,
    seed_option,
    details_option,
)  # fmt: skip
def clusters(base: str | None, by: str, details: bool, atlas: str, output: str, **options: Any) -> None:
    """Group the fine-tunes of a base by their vectors, and measure how well groups, datasets and authors agree."""
    with opened_atlas(atlas) as opened:
        found = opened.clusters(base, by="task" if by == "task" else "dataset", **options)
        print_result(found, output, details=details, rows=found.to_rows(by))


@question(
    base_option,
    method_option("Projection method."),
    click.option("--color", default="dataset", show_default=True, metavar="COLUMN",
                 help="Colour by dataset, author, cluster, or any column of the models view."),
    out_option("File: .png, .svg or .pdf to print, .html to explore, .parquet for other viewers.", required=True),
    representation_option,
    seed_option,
    theme_option,
    name="map",
)  # fmt: skip
def draw_map(base: str | None, atlas: str, output: str, out: str, theme: ThemeName, **options: Any) -> None:
    """Draw the fine-tunes of a base as points; points are close if the vectors are."""
    from query.map.model_map import TABLE, checked_map_file

    file = checked_map_file(out)
    with opened_atlas(atlas) as opened:
        drawn = opened.map(base, **options)
        drawn.write(file, theme=theme)
        print_result(drawn, output, file=file)
        if file.suffix.lower() == TABLE:
            viewer = f"embedding-atlas {shlex.quote(str(file))} --text model --x x --y y --neighbors neighbors"
            say(f"to view it: {viewer}")


@question(
    base_option,
    click.option("--threshold", default=0.5, show_default=True, type=FiniteRange(0, 1, min_open=True),
                 help="Share of the energy Σ σ² that the rank must hold."),
    click.option(
        "--of", type=click.Choice(["delta", "weights"]), default="delta", show_default=True, help="Measure δW, or W."
    ),
    click.option("--model", metavar="MODEL", shell_complete=complete_model, help="Only this model."),
    click.option("--relation", metavar="NAMES", help="Only these relations, e.g. finetune or finetune,adapter."),
    click.option("--whole", is_flag=True, help="Do not split fused matrices (GPT-2's c_attn)."),
    out_option(),
    theme_option,
    details_option,
)  # fmt: skip
def rank(
    base: str | None, details: bool, atlas: str, output: str, out: str | None, theme: ThemeName, **options: Any
) -> None:
    """Show how the rank of the change, or of the weights, varies with depth, and the equation that fits best.

    The input embedding is not included, because only the sizes of its rows' changes are known (see `query layers`).
    """
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        print_result(opened.rank(base, **options), output, details=details, file=file, theme=theme)


@question(base_option, out_option("The page to write: one .html file, readable offline.", required=True), seed_option)
def report(base: str | None, out: str, seed: int, atlas: str, output: str) -> None:
    """Write one page with everything about the fine-tunes of a base."""
    from query.figures import checked_output

    file = checked_output(out, (".html",))
    with opened_atlas(atlas) as opened:
        page = opened.report(base, seed=seed)
        page.write(file)
        print_result(page, output, file=file, table=page.to_dict())


@question(base_option, out_option("The file to write: .parquet or .npz.", required=True), representation_option)
def export(base: str | None, representation: str, out: str, atlas: str, output: str) -> None:
    """Write the vectors of the fine-tunes of a base, with ids, names and datasets."""
    from query.export import FORMATS
    from query.figures import checked_output

    file = checked_output(out, FORMATS)
    with opened_atlas(atlas) as opened:
        vectors = opened.vectors(base, representation)
        vectors.write(file)
        print_result(vectors, output, file=file, table=vectors.to_dict())


BASES = (purity, clusters, draw_map, rank, report, export)
