"""The commands that list models and datasets, and those about one model or two."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import atlas_option, emit, output_options, say
from query.cli.options import (
    ROWS_ON_A_TERMINAL,
    Question,
    base_option,
    limit_option,
    opened_atlas,
    out_option,
    picture_file,
    print_result,
    representation_option,
    theme_option,
)
from query.wording import MEASURES

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.results import ThemeName
    from query.summary import Inventory


@click.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@base_option()
@click.option(
    "--of", type=click.Choice(tuple(MEASURES)), default="relative_norm", show_default=True, help="Measure to show."
)
@out_option()
@theme_option
@atlas_option
@output_options
def layers(model: str, base: str | None, of: str, out: str | None, theme: ThemeName, atlas: str, output: str) -> None:
    """Show where MODEL changed, by layer and family: an indexed id, any other Hub id, or a local folder."""
    file = picture_file(out)
    with opened_atlas(atlas) as opened:
        found = opened.layers(model, base)
        if file is not None:
            found.write(file, theme, of)
        print_result(found, output, file=file, table=found.table(of=of))


@click.command(cls=Question)
@click.argument("a", metavar="A", shell_complete=complete_model)
@click.argument("b", metavar="B", shell_complete=complete_model)
@base_option()
@representation_option
@atlas_option
@output_options
def compare(a: str, b: str, base: str | None, representation: str, atlas: str, output: str) -> None:
    """Compare models A and B: how similar their changes are, and what cards and weights say.

    Each is an indexed id, any other Hub id, or a local folder; both must have the same base.
    """
    with opened_atlas(atlas) as opened:
        print_result(opened.compare(a, b, base=base, representation=representation), output)


@click.command()
@click.argument("search", required=False, default="")
@click.option("--dataset", metavar="NAME", help="Only models tuned on this dataset.")
@base_option()
@limit_option
@atlas_option
@output_options
def models(search: str, dataset: str | None, base: str | None, limit: int | None, atlas: str, output: str) -> None:
    """List the indexed models, most downloads first: all, or those whose id contains SEARCH.

    For any other condition: query sql "SELECT … FROM models WHERE …".
    """
    with opened_atlas(atlas) as opened:
        _list(opened, opened.models(search, dataset=dataset, base=base), output, limit)


@click.command()
@click.argument("search", required=False, default="")
@base_option()
@limit_option
@atlas_option
@output_options
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


MODELS = (layers, compare, models, datasets)
