"""The commands that add models and profiles to an atlas and remove them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.atlas import AtlasFolder
from indexer.builds.options import (
    AddOptions,
    BuildOptions,
    DeepenOptions,
    ProfileOptions,
    PublishOptions,
    StartsOptions,
    WorkOptions,
)
from indexer.cli.options import base_option, options_for
from indexer.console.completion import complete_model
from indexer.console.messages import say
from indexer.console.stdin import STDIN, names_on_stdin
from indexer.console.terminal import atlas_option, emit, output_options
from indexer.errors import AtlasError, Call, Text
from indexer.quantities import duration_in_words, size_in_words

if TYPE_CHECKING:
    from indexer.builds.report import BuildReport


@click.command()
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    help="Base model. May be given several times. Default with --from: every base that a model there names.",
)
@options_for(BuildOptions)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before reading more than 2 GB (at a terminal).")
@click.option("--adopt", is_flag=True, help="Make a pulled atlas your own, and build on it.")
@atlas_option
@output_options
def build(bases: tuple[str, ...], atlas: str, output: str, yes: bool, adopt: bool, **chosen: Any) -> None:
    """Crawl the fine-tunes of a base, or the models below --from, read what is new, publish.

    Run it again at any time: unchanged models are not read again, failures are.
    """
    from indexer.builds.commands import build as build_bases
    from indexer.builds.view import BuildView
    from indexer.publish.origin import adopt as adopt_atlas

    if not bases and not chosen["sources"]:
        raise click.UsageError("Missing option '--base' or '--from'.")
    narrowed = " ".join(f"--{name} {chosen[name]}" for name in ("author", "since", "where") if chosen[name])
    if narrowed:
        advice = "Check the spelling and the date, or leave them out."
        none_listed = AtlasError(f"No listed model matches {narrowed}.", advice)
    else:
        advice = (
            "Also look for models without a base_model tag: --discover names." if chosen["discover"] == "tags" else ""
        )
        none_listed = AtlasError(f"The Hub lists no {chosen['relation']} of {', '.join(bases)}.", advice)
    if chosen["sources"]:
        none_listed = AtlasError(
            f"No model there is known to come from {', '.join(bases) or 'a base'}.", "See why above; -v says more."
        )
    origin = adopt_atlas(AtlasFolder(atlas)) if adopt else None
    if origin is not None:
        say(f"this atlas of {origin.repository} is now your own")
    with BuildView(yes) as view:
        reports = build_bases(list(bases), atlas, progress=view, confirm=view.confirm, **chosen)
    _print_reports(reports, output, "Finished work is published; run it again to continue.", none_listed)


@click.command()
@base_option("Base model.", required=True)
@click.option("--shard", required=True, metavar="I/N", help="Shard of the models, counted from 0: 0/16 … 15/16.")
@options_for(WorkOptions, without=("executor", "scheduler"))
@atlas_option
@output_options
def work(base: str, shard: str, atlas: str, output: str, **chosen: Any) -> None:
    """Do one shard of a build without publishing it: for job arrays that share a folder.

    Give all shards the same options, then run `index publish` once.
    """
    from indexer.builds.shards import Shard
    from indexer.builds.shards import work as work_shard
    from indexer.builds.view import BuildView

    with BuildView() as view:
        report = work_shard(base, shard, atlas, progress=view, **chosen)
    emit(report.to_dict() | {"shard": str(Shard.parse(shard))}, output)
    if report.stopped:
        raise AtlasError(f"Stopped: {report.stopped}.", "Finished work is kept; run it again to continue.")


@click.command()
@click.option("--base", "bases", multiple=True, metavar="ID", help="Only this base. May be given several times.")
@options_for(PublishOptions)
@atlas_option
@output_options
def publish(bases: tuple[str, ...], atlas: str, output: str, **chosen: Any) -> None:
    """Publish the results of `index work`, without using the network or reading a checkpoint."""
    from indexer.builds.shards import publish_records
    from indexer.builds.view import BuildView

    with BuildView() as view:
        reports = publish_records(bases, atlas, progress=view, **chosen)
    none_listed = AtlasError("No model is listed.", "Run `index build` or `index work`.")
    _print_reports(reports, output, "Run it again.", none_listed)


def _print_reports(reports: list[BuildReport], output: str, what_next: str, none_listed: AtlasError) -> None:
    """Print the reports. Raises AtlasError if a build stopped or indexed nothing."""
    rows = [report.to_dict() for report in reports]
    if output == "table" and sys.stdout.isatty():
        rows = [_with_units(row) for row in rows]
    emit(rows[0] if len(rows) == 1 else rows, output)
    stopped = [report for report in reports if report.stopped]
    if stopped:
        raise AtlasError(f"Stopped: {stopped[0].stopped}.", what_next)
    if not any(report.is_success or report.discovered for report in reports):
        raise none_listed
    if not any(report.is_success for report in reports):
        raise AtlasError("Nothing was indexed.", "See why: query sql 'FROM failures'")


def _with_units(row: dict[str, Any]) -> dict[str, Any]:
    """The same with units for sizes and times."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            value = _with_units(value)
        elif value is not None and name.startswith("seconds"):
            value = duration_in_words(value)
        elif value is not None and name.startswith("bytes"):
            value = size_in_words(value) + ("/s" if name.endswith("per_second") else "")
        values[name] = value
    return values


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL…", shell_complete=complete_model)
@base_option("The base they were tuned from. Default: what their files and weights tell.")
@options_for(AddOptions)
@atlas_option
@output_options
def add(models: tuple[str, ...], base: str | None, atlas: str, output: str, **chosen: Any) -> None:
    """Read models that you name, and publish them: Hub ids, addresses, owner/name@revision, folders, files of weights.

    If MODEL is "-", models are read from stdin, one per line. Paths are not stored. Add a folder again when it has
    changed; it keeps its name and its labels. All models of one base are published once.
    """
    from indexer.builds.add import add as add_models
    from indexer.builds.view import BuildView

    names = [name for model in models for name in (names_on_stdin() if model == STDIN else [model])]
    is_one = len(names) == 1
    with BuildView() as view:
        answer = add_models(names[0] if is_one else names, base, atlas, progress=view, **chosen)
    reports = answer if isinstance(answer, list) else [answer]
    rows = [report.to_dict() for report in reports]
    emit(rows[0] if len(rows) == 1 else rows, output)
    left_out = sum(report.discovered - report.indexed - report.unchanged for report in reports)
    if is_one and left_out and not reports[0].is_success:
        problem = reports[0].problem or "an earlier run refused it"
        raise AtlasError(f"Not indexed: {problem}.", Text("See: ", Call("show", names[0])))
    if left_out:
        total = sum(report.discovered for report in reports)
        hint = "The reasons are above, and in: query sql 'FROM failures'"
        raise AtlasError(f"{left_out:,} of {total:,} models were not indexed.", hint)


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_model)
@base_option("Read the rest of the sampled fine-tunes of this base.")
@options_for(DeepenOptions)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before reading more than 2 GB (at a terminal).")
@atlas_option
@output_options
def deepen(models: tuple[str, ...], base: str | None, atlas: str, output: str, yes: bool, **chosen: Any) -> None:
    """Read all block matrices of MODELS, or of a base's fine-tunes, that were only sampled so far.

    Norms and singular values become exact, and the representations that need U become available.
    """
    from indexer.builds.deepen import deepen as deepen_models
    from indexer.builds.view import BuildView

    with BuildView(yes) as view:
        report = deepen_models(models, base, atlas, progress=view, confirm=view.confirm, **chosen)
    _print_reports(
        [report], output, "Finished work is kept; run it again to continue.", AtlasError("Nothing to read.", "")
    )


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_model)
@base_option("Search for the starts of this base's adapters.")
@options_for(StartsOptions)
@atlas_option
@output_options
def starts(models: tuple[str, ...], base: str | None, atlas: str, output: str, **chosen: Any) -> None:
    """Search further for the random numbers that adapters began with: MODELS, or all of a base that have none yet.

    A build looks through the usual seeds. This also finds other seeds of adapters that training moved little, and takes
    minutes of processor an adapter. Name a model from a folder by its path.
    """
    from indexer.builds.starts import find_starts
    from indexer.builds.view import BuildView

    with BuildView() as view:
        report = find_starts(models, base, atlas, progress=view, **chosen)
    emit(report.to_dict(), output)
    if report.stopped:
        raise AtlasError(f"Stopped: {report.stopped}.", "Finished work is kept; run it again to continue.")


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--base", metavar="ID", help="Remove it only from this base. Default: from every base that has it.")
@click.option("--keep-record", is_flag=True, help="Leave its records on disk, so that adding it again reads nothing.")
@atlas_option
@output_options
def remove(model: str, base: str | None, keep_record: bool, atlas: str, output: str) -> None:
    """Remove MODEL from the atlas: from tables, vectors, profiles and records.

    Later builds ignore it; `index add` brings it back.
    """
    from indexer.upkeep.removal import remove as remove_model

    emit(remove_model(model, base, atlas, keep_record=keep_record), output)


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_model)
@click.option("--base", metavar="ID", help="Profile the fine-tunes of this base. Default: the only base of the atlas.")
@options_for(ProfileOptions)
@click.option("--dry-run", is_flag=True, help="Only print how many models, bytes and seconds it would take.")
@atlas_option
@output_options
def profile(models: tuple[str, ...], base: str | None, atlas: str, output: str, dry_run: bool, **chosen: Any) -> None:
    """Measure how much of its input each layer of MODELS, or of a base's fine-tunes, keeps.

    The measures say how much noise a layer tolerates, what a linear map recovers, on how many positions it depends, and
    how far it has moved from the base. Results on small models may not carry over to large ones.
    """
    from indexer import library

    if dry_run:
        from indexer.builds.profiling import base_and_models, profile_plan

        folder, options = AtlasFolder(atlas).require(), ProfileOptions(**chosen)
        canonical, model_ids = base_and_models(folder, base, models)
        emit(profile_plan(folder, canonical, model_ids, options), output)
        return
    report = library.profile(models, base, atlas, **chosen)
    emit(report.to_dict(), output)
    if not report.is_success:
        raise AtlasError(
            "No model was profiled.", "The reasons are printed above." if report.refused else "No model is indexed."
        )


BUILDING = (build, work, publish, add, deepen, starts, remove, profile)
