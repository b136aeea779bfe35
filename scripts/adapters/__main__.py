"""Train adapters that share seeds (once), index them from a loopback Hub, and print the tables of docs/vectors.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.adapters.figures import figures_of, tables
from scripts.adapters.study import load_study
from scripts.family.__main__ import ENVIRONMENT
from scripts.terminal import exit_status

ARCHITECTURES = ("roberta", "gpt2", "bert")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.adapters", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/adapters"), help="the folder (default: %(default)s)")
    parser.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, metavar="NAME",
        help=f"of {', '.join(ARCHITECTURES)} (default: all)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    return exit_status("The study", lambda: run_studies(options.architectures, options.out.resolve()))


def run_studies(architectures: Sequence[str], folder: Path) -> None:
    """Train, index and measure the adapters of each architecture below ``folder``, and write its tables there."""
    for name in architectures:
        written = tables(figures_of(load_study(name), folder / name))
        print(f"\n{written}", flush=True)
        (folder / name / "tables.md").write_text(f"{written}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
