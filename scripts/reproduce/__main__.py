"""Repeat the original study: crawl its four bases, turn their fine-tunes into vectors, measure, draw.

Every command shown is the one a person would type. Run again, it trains and reads only what is missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError, install
from scripts.family import make_family
from scripts.family.plan import SIZES
from scripts.loopback_hub import LoopbackHub
from scripts.reproduce.page import PURITY_FIGURE, draw_purity, page
from scripts.reproduce.study import BASES, build, represent, study_base
from scripts.terminal import Terminal, exit_status

LIVE_LIMIT = 100  # models of each base with --live, if --limit is not given
PACKAGES = (
    "vectors-in-the-wild", "torch", "transformers", "peft", "safetensors", "huggingface_hub", "numpy", "scipy",
    "scikit-learn", "faiss-cpu", "duckdb", "umap-learn", "matplotlib", "pandas",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if something failed, or ended otherwise than planted."""
    options = parse(arguments)
    return exit_status("The study", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Do the study. Raises AtlasError where a package is missing."""
    started = time.monotonic()
    needed = {"matplotlib": ("matplotlib", "studies"), "umap": ("umap-learn", "studies")}
    for module, (package, extra) in (needed | ({} if options.live else {"peft": ("peft", "demo")})).items():
        if importlib.util.find_spec(module) is None:  # before anything is begun
            raise AtlasError(f"The study needs {package}, which is not installed.", install(extra))
    results = reproduce(options)
    print(f"\nAll this took {time.monotonic() - started:.0f} s. Read {options.out / 'results.md'}")
    failed = [
        one["base"]
        for one in results["bases"]
        if any(reply["error"] for reply in one["replies"].values()) or (one["check"] and one["check"]["mismatches"])
    ]
    return 1 if failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    names = [base.id for base in BASES]
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path(".demo/reproduce"), help="the folder (default: %(default)s)")
    add("--bases", nargs="+", choices=names, default=names, metavar="ID", help=f"of {', '.join(names)}")
    add("--live", action="store_true", help="on the real Hub (default: on families of small real models)")
    add("--limit", type=count_of, metavar="N",
        help=f"only the first N models of each base, by downloads (default: all; with --live {LIVE_LIMIT})")  # fmt: skip
    add("--size", choices=SIZES, default="full", help="of the families (default: %(default)s)")
    add("--families", type=Path, default=Path(".demo"), metavar="DIR",
        help="where families are made once and kept (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.live and options.limit is None:
        options.limit = LIVE_LIMIT
    return options


def count_of(text: str) -> int:
    """A positive number, from an option's text."""
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def reproduce(options: argparse.Namespace) -> dict[str, Any]:
    """Do the study and write its folder: results.md to read, results.json to compute with, figures and pages."""
    out = options.out.resolve()
    (out / "figures").mkdir(parents=True, exist_ok=True)
    chosen = [base for base in BASES if base.id in options.bases]
    families: dict[str, Path] = {}
    with ExitStack() as stack:
        if options.live:
            run, source = Terminal(out), os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        else:
            for base in chosen:
                # RoBERTa's family is the demo's own.
                suffix = "" if base.architecture == "roberta" else f"-{base.architecture}"
                print(f"atlas-demo/tiny-{base.architecture} replaces {base.id}", flush=True)
                folder = options.families / f"family-{options.size}{suffix}"
                families[base.id] = make_family(folder, options.size, base.architecture)
            hub = stack.enter_context(LoopbackHub(*families.values()))
            run, source = Terminal.of_hub(out, hub.endpoint), f"families of small models ({options.size}), trained here"
            print(f"Served together at {hub.endpoint}")
        ids = {}
        for base in chosen:
            asked_for = f"atlas-demo/tiny-{base.architecture}" if families else base.id
            ids[base.id] = build(run, asked_for, options.limit, is_family=bool(families))
        represent(run, list(ids.values()))
        results: dict[str, Any] = {
            "source": source,
            "limit": options.limit,
            "bases": [],
            "versions": {"python": platform.python_version()}
            | {one.name: one.version for name in PACKAGES for one in importlib.metadata.distributions(name=name)},
        }
        for base in chosen:
            results["bases"].append(study_base(run, base, ids[base.id], families.get(base.id), options.limit))
            draw_purity(results["bases"], out / PURITY_FIGURE)
            (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            (out / "results.md").write_text(page(results), encoding="utf-8")
    return results


if __name__ == "__main__":
    sys.exit(main())
