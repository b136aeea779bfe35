"""``python -m studies.trace``: train models whose every batch is kept, and compare what the product says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

CONTEXT = {"help_option_names": ["-h", "--help"]}
OUT = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where everything is kept."
)


@click.group(context_settings=CONTEXT)
def main() -> None:
    """Test what `query trace` says of the text that a model was trained on, by runs that are known to the last batch.

    Every command makes the runs that are not there yet: OUT/hub is the folder of a loopback Hub. Each
    checkpoint comes with NAME.replay.json and NAME.replay.npz.
    """


@main.command()
@OUT
@click.option("--only", default="*", metavar="PATTERN", show_default=True, help="Only runs of this name.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file.")
def check(out: Path, only: str, file: Path | None) -> None:
    """Compare the product with the replays; exit with 1 if a text is certified absent that training used.

    A text does not count if every step that met it was too small to change a bit of its rows.
    """
    from studies.trace.check import check_run, check_tables
    from studies.trace.making import Maker

    maker = Maker(out.resolve())
    found = [check_run(maker, run) for run in maker.make(only)]
    if not found:
        raise click.BadParameter(f"no run fits {only!r}", param_hint="--only")
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    click.echo(check_tables(found))
    if any(row.get("used_certified") or row.get("cut_certified") for row in found):
        click.echo("A text that was used is certified absent.", err=True)
        sys.exit(1)


@main.command()
@OUT
@click.option("--base", default="bert", show_default=True, help="A base of studies/trace/plan.py.")
def shares(out: Path, base: str) -> None:
    """Tune models on planted mixtures of two data sets, and compare the shares that `query ask --among` gives."""
    from studies.trace.making import Maker
    from studies.trace.mixtures import mixtures, table

    click.echo(table(mixtures(Maker(out.resolve()), base)))


if __name__ == "__main__":
    main()
