"""The `index` command: build an atlas and look after it. A thin skin over the library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from indexer.cli.examples import EXAMPLES
from indexer.cli.share import SHARING
from indexer.console.completion import complete_base, complete_model
from indexer.console.ranges import FiniteRange
from indexer.console.terminal import AtlasGroup, atlas_option, emit, heed_sigterm, output_options
from indexer.console.typed import as_typed
from indexer.errors import AtlasError
from indexer.names import DISCOVERIES, EXECUTORS, SORTS

if TYPE_CHECKING:
    from indexer.builds.report import BuildOptions, BuildReport
    from indexer.vectors.choice import IndexChange


def _representations(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from indexer.records.representation import REPRESENTATIONS

    return [name for name in REPRESENTATIONS if name.startswith(typed)]


@click.group(cls=AtlasGroup, examples=EXAMPLES)
def main() -> None:
    """Build an atlas of fine-tuned models: crawl, read, vectorise, publish."""
    heed_sigterm()


def _base_option(text: str, *name: str, **options: Any) -> Any:
    return click.option("--base", *name, metavar="ID", shell_complete=complete_base, help=text, **options)


def _together(*options: Any) -> Any:
    """Several options as one decorator, in the order given."""

    def decorated(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


_length_option = click.option(
    "--vector-length", type=click.IntRange(1, 1 << 20), metavar="N",
    help="About how many numbers a vector has, divided among the matrices; 8,208 unless chosen, less for small bases.",
)  # fmt: skip

_record_options = _together(
    click.option("--rank", default=8, show_default=True, type=click.IntRange(1, 256), help="Singular triplets kept."),
    click.option(
        "--spectra",
        is_flag=True,
        help="Also keep all singular values of δW and W, for `query rank`; models without them are read again.",
    ),
    click.option("--no-keep-factors", is_flag=True, help="Keep only vectors and norms: saves disk."),
    click.option("--device", default="cpu", show_default=True, help="Where the SVD runs: cpu, cuda, cuda:1 …"),
    _length_option,
)
_selection_options = _together(
    click.option("--limit", type=click.IntRange(min=1), help="Only the first N models of the listing."),
    click.option(
        "--sort", type=click.Choice(SORTS), default="downloads", show_default=True, help="Which come first."
    ),
    click.option(
        "--relation", default="finetune,adapter", show_default=True, help="finetune, adapter, merge, quantized."
    ),
    click.option("--discover", type=click.Choice(DISCOVERIES), default="tags", show_default=True,
                 help="names: also look for untagged fine-tunes by card, config and name."),
    click.option("--descendants", is_flag=True, help="Follow fine-tunes of fine-tunes."),
    click.option("--since", metavar="DATE", help="Only models created on or after this day (2024-01-31)."),
    click.option("--author", help="Only this author's models."),
    click.option("--retry-failed", is_flag=True, help="Try every failure again now, however recent."),
)  # fmt: skip
_resource_options = _together(
    click.option("--workers", type=click.IntRange(1, 256), help="Processes; one for each processor by default."),
    click.option("--memory", metavar="SIZE",
                 help="Most for all workers, e.g. 2G; by default half of what is free. "
                 "Publishing takes some besides: 1.5 GB for 10,000 new models."),
    click.option("--bandwidth", metavar="SIZE", help="Most bytes a second for all workers, e.g. 20M."),
)  # fmt: skip

_index_options = _together(
    click.option("--index", metavar="auto|exact|FACTORY",
                 help="How vectors are searched: auto is exact while that is instant, then what fits."),
    click.option("--index-memory", metavar="SIZE",
                 help="Most that a compressed index may take, e.g. 4G; 1 GiB unless chosen."),
    click.option("--recall", type=FiniteRange(0, 1), help="Least recall@10 of a compressed index; 0.95 unless chosen."),
)  # fmt: skip


@main.command()
@click.option(
    "--base",
    "bases",
    multiple=True,
    required=True,
    metavar="ID",
    help="Base model; give it again for more.",
)
@_selection_options
@_record_options
@_resource_options
@_index_options
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
        reports = build_bases(atlas, bases, _options(chosen), dry_run, view)
    _tell(reports, output, "What was done is published; run it again to go on.", none_listed)


def _adopt(atlas: str) -> None:
    from indexer.atlas import AtlasFolder
    from indexer.console.messages import say
    from indexer.share.origin import adopt

    origin = adopt(AtlasFolder(atlas))
    if origin is not None:
        say(f"this atlas of {origin.repository} is yours to build on from now")


@main.command()
@_base_option("Base model.", required=True)
@click.option("--shard", required=True, metavar="I/N", help="Which share of the models, from 0: 0/16 … 15/16.")
@_selection_options
@_record_options
@_resource_options
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
        report = work_shard(atlas, base, share, _options(chosen), view)
    emit(report.to_dict() | {"shard": str(share)}, output)
    if report.stopped:
        raise AtlasError(f"Stopped: {report.stopped}.", "What was done stays; run it again to go on.")


@main.command()
@click.option(
    "--base",
    "bases",
    multiple=True,
    metavar="ID",
    help="Only this base; give it again for more.",
)
@click.option("--rank", type=click.IntRange(1, 256), help="Rank of the records; by default the atlas's, else theirs.")
@_index_options
@atlas_option
@output_options
def publish(bases: tuple[str, ...], rank: int | None, atlas: str, output: str, **chosen: Any) -> None:
    """Publish what `index work` has done; asks nobody and reads no checkpoint."""
    from indexer.builds.report import BuildOptions
    from indexer.builds.shards import publish_records
    from indexer.builds.view import BuildView
    from indexer.names import RELATIONS

    with BuildView() as view:
        options = BuildOptions(relations=RELATIONS, index=_index(chosen))
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


@main.command()
@click.argument("model", shell_complete=complete_model)
@_base_option("The base it was tuned from.", required=True)
@click.option("--name", metavar="OWNER/NAME", help="What the atlas calls a folder; by default local:FOLDER.")
@_record_options
@atlas_option
@output_options
def add(model: str, base: str, name: str | None, atlas: str, output: str, **chosen: Any) -> None:
    """Add one model: a Hub id, its address, owner/name@revision, or a local checkpoint folder.

    A folder's path is kept nowhere. One that has changed is added again, under the name it has.
    """
    from indexer.builds.bases import add_model
    from indexer.builds.view import BuildView

    with BuildView() as view:
        report = add_model(atlas, model, base, _options(chosen), view, name)
    emit(report.to_dict(), output)
    if not report.is_success:
        raise AtlasError(f"Not indexed: {report.problem or 'it was refused before'}.", f"See: `atlas.show({model!r})`")


@main.command()
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


@main.command()
@click.argument("models", nargs=-1, shell_complete=complete_model)
@click.option(
    "--base",
    metavar="ID",
    help="Profile the fine-tunes of this base; default the atlas's only one.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many of them, most downloads first.")
@click.option("--with-untrained", is_flag=True, help="Also the base's architecture with fresh weights, as a yardstick.")
@click.option(
    "--probe", type=click.Choice(["random", "text", "image"]), help="What to ask with; default random, or image."
)
@click.option("--text", metavar="FILE", help="Ask with this text instead of the sentences shipped.")
@click.option("--image", "images", multiple=True, metavar="FILE", help="Ask with this image; give it again for more.")
@click.option("--recover", is_flag=True, help="Also find the input again by gradients, layer by layer.")
@click.option("--exact", is_flag=True, help="Also find it exactly, by search: a certificate, no measure of depth.")
@click.option("--layers", metavar="1,6,12", help="Only these; default all, or 12 evenly spaced.")
@click.option(
    "--recipe",
    type=click.Choice(["default", "seed"]),
    default="default",
    show_default=True,
    help="seed: also the seeds' own descent.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Steps of the seeds' recipe.")
@click.option("--rate", type=FiniteRange(0, 1e6), help="Its first rate.")
@click.option(
    "--shift", type=FiniteRange(0, 1e6), help="σ of the seeds' criterion; default .35 of the embeddings' own."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31), help="Seed of all draws.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 …")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes, a model and a thread each; default 1.")
@click.option("--memory", metavar="SIZE", help="Most for all of them, e.g. 4G; by default what is free.")
@click.option("--dry-run", is_flag=True, help="Only say how many models, bytes and seconds.")
@atlas_option
@output_options
def profile(models: tuple[str, ...], base: str | None, atlas: str, output: str, dry_run: bool, **chosen: Any) -> None:
    """Measure what each layer of MODELS, or of a base's fine-tunes, keeps of its input.

    Noise it bears, what is read off linearly, how broadly it looks, and how far it has moved from the base. Profiles
    of small models are no promise for large ones.
    """
    from indexer.atlas import AtlasFolder
    from indexer.builds.profile_options import base_and_models, profile_options
    from indexer.builds.profiling import profile_base, profile_plan

    folder = AtlasFolder(atlas).require()
    options = profile_options(chosen)
    canonical, named = base_and_models(folder, base, models)
    if dry_run:
        emit(profile_plan(folder, canonical, named, options), output)
        return
    with folder.locked("index profile"):
        report = profile_base(folder, canonical, named, options)
    emit(report.as_row(), output)
    if not report.is_success:
        raise AtlasError("No model was profiled.", "The reasons stand above." if report.refused else "None is indexed.")


@main.command()
@atlas_option
@output_options
def status(atlas: str, output: str) -> None:
    """What is in the atlas."""
    from indexer.atlas import AtlasFolder
    from indexer.publish.maintenance import status as status_of

    emit(status_of(AtlasFolder(atlas)), output)


@main.command()
@click.option(
    "--strict",
    is_flag=True,
    help="For an atlas of somebody else: is it what schema.sql and its records say? Everything is computed again.",
)
@atlas_option
@output_options
@click.pass_context
def verify(context: click.Context, strict: bool, atlas: str, output: str) -> None:
    """Check every file against its checksum and the database against the files; exit 1 if anything disagrees."""
    from indexer.atlas import AtlasFolder
    from indexer.publish.strictness import verify_strictly
    from indexer.publish.verification import verify as verify_atlas

    found = verify_strictly(AtlasFolder(atlas)) if strict else verify_atlas(AtlasFolder(atlas))
    emit(
        {"ok": not found, "disagreements": [one.as_row() | {"problem": as_typed(one.problem)} for one in found]}, output
    )
    if found:
        context.exit(1)


@main.command()
@click.option("--force", is_flag=True, help="Even where fewer models would be left than there are.")
@_length_option
@atlas_option
@output_options
def rebuild(force: bool, atlas: str, output: str, **chosen: Any) -> None:
    """Make the database and the FAISS files again from listing and records; no checkpoint is read.

    The vectors' centre is made anew from all models. What a listing lacks is taken from the old database and the
    records. Nothing is changed where models would be lost.
    """
    from indexer.atlas import AtlasFolder
    from indexer.console.messages import say
    from indexer.publish.maintenance import rebuild as rebuild_atlas

    folder = AtlasFolder(atlas)
    with folder.locked("index rebuild"):
        emit(rebuild_atlas(folder, say=say, force=force, index=_index(chosen)), output)


@main.command()
@click.argument("name", shell_complete=_representations)
@_index_options
@_length_option
@atlas_option
@output_options
def represent(name: str, atlas: str, output: str, **chosen: Any) -> None:
    """Publish another representation (input_v1, output, delta, seed, seed_scaled, spectrum, depth) from the records.

    With --index the vectors of all representations are searched that way from now on; with --vector-length those of
    input, whose length can be chosen, are made again.
    """
    from indexer.atlas import AtlasFolder
    from indexer.console.messages import say
    from indexer.publish.maintenance import represent as represent_atlas

    choice = _index(chosen)
    folder = AtlasFolder(atlas).require()
    with folder.locked(f"index represent {name}"):
        emit(represent_atlas(folder, name, choice, say), output)


def _options(chosen: dict[str, Any]) -> BuildOptions:
    """The options of a build; what is wrong with one is a usage error."""
    from indexer.builds.options import build_options

    keep_factors = not chosen.pop("no_keep_factors")
    try:
        return build_options(keep_factors=keep_factors, **chosen)
    except AtlasError as error:
        raise click.UsageError(as_typed(str(error))) from None


def _index(chosen: dict[str, Any]) -> IndexChange | None:
    """The index asked for, None where nothing is said of it; its options are taken out of ``chosen``."""
    from indexer.builds.options import index_change

    index, memory, recall = (chosen.pop(name, None) for name in ("index", "index_memory", "recall"))
    length = chosen.pop("vector_length", None)
    try:
        return index_change(index, memory, recall, length)
    except AtlasError as error:
        raise click.UsageError(as_typed(str(error))) from None


for command in SHARING:
    main.add_command(command)
