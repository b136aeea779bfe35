"""``python -m scripts.trace``: train models whose every batch is kept, and compare what the product says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=CONTEXT)
def main() -> None:
    """Test what `query trace` says of the text that a model was trained on, by runs that are known to the last batch.

    Every command makes the runs that are not there yet: OUT/hub is the folder of a loopback Hub, and beside each
    checkpoint lie NAME.replay.json and NAME.replay.npz.
    """


def common(command: Callable[..., None]) -> Callable[..., None]:
    """The options of all commands."""
    out = click.option(
        "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where everything is kept."
    )
    only = click.option("--only", default="*", metavar="PATTERN", show_default=True, help="Only runs of this name.")
    result = click.option(
        "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file."
    )
    return out(only(result(command)))


def made(out: Path, only: str) -> tuple[Any, list[Any]]:
    """The maker and the runs that were asked for, made."""
    from scripts.trace.making import Maker

    maker = Maker(out.resolve())
    runs = maker.make(only)
    if not runs:
        raise click.BadParameter(f"no run fits {only!r}", param_hint="--only")
    return maker, runs


def keep(file: Path | None, found: Any) -> None:
    """Write the results, if a file was named."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@main.command()
@common
def make(out: Path, only: str, file: Path | None) -> None:
    """Make the runs that are not there yet, and list them."""
    from scripts.trace.replay import Replay

    maker, runs = made(out, only)
    found = []
    for run in runs:
        replay = Replay.load(maker.replay_path(run))
        found.append({"run": run.name, "steps": replay.steps, "texts": len(replay.given), "met": int(replay.met.sum())})
        click.echo(f"{run.name}: {replay.steps} steps, {len(replay.given)} texts, {found[-1]['met']} tokens")
    keep(file, found)


@main.command()
@common
def rows(out: Path, only: str, file: Path | None) -> None:
    """Measure with NumPy alone how far untouched and met rows lie apart."""
    from scripts.trace.report import rows_table
    from scripts.trace.rows import analyse

    maker, runs = made(out, only)
    found = [one for run in runs if (one := analyse(maker, run)) is not None]
    keep(file, found)
    click.echo(rows_table(found))


@main.command()
@common
def check(out: Path, only: str, file: Path | None) -> None:
    """Compare the product with the replays; exit with 1 if a text is certified absent that training used.

    A text does not count if every step that met it was too small to change a bit of its rows.
    """
    from scripts.trace.check import check as compare
    from scripts.trace.report import check_tables

    maker, runs = made(out, only)
    found = compare(maker, runs)
    keep(file, found)
    click.echo(check_tables(found))
    if any(row.get("used_certified") or row.get("cut_certified") for row in found):
        click.echo("A text that was used is certified absent.", err=True)
        sys.exit(1)


@main.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where texts are kept.")
@click.option("--base", default="bert", show_default=True, help="A base of scripts/trace/plan.py.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file.")
def shares(out: Path, base: str, file: Path | None) -> None:
    """Tune models on planted mixtures of two data sets, and compare the shares that `query ask --among` tells."""
    from scripts.trace.making import Maker
    from scripts.trace.mixtures import mixtures, table

    found = mixtures(Maker(out.resolve()), base)
    keep(file, found)
    click.echo(table(found))


if __name__ == "__main__":
    main()
