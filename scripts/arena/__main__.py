"""``python -m scripts.arena [PART …]``: measure, keep the figures in docs/arena.json, write the tables of docs/arena.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from indexer.errors import AtlasError
from scripts.arena.parts import PARTS, PRETRAINED, run_part, tables_of, write_page
from scripts.family.__main__ import ENVIRONMENT
from scripts.terminal import CommandFailed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    listed = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(prog="python -m scripts.arena", description=__doc__, epilog=listed)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path(".demo/arena"), help="the folder (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the page again, from docs/arena.json")
    parser.add_argument(
        "--pretrained", type=Path, metavar="FOLDER",
        help="a folder with a real pretrained model, for parts that use one (default: an installed package of one)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r} (choose from {', '.join(PARTS)})")
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    if options.pretrained:
        os.environ[PRETRAINED] = str(options.pretrained.resolve())
    try:
        for name in () if options.page else options.parts or PARTS:
            print(f"\n{name}: {PARTS[name]}\n", flush=True)
            print(tables_of(name, run_part(name, options.out.resolve())), flush=True)
        write_page()
    except CommandFailed as failure:
        print(f"The arena stopped: {failure}. Run the same command again to continue.", file=sys.stderr)
        return 1
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to continue.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
