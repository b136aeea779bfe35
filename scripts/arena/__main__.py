"""``python -m scripts.arena [PART …]``: measure, keep the figures in docs/arena.json, write the tables of docs/arena.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.arena.parts import PARTS, run_part, tables_of, write_page
from scripts.family.__main__ import ENVIRONMENT
from scripts.terminal import exit_status


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    listed = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(prog="python -m scripts.arena", description=__doc__, epilog=listed)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path(".demo/arena"), help="the folder (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the page again, from docs/arena.json")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r} (choose from {', '.join(PARTS)})")
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    wanted = () if options.page else options.parts or PARTS
    return exit_status("The arena", lambda: run_parts(wanted, options.out.resolve()))


def run_parts(names: Iterable[str], out: Path) -> None:
    """Run these parts, print their tables, and write the page."""
    for name in names:
        print(f"\n{name}: {PARTS[name]}\n", flush=True)
        print(tables_of(name, run_part(name, out)), flush=True)
    write_page()


if __name__ == "__main__":
    sys.exit(main())
