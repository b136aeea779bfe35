"""``python -m studies.across_bases``: tune families on different bases, compare their models, write docs/evidence/across-bases.md.

The figures are kept in docs/evidence/across-bases.json. An interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.family.__main__ import ENVIRONMENT
from scripts.tables import fill
from scripts.terminal import exit_status

PAGE, FIGURES = PROJECT / "docs" / "evidence" / "across-bases.md", PROJECT / "docs" / "evidence" / "across-bases.json"
PICTURES = {
    "light": PROJECT / "docs" / "evidence" / "across-bases.png",
    "dark": PROJECT / "docs" / "evidence" / "across-bases-dark.png",
}
REAL = "minilm"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    from studies.across_bases.families import TONGUES

    parser = argparse.ArgumentParser(prog="python -m studies.across_bases", description=__doc__)
    parser.add_argument("architectures", nargs="*", metavar="NAME", help=f"of {', '.join(TONGUES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path(".demo/across"), help="the folder (default: %(default)s)")
    parser.add_argument("--pretrained", type=Path, metavar="FOLDER", help="a real all-MiniLM-L6-v2, tuned as well")
    parser.add_argument("--page", action="store_true", help="only write the page again, from the figures that are kept")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.architectures) - set(TONGUES)):
        parser.error(f"unknown family {unknown[0]!r} (choose from {', '.join(TONGUES)})")
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    return exit_status("The study", lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Train what is missing, index, measure, draw, and write the page."""
    if not options.page:
        from studies.across_bases.families import TONGUES, atlas_of, make, make_real

        out = options.out.resolve()
        folders = {name: out / name for name in options.architectures or TONGUES}
        for name, folder in folders.items():
            make(folder, name)
        if options.pretrained is not None:
            make_real(out / REAL, options.pretrained)
            folders[REAL] = out / REAL
        write_figures(atlas_of(folders, out / "atlas-of"))
    from studies.across_bases.study import tables

    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    fill(PAGE, tables(figures))


def write_figures(atlas: Path) -> None:
    """Measure, and draw the map in both themes."""
    from query import Atlas
    from studies.across_bases.study import measure

    FIGURES.write_text(json.dumps(measure(atlas), indent=1) + "\n", encoding="utf-8")
    with Atlas(atlas) as opened:
        drawn = opened.map(all_bases=True)
    for theme, path in PICTURES.items():
        drawn.write(path, theme=theme)


if __name__ == "__main__":
    sys.exit(main())
