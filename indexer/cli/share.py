"""The commands that share an atlas: push, pull, merge."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from indexer.console.terminal import atlas_option, emit, output_options, say
from indexer.quantities import size_in_words


@click.command()
@click.argument("name", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="If the repository is new, make it private.")
@click.option("--tag", metavar="T", help="Tag of this state. Default: g and the number of the generation.")
@click.option("--with-records", is_flag=True, help="Also the records, which a build continues from: many gigabytes.")
@click.option("--with-private", is_flag=True, help="Even if models are private or gated on the Hub.")
@click.option("--with-local", is_flag=True, help="Even if models are folders of this machine.")
@click.option("--force", is_flag=True, help="Even if this replaces a newer atlas, or the repository has other files.")
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
@atlas_option
@output_options
def push(name: str, atlas: str, output: str, **chosen: Any) -> None:
    """Publish the atlas as the dataset OWNER/NAME on the Hub: all of it at once, then a tag.

    Unchanged files are not sent again. Log in first: `hf auth login`, or set HF_TOKEN.
    """
    from indexer.atlas import AtlasFolder
    from indexer.share.push import PushOptions
    from indexer.share.push import push as push_atlas

    report = push_atlas(AtlasFolder(atlas), name, PushOptions(**chosen), say)
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
@click.option("--with-records", is_flag=True, help="Also the records, which a build continues from: many gigabytes.")
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
        raise click.UsageError("--base goes with --list.")
    from indexer.atlas import AtlasFolder
    from indexer.share.pull import pull as pull_atlas

    emit(asdict(pull_atlas(AtlasFolder(atlas), name, say, with_records=with_records)), output)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="A B …")
@atlas_option
@output_options
def merge(sources: tuple[str, ...], atlas: str, output: str) -> None:
    """Make one new atlas (--atlas) from the records of several, which have different bases or shards of one."""
    from indexer.atlas import AtlasFolder
    from indexer.share.merge import merge as merge_atlases

    if len(sources) < 2:
        raise click.UsageError("Name two atlases or more.")
    emit(asdict(merge_atlases([AtlasFolder(one) for one in sources], AtlasFolder(atlas), say)), output)


SHARING = (push, pull, merge)
