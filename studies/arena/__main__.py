"""``python -m studies.arena [PART …]``: measure, keep the figures in docs/evidence/arena.json, write the tables of docs/evidence/arena.md.

A part is a module of this package with two functions. ``run(out: Path) -> Json`` trains what it needs below ``out`` (once; an
interrupted run goes on), asks the questions, and returns figures as plain JSON. ``tables(figures: Json) -> str`` makes
Markdown of them, which stands between the markers of the part on the page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.family.__main__ import ENVIRONMENT
from scripts.tables import fill
from scripts.terminal import exit_status

Json = dict[str, Any]

PAGE, FIGURES = PROJECT / "docs" / "evidence" / "arena.md", PROJECT / "docs" / "evidence" / "arena.json"
# In the order of the page.
PARTS = {
    "adapters": "adapters and their seed",
    "open_set": "texts that no model of the atlas was tuned on",
    "disjoint": "a base that never read the data sets, usual rates",
    "methods": "other methods on the same folds",
    "confounders": "habits that go with the data",
    "lineage": "lineage beyond its generator",
    "ablations": "what each step of the vectors is worth",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    listed = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m studies.arena", description=__doc__.partition("\n")[0], epilog=listed
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--out", type=Path, default=Path(".demo/arena"), help="the folder (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the page again, from docs/evidence/arena.json")
    parser.add_argument(
        "--pretrained", type=Path, metavar="FOLDER",
        help="a folder with a real pretrained model, for parts that use one (default: an installed package of one)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r} (choose from {', '.join(PARTS)})")
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    if options.pretrained:
        os.environ["ARENA_PRETRAINED"] = str(options.pretrained.resolve())
    wanted = () if options.page else options.parts or PARTS
    return exit_status("The arena", lambda: run_parts(wanted, options.out.resolve()))


def run_parts(names: Iterable[str], out: Path) -> None:
    """Run these parts, keep their figures in docs/evidence/arena.json, print their tables, and write the page."""
    for name in names:
        print(f"\n{name}: {PARTS[name]}\n", flush=True)
        (out / name).mkdir(parents=True, exist_ok=True)
        figures: Json = importlib.import_module(f"studies.arena.{name}").run(out)
        everything = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
        everything[name] = figures
        ordered = {key: everything[key] for key in PARTS if key in everything}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in ordered.items())  # a line a part
        FIGURES.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        print(tables_of(name, figures), flush=True)
    everything = json.loads(FIGURES.read_text(encoding="utf-8"))
    fill(PAGE, {f"arena:{name}": tables_of(name, figures) for name, figures in everything.items()})


def tables_of(name: str, figures: Json) -> str:
    """The tables of one part, as Markdown."""
    text: str = importlib.import_module(f"studies.arena.{name}").tables(figures)
    return text.strip()


if __name__ == "__main__":
    sys.exit(main())
