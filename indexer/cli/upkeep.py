"""The commands that look after an atlas and share it: status, verify, rebuild, prune, represent, push, pull, merge."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from indexer import library
from indexer.builds.options import RebuildOptions, RepresentOptions
from indexer.cli.options import options_for, print_note
from indexer.console.advice import for_command_line
from indexer.console.terminal import atlas_option, emit, output_options, say
from indexer.quantities import size_in_words
from indexer.share.options import PushOptions

ROWS = ("csv", "jsonl")  # formats that print one kind of row


def _representations(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from indexer.records.representations.registry import REPRESENTATIONS

    return [name for name in REPRESENTATIONS if name.startswith(typed)]


@click.command()
@click.option("--details", is_flag=True, help="Show everything in the table.")
@click.option("--hub", is_flag=True, help="Test the Hub instead, like `index doctor`.")
@atlas_option
@output_options
@click.pass_context
def status(context: click.Context, details: bool, hub: bool, atlas: str, output: str) -> None:
    """Show what is in the atlas."""
    if hub:
        context.invoke(doctor, base=None, model=None, output=output)
        return
    description = library.status(atlas)
    if output == "table" and not details:
        description = _in_short(description)
    emit(description["bases"] if output in ROWS else description, output)


def _in_short(description: dict[str, Any]) -> dict[str, Any]:
    """The status without commits, file names and zeros, with one line for each reason of skipped and failed models."""
    counts = ("indexed", "sampled", "skipped", "failed", "pending", "gone")
    shown = [name for name in counts if any(row[name] for row in description["bases"])]
    published: dict[str, list[str]] = {row["base"]: [] for row in description["bases"]}
    for row in description["representations"]:
        published[row["base"]].append(row["representation"])
    flagged = [f"{number:,} {name.replace('_', ' ')}" for name, number in description["flags"].items() if number]
    short = {
        "atlas": description["atlas"],
        "published": description["published"],
        "size": _sizes(description["bytes"]),
        "flagged": flagged,
        "bases": [{name: row[name] for name in ("base", "listed", *shown)} for row in description["bases"]],
        "sources": [_source_in_short(row) for row in description.get("sources", ())],
        "representations": [{"base": base, "names": names} for base, names in published.items()],
        "failures": [{name: row[name] for name in ("reason", "status", "models")} for row in description["failures"]],
    }
    return {name: value for name, value in short.items() if value}


def _sizes(sizes: dict[str, int]) -> str:
    """The size of all, and of what takes most: "3.2 GB: bases 2.9 GB, records 240 MB, database 8 MB"."""
    parts = sorted(((size, kind) for kind, size in sizes.items() if size), reverse=True)
    return f"{size_in_words(sum(sizes.values()))}: {', '.join(f'{kind} {size_in_words(size)}' for size, kind in parts)}"


def _source_in_short(row: dict[str, Any]) -> dict[str, Any]:
    """A tree without its author and without zeros of what is rare."""
    usual = ("address", "models", "indexed", "conversions", "another_base", "base_not_named", "left", "seen")
    shown = {name: row[name] for name in usual if name != "conversions" or row[name]}
    return shown | {"address": row["address"] or "not stored"}


@click.command()
@click.option("--base", metavar="ID", help="A base with fine-tunes. Default: google-bert/bert-base-uncased.")
@click.option(
    "--model",
    metavar="ID",
    help="A model with a small model.safetensors. Default: sentence-transformers/all-MiniLM-L6-v2.",
)
@output_options
@click.pass_context
def doctor(context: click.Context, base: str | None, model: str | None, output: str) -> None:
    """Test the Hub with a dozen requests, and print what works and what to do; exit 1 if a build cannot work."""
    from indexer.builds.doctor import doctor as test_hub

    diagnosis = test_hub(base, model)
    if output in ("json", *ROWS):
        emit(diagnosis.to_dict() if output == "json" else diagnosis.steps, output)
    else:
        rows = [
            {"step": step.step, "state": "ok" if step.ok else "not ok", "found": step.found} for step in diagnosis.steps
        ]
        emit(rows, output)
        for step in diagnosis.steps:
            if not step.ok and step.advice:
                say(f"{step.step}: {step.advice}")
        say(f"{diagnosis.requests} requests in {diagnosis.seconds:.0f} s")
    if not diagnosis.ok:
        context.exit(1)


@click.command()
@click.option("--base", metavar="ID", help="Only the listing of this base.")
@atlas_option
@output_options
def listing(base: str | None, atlas: str, output: str) -> None:
    """Print the models that the Hub listed, with what they claim; with --format jsonl also the Hub's own fields."""
    columns = ["base", "model", "relation", "claimed_by", "parent", "first_seen", "last_seen", "deleted_at_hub"]
    rows = library.listed_models(atlas, base)
    emit(rows if output in ("json", "jsonl") else ({name: row[name] for name in columns} for row in rows), output)


