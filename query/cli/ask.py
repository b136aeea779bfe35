"""The command about texts: which models were tuned on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from query.cli.options import base_option, neighbours_option, opened_atlas, print_result, question


@question(
    click.argument("files", nargs=-1, metavar="FILE"),
    neighbours_option("Number of models to show.", 10, "--limit"),
    base_option,
    click.option("--field", metavar="NAME", help='Field of a row that holds the text. Default: "text".'),
    click.option(
        "--reference", metavar="FILE", type=Path,
        help="Texts that no model was tuned on, ideally like those the base was trained on. Default: shipped texts.",
    ),
    click.option("--where", metavar="SQL", help='Only models that satisfy this condition, e.g. "downloads > 100".'),
    click.option("--model", metavar="MODEL", help="Find which of the files in --among this model was tuned on."),
    click.option(
        "--among", metavar="FILE", multiple=True, type=Path,
        help="With --model: a file of texts, or a folder of such files. More of them may follow.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, cuda:1 …"),
)  # fmt: skip
def ask(files: tuple[str, ...], atlas: str, output: str, **options: Any) -> None:
    """Find the models that were probably tuned on texts like those in FILE: lines, JSON lines, CSV, TSV or Parquet.

    With --model and --among, find which files a model was tuned on, or none of them. If FILE is "-", texts are read
    from stdin. The texts run through the base model once; no fine-tune is run.
    """
    is_of_model = options["model"] is not None
    if bool(options["among"]) != is_of_model or (not is_of_model and len(files) != 1):
        raise click.UsageError("Name one FILE of texts, or use --model with --among FILE.")
    if is_of_model:
        options["among"] = (*options["among"], *map(Path, files))
    file = None if is_of_model else files[0]
    if options["where"] is not None:
        from query.sql import prepare

        prepare()
    with opened_atlas(atlas) as opened:
        print_result(opened.ask(file, options.pop("k"), **options), output)


ASK = (ask,)
