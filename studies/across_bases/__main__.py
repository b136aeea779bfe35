"""``python -m studies.across_bases``: train families on different bases, and measure what their words say across them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.family.__main__ import ENVIRONMENT
from scripts.terminal import exit_status


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    from studies.across_bases.families import SIZE, TONGUES, make

    parser = argparse.ArgumentParser(prog="python -m studies.across_bases", description=__doc__)
    parser.add_argument("architectures", nargs="*", default=list(TONGUES), help="families (default: all)")
    parser.add_argument("--out", type=Path, default=Path(".demo/across"), help="the folder (default: %(default)s)")
    parser.add_argument("--size", default=SIZE, help="of the families (default: %(default)s)")
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)

    def work() -> None:
        for architecture in options.architectures:
            make(options.out / architecture, architecture, options.size)

    return exit_status("The study", work)


if __name__ == "__main__":
    sys.exit(main())