@click.command()
@options_for(library.verify, "strict")
@atlas_option
@output_options
@click.pass_context
def verify(context: click.Context, strict: bool, atlas: str, output: str) -> None:
    """Check every file against its checksum and the database against the files; exit 1 if anything disagrees."""
    disagreements = library.verify(atlas, strict=strict)
    rows = [
        asdict(disagreement) | {"problem": for_command_line(disagreement.problem)} for disagreement in disagreements
    ]
    emit(
        rows if output in ROWS else {"ok": not disagreements, "disagreements": rows},
        output,
        columns=["kind", "what", "problem"],
    )
    if disagreements:
        context.exit(1)


@click.command()
@options_for(RebuildOptions)
@atlas_option
@output_options
def rebuild(atlas: str, output: str, **chosen: Any) -> None:
    """Rebuild the database and the FAISS files from the listing and the records, without reading a checkpoint.

    The vectors' centre is computed again from all models. Models that a listing lacks are taken from the old database
    and the records. Nothing is changed if models would be lost.
    """
    emit(library.rebuild(atlas, progress=print_note, **chosen), output)


@click.command()
@options_for(library.prune, "dry_run")
@atlas_option
@output_options
def prune(dry_run: bool, atlas: str, output: str) -> None:
    """Remove what the atlas does not need, or can make or fetch again, to save disk space.

    Of a base whose models are all adapters some rows are kept, unless an adapter needs more (DoRA, IA3 and others whose
    change depends on the weights). Records, vectors and matrices that no publish uses go, and files that killed
    commands left.
    """
    report = library.prune(atlas, dry_run=dry_run)
    emit(
        report["removed"] if output in ROWS or output == "table" else report,
        output,
        columns=["kind", "what", "bytes", "why"],
    )
    if output == "table":
        say(f"{size_in_words(report['bytes'])} {'would be' if dry_run else 'were'} freed")


class _Represent(click.Command):
    """Its help names the representations, which are only imported for it."""

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help with the names."""
        from indexer.records.representations.registry import DEFAULT, REPRESENTATIONS, offered

        super().format_help_text(context, formatter)
        *names, last = (name for name in REPRESENTATIONS if name != DEFAULT)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                f"NAME is {', '.join(names)} or {last}. A build publishes {DEFAULT} and, if a model of the base has "
                f"use for them, {' and '.join(offered())}."
            )


@click.command(cls=_Represent)
@click.argument("name", shell_complete=_representations)
@options_for(RepresentOptions)
@atlas_option
@output_options
def represent(name: str, atlas: str, output: str, **chosen: Any) -> None:
    """Publish another representation from the records.

    --vector-length computes the vectors of input again; only their length can be chosen.
    """
    emit(library.represent(name, atlas, progress=print_note, **chosen), output)


@click.command()
@click.argument("name", metavar="OWNER/NAME")
@options_for(PushOptions, without=("pack_bytes",))
@atlas_option
@output_options
def push(name: str, atlas: str, output: str, **chosen: Any) -> None:
    """Publish the atlas as the dataset OWNER/NAME on the Hub: in one commit, then a tag.

    Unchanged files are not sent again. Log in first: `hf auth login`, or set HF_TOKEN.
    """
    from indexer.share.push import push as push_atlas

    report = push_atlas(name, atlas, progress=print_note, **chosen)
    row = asdict(report)
    changes = row.pop("changes")
    if not chosen["dry_run"]:
        emit(row, output)
    elif output == "table":
        emit(changes, output)
        sizes = f"{size_in_words(report.sent_bytes)} of {size_in_words(report.bytes)}"
        say(f"{report.sent_files} of {report.files} files would be sent, {sizes}")
    else:
        emit(row | {"changes": changes}, output)


@click.command()
@click.argument("name", metavar="OWNER/NAME[@TAG]", required=False)
@click.option("--list", "listing", is_flag=True, help="List the atlases on the Hub instead.")
@click.option("--base", metavar="ID", help="With --list: only those of this base.")
@options_for(PushOptions, "with_records")
@atlas_option
@output_options
def pull(name: str | None, listing: bool, base: str | None, with_records: bool, atlas: str, output: str) -> None:
    """Fetch an atlas from the Hub into a folder of your own, and check it.

    Run it again to resume, or to fetch what was published since. The atlas is read-only until `index build --adopt`.
    """
    if (name is None) != listing:
        raise click.UsageError("Name an atlas (OWNER/NAME), or use --list without a name.")
    if name is None:
        from indexer.share.repository import atlases_on_hub

        rows = atlases_on_hub(base)
        emit(rows, output, columns=["atlas", "bases", "models", "generation", "modified", "private", "downloads"])
        if not rows:
            say("the Hub lists no atlas" + (f" of {base}" if base else ""))
        return
    if base is not None:
        raise click.UsageError("--base can only be used with --list.")
    from indexer.share.pull import pull as pull_atlas

    emit(asdict(pull_atlas(name, atlas, with_records=with_records, progress=print_note)), output)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="A B …")
@atlas_option
@output_options
def merge(sources: tuple[str, ...], atlas: str, output: str) -> None:
    """Merge the records of several atlases, of different bases or of shards of one base, into a new one (--atlas)."""
    from indexer.share.merge import merge as merge_atlases

    if len(sources) < 2:
        raise click.UsageError("Name at least two atlases.")
    emit(asdict(merge_atlases(sources, atlas, progress=print_note)), output)


UPKEEP = (status, doctor, listing, verify, rebuild, prune, represent, push, pull, merge)
