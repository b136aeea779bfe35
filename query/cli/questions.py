"""The `query` command: ask an atlas. A thin skin over the library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.console.ranges import FiniteRange
from indexer.console.terminal import AtlasGroup, atlas_option, emit, output_options, say
from indexer.errors import AtlasError
from query.cli.depths import DEPTHS
from query.cli.lineage import lineage
from query.cli.options import base_option, opened_atlas
from query.cli.studies import STUDIES

if TYPE_CHECKING:
    from query.reader import AtlasReader


@click.group(cls=AtlasGroup)
def main() -> None:
    """Ask an atlas of fine-tuned models."""


@main.command()
@click.argument("model")
@click.option("-k", "--limit", "k", default=10, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--where", metavar="SQL", help='Only models for which this holds, e.g. "downloads > 100".')
@click.option("--other-authors", is_flag=True, help="Leave the model's own author out.")
@click.option("--representation", default="input", show_default=True, help="Which vectors.")
@base_option()
@click.option("--explain", is_flag=True, help="Which layers and families make them close.")
@atlas_option
@output_options
def similar(model: str, atlas: str, output: str, **options: Any) -> None:
    """The models most like MODEL: an indexed id, any other Hub id, or a local checkpoint folder."""
    if options["where"] is not None:
        from query.sql import prepare

        prepare()
    with opened_atlas(atlas) as opened:
        found = opened.similar(model, options.pop("k"), **options)
        rows = [neighbour.as_row() for neighbour in found]
        if output == "table":
            rows = [_explained(row) for row in rows]
        emit(rows, output)
        if output == "table":
            _tell_oddities(opened, model, options["base"])


@main.command()
@base_option()
@click.option("--representation", default="input", show_default=True, help="Which vectors.")
@click.option(
    "--by",
    type=click.Choice(["dataset", "model"]),
    default="dataset",
    show_default=True,
    help="Break down by.",
)
@click.option("-k", "--neighbours", "k", type=click.IntRange(min=1),
              help="Look at the k nearest; by default at as many as share a dataset with the model.")  # fmt: skip
@click.option("--no-kin", is_flag=True, help="Without models of its own family tree (after query lineage --all).")
@atlas_option
@output_options
def purity(
    base: str | None, representation: str, by: str, k: int | None, no_kin: bool, atlas: str, output: str
) -> None:
    """Measure whether models tuned on one dataset lie together.

    Purity is the share of a model's nearest neighbours that share a dataset with it, averaged over models.
    """
    with opened_atlas(atlas) as opened:
        result = opened.purity(base, representation=representation, k=k, kin=not no_kin)
        emit(result.to_dict(by_model=by == "model"), output)
        for note in dict.fromkeys((result.interval_note, result.cross_author.interval_note)):
            if note:
                say(note)


@main.command()
@click.argument("model")
@base_option()
@atlas_option
@output_options
def show(model: str, base: str | None, atlas: str, output: str) -> None:
    """Everything known of MODEL."""
    with opened_atlas(atlas) as opened:
        emit(opened.show(model, base), output)


@main.command()
@click.argument("statement")
@click.option("--limit", default=10_000, show_default=True, type=click.IntRange(min=1), help="Most rows.")
@click.option("--timeout", default=30.0, show_default=True, type=FiniteRange(min=0.1), help="Most seconds.")
@atlas_option
@output_options
def sql(statement: str, limit: int, timeout: float, atlas: str, output: str) -> None:
    """Run one SELECT; "-" reads it from stdin. Try SHOW TABLES, or SUMMARIZE models."""
    text = _whole_stdin() if statement == "-" else statement
    with opened_atlas(atlas) as opened:
        found = opened.sql(text, limit=limit, seconds=timeout)
        emit(found.as_dicts(), output, columns=found.columns)
        if found.truncated:
            say(f"only the first {limit} rows; raise --limit for more")


def _whole_stdin() -> str:
    """What is piped in, as UTF-8 in every locale; bytes that are not stay as escapes, and are refused in a sentence."""
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _explained(row: dict[str, Any]) -> dict[str, Any]:
    """For a table: the three families and layers that add most."""
    because = row.pop("because", None)
    if because is not None:
        for name in ("families", "layers"):
            row[name] = [f"{key} {part:.2f}" for key, part in list(because[name].items())[:3]]
    return row


def _tell_oddities(opened: AtlasReader, model: str, base: str | None) -> None:
    """What the similarities do not say: that the weights are of another origin, or an adapter's highest similarity."""
    from indexer.names import ModelRef
    from query.similar import ceiling, unrelated

    try:
        known = opened.find(ModelRef.parse(model), base)
    except AtlasError:
        return
    if known is None:
        return
    if warning := unrelated(opened, known):
        say(warning)
    highest = ceiling(opened, known)
    if highest is not None:
        say(f"it leaves some matrices untouched: its similarity to a full fine-tune cannot exceed {highest:.2f}")


main.add_command(lineage)
for study in (*STUDIES, *DEPTHS):
    main.add_command(study)
