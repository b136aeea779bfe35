"""The commands that make an atlas grow and shrink. Thin skins over the library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.cli.options import (
    base_option,
    index_change_of,
    index_options,
    options_of,
    record_options,
    resource_options,
    selection_options,
)
from indexer.console.completion import complete_model
from indexer.console.terminal import atlas_option, emit, output_options
from indexer.errors import AtlasError
from indexer.names import EXECUTORS

if TYPE_CHECKING:
    from indexer.builds.report import BuildReport


@click.command()
@click.option(
    "--base",
    "bases",
    multiple=True,
    required=True,
    metavar="ID",
    help="Base model; give it again for more.",
)
@selection_options
@record_options
@resource_options
@index_options
@click.option("--executor", type=click.Choice(EXECUTORS), default="local", show_default=True,
              help="Who works: processes of this machine, or a Dask cluster.")  # fmt: skip
@click.option("--scheduler", metavar="ADDR", help="Where the Dask scheduler listens, e.g. tcp://10.0.0.1:8786.")
@click.option("--dry-run", is_flag=True, help="Crawl, then only say how many models and bytes, and how long.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before much is read (at a terminal, above 2 GB).")
@click.option("--adopt", is_flag=True, help="Go on with a pulled atlas as your own.")
@atlas_option
@output_options
def build(
    bases: tuple[str, ...], atlas: str, output: str, dry_run: bool, yes: bool, adopt: bool, **chosen: Any
) -> None:
    """Crawl the fine-tunes of a base, read what is new, publish.

    Run it again at any time: unchanged models are not read again, failures are.
    """
    from indexer.builds.bases import build_bases
    from indexer.builds.view import BuildView

    none_listed = _none_listed(bases, chosen)
    if adopt:
        _adopt(atlas)
    with BuildView(yes) as view:
        reports = build_bases(atlas, bases, options_of(chosen), dry_run, view)
    _tell(reports, output, "What was done is published; run it again to go on.", none_listed)


def _adopt(atlas: str) -> None:
    from indexer.atlas import AtlasFolder
    from indexer.console.messages import say
    from indexer.publish.origin import adopt

    origin = adopt(AtlasFolder(atlas))
    if origin is not None:
        say(f"this atlas of {origin.repository} is yours to build on from now")


@click.command()
@base_option("Base model.", required=True)
@click.option("--shard", required=True, metavar="I/N", help="Which share of the models, from 0: 0/16 … 15/16.")
@selection_options
@record_options
@resource_options
@atlas_option
@output_options
def work(base: str, shard: str, atlas: str, output: str, **chosen: Any) -> None:
    """Do one share of a build and publish nothing: for job arrays that see one folder.

    Give all shards the same options, then run `index publish` once.
    """
    from indexer.builds.shards import Shard, work_shard
    from indexer.builds.view import BuildView

    try:
        share = Shard.parse(shard)
    except ValueError as error:
        raise click.UsageError(f"--shard: {error}.") from None
    with BuildView() as view:
        report = work_shard(atlas, base, share, options_of(chosen), view)
    emit(report.to_dict() | {"shard": str(share)}, output)
    if report.stopped:
        raise AtlasError(f"Stopped: {report.stopped}.", "What was done stays; run it again to go on.")


@click.command()
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    help="Only this base; give it again for more.",
)
@click.option("--rank", type=click.IntRange(1, 256), help="Rank of the records; by default the atlas's, else theirs.")
@index_options
@atlas_option
@output_options
def publish(bases: tuple[str, ...], rank: int | None, atlas: str, output: str, **chosen: Any) -> None:
    """Publish what `index work` has done; asks nobody and reads no checkpoint."""
    from indexer.builds.report import BuildOptions
    from indexer.builds.shards import publish_records
    from indexer.builds.view import BuildView
    from indexer.names import RELATIONS

    with BuildView() as view:
        options = BuildOptions(relations=RELATIONS, index=index_change_of(chosen))
        reports = publish_records(atlas, bases, options, view, rank)
    _tell(reports, output, "Run it again.", AtlasError("No model is listed.", "Run `index build` or `index work`."))


def _none_listed(bases: tuple[str, ...], chosen: dict[str, Any]) -> AtlasError:
    """What is wrong where a crawl comes back with nothing."""
    narrowed = " ".join(f"--{name} {chosen[name]}" for name in ("author", "since") if chosen[name])
    if narrowed:
        return AtlasError(f"No listed model matches {narrowed}.", "Check the spelling and the day, or leave that out.")
    wider = "Look for models that do not name it, too: --discover names." if chosen["discover"] == "tags" else ""
    return AtlasError(f"The Hub lists no {chosen['relation']} of {', '.join(bases)}.", wider)


def _tell(reports: list[BuildReport], output: str, what_next: str, none_listed: AtlasError) -> None:
    """Print the reports; an error where a build stopped or came to nothing."""
    rows = [report.to_dict() for report in reports]
    if output == "table" and sys.stdout.isatty():
        rows = [_in_words(row) for row in rows]
    emit(rows[0] if len(rows) == 1 else rows, output)
    stopped = [report for report in reports if report.stopped]
    if stopped:
        raise AtlasError(f"Stopped: {stopped[0].stopped}.", what_next)
    if not any(report.is_success or report.discovered for report in reports):
        raise none_listed
    if not any(report.is_success for report in reports):
        raise AtlasError("Nothing was indexed.", "See why: query sql 'FROM failures'")


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """Sizes and times as a person reads them."""
    from indexer.quantities import duration_in_words, size_in_words

    def told(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: told(inner, one) for inner, one in value.items()}
        if value is None or not name.startswith(("bytes", "seconds")):
            return value
        if name.startswith("seconds"):
            return duration_in_words(value)
        return size_in_words(value) + ("/s" if name.endswith("per_second") else "")

    return {name: told(name, value) for name, value in row.items()}


@click.command()
@click.argument("model", shell_complete=complete_model)
@base_option("The base it was tuned from.", required=True)
@click.option("--name", metavar="OWNER/NAME", help="What the atlas calls a folder; by default local:FOLDER.")
@record_options
@atlas_option
@output_options
def add(model: str, base: str, name: str | None, atlas: str, output: str, **chosen: Any) -> None:
    """Add one model: a Hub id, its address, owner/name@revision, or a local checkpoint folder.

    A folder's path is kept nowhere. One that has changed is added again, under the name it has.
    """
    from indexer.builds.bases import add_model
    from indexer.builds.view import BuildView

    with BuildView() as view:
        report = add_model(atlas, model, base, options_of(chosen), view, name)
    emit(report.to_dict(), output)
    if not report.is_success:
        raise AtlasError(f"Not indexed: {report.problem or 'it was refused before'}.", f"See: `atlas.show({model!r})`")


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option(
    "--base",
    metavar="ID",
    help="Only as a model of this base; else of every base that holds it.",
)
@click.option("--keep-record", is_flag=True, help="Leave its records on disk: adding it again reads nothing.")
@atlas_option
@output_options
def remove(model: str, base: str | None, keep_record: bool, atlas: str, output: str) -> None:
    """Take MODEL out of the atlas: tables, vectors, profiles and records.

    Builds pass it over from then on; `index add` brings it back.
    """
    from indexer.builds.removal import remove_model

    emit(remove_model(atlas, model, base, keep_record=keep_record), output)


BUILDING = (build, work, publish, add, remove)
