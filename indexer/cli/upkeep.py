"""The commands that look after an atlas: status, verify, rebuild, represent."""

from __future__ import annotations

from typing import Any

import click

from indexer.cli.options import index_options, length_option
from indexer.console.advice import for_command_line
from indexer.console.terminal import atlas_option, emit, output_options, say
from indexer.quantities import size_in_words

ROWS = ("csv", "jsonl")  # formats that print one kind of row


def _representations(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from indexer.records.representation import REPRESENTATIONS

    return [name for name in REPRESENTATIONS if name.startswith(typed)]


@click.command()
@click.option("--details", is_flag=True, help="Show everything in the table.")
@atlas_option
@output_options
def status(details: bool, atlas: str, output: str) -> None:
    """What is in the atlas."""
    from indexer.atlas import AtlasFolder
    from indexer.publish.maintenance import status as status_of

    found = status_of(AtlasFolder(atlas))
    if output == "table" and not details:
        found = _in_short(found)
    emit(found["bases"] if output in ROWS else found, output)


def _in_short(found: dict[str, Any]) -> dict[str, Any]:
    """The status without commits, file names and zeros, with one line for each reason of skipped and failed models."""
    counts = ("indexed", "skipped", "failed", "pending", "gone")
    shown = [name for name in counts if any(row[name] for row in found["bases"])]
    published: dict[str, list[str]] = {row["base"]: [] for row in found["bases"]}
    for row in found["representations"]:
        published[row["base"]].append(row["representation"])
    flagged = [f"{number:,} {name.replace('_', ' ')}" for name, number in found["flags"].items() if number]
    short = {
        "atlas": found["atlas"],
        "published": found["published"],
        "size": size_in_words(sum(found["bytes"].values())),
        "flagged": flagged,
        "bases": [{name: row[name] for name in ("base", "listed", *shown)} for row in found["bases"]],
        "representations": [{"base": base, "names": names} for base, names in published.items()],
        "failures": [{name: row[name] for name in ("reason", "status", "models")} for row in found["failures"]],
    }
    return {name: value for name, value in short.items() if value}


@click.command()
@click.option(
    "--strict",
    is_flag=True,
    help="Also compute everything again and compare it with schema.sql and the records, for an atlas of someone else.",
)
@atlas_option
@output_options
@click.pass_context
def verify(context: click.Context, strict: bool, atlas: str, output: str) -> None:
    """Check every file against its checksum and the database against the files; exit 1 if anything disagrees."""
    from indexer.atlas import AtlasFolder
    from indexer.publish.deep_verification import verify_deeply
    from indexer.publish.verification import verify as verify_atlas

    found = verify_deeply(AtlasFolder(atlas)) if strict else verify_atlas(AtlasFolder(atlas))
    rows = [one.as_row() | {"problem": for_command_line(one.problem)} for one in found]
    emit(
        rows if output in ROWS else {"ok": not found, "disagreements": rows},
        output,
        columns=["kind", "what", "problem"],
    )
    if found:
        context.exit(1)


@click.command()
@click.option("--force", is_flag=True, help="Even if models would be lost.")
@length_option
@atlas_option
@output_options
def rebuild(force: bool, atlas: str, output: str, **chosen: Any) -> None:
    """Make the database and the FAISS files again from listing and records; no checkpoint is read.

    The vectors' centre is computed again from all models. Models that a listing lacks are taken from the old database
    and the records. Nothing is changed if models would be lost.
    """
    from indexer.atlas import AtlasFolder
    from indexer.builds.options import index_change
    from indexer.publish.maintenance import rebuild as rebuild_atlas

    folder = AtlasFolder(atlas)
    with folder.locked("index rebuild"):
        emit(rebuild_atlas(folder, say=say, force=force, index=index_change(**chosen)), output)


@click.command()
@click.argument("name", shell_complete=_representations)
@index_options
@length_option
@atlas_option
@output_options
def represent(name: str, atlas: str, output: str, **chosen: Any) -> None:
    """Publish another representation (input_v1, output, delta, seed, seed_scaled, spectrum, depth) from the records.

    --index applies to all representations from then on. --vector-length makes the vectors of input again, the only
    ones whose length can be chosen.
    """
    from indexer.atlas import AtlasFolder
    from indexer.builds.options import index_change
    from indexer.publish.maintenance import represent as represent_atlas

    choice = index_change(**chosen)
    folder = AtlasFolder(atlas).require()
    with folder.locked(f"index represent {name}"):
        emit(represent_atlas(folder, name, choice, say), output)


UPKEEP = (status, verify, rebuild, represent)
