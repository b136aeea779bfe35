"""What a second training changes: the same family of models, trained from several seeds, indexed and asked.

``python -m studies.trainings --out DIR`` makes the families that are missing, builds an atlas of each, and writes
docs/evidence/trainings.json; ``python -m scripts.readme`` puts the ranges into README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.family import make_family
from scripts.family.plan import SIZES
from scripts.loopback_hub import LoopbackHub
from scripts.readme import BASE, TRAININGS
from scripts.tables import decimal
from scripts.terminal import Terminal, exit_status

REPRESENTATIONS = ("input", "input_v1", "delta", "output", "spectrum", "seed")
_SHARES = ("purity", "across", "right", "vectors", "head", "brier", "calibration")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.trainings", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/trainings"), help="where families and atlases go")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["demo", "full"], help="of the family")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3], help="training seeds (default: 0 1 2 3)")
    options = parser.parse_args(arguments)
    return exit_status("The trainings", lambda: run(options.out.resolve(), options.sizes, options.seeds))


def run(out: Path, sizes: Sequence[str], seeds: Sequence[int]) -> None:
    """Train, index and ask; write docs/evidence/trainings.json after each training."""
    found: list[dict[str, Any]] = json.loads(TRAININGS.read_text(encoding="utf-8")) if TRAININGS.exists() else []
    for size in sizes:
        for seed in seeds:
            family = make_family(out / f"family-{size}-{seed}", size, training_seed=seed)
            row = {"size": size, "training_seed": seed} | figures(family, out / f"atlas-{size}-{seed}", size == "full")
            found = [one for one in found if (one["size"], one["training_seed"]) != (size, seed)] + [row]
            found.sort(key=lambda one: (one["size"], one["training_seed"]))
            TRAININGS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{size} {seed}: " + ", ".join(f"{name} {decimal(row[name], 2)}" for name in _SHARES), flush=True)
    print(f"The figures: {TRAININGS.relative_to(PROJECT)}")


def figures(family: Path, folder: Path, every: bool) -> dict[str, Any]:
    """Purity and the accuracy of predictions on an atlas of a family; with ``every``, purity of all representations."""
    folder.mkdir(parents=True, exist_ok=True)
    with LoopbackHub(family) as hub:
        ask = Terminal.of_hub(folder, hub.endpoint)
        ask(f"index build --base {BASE} --discover names" + (" --spectra" if every else ""), show=False)
        names = REPRESENTATIONS if every else REPRESENTATIONS[:1]
        for name in names[1:]:
            ask(f"index represent {name}", show=False)
        purities = {name: ask.ask(f"query purity --base {BASE} --representation {name} --json") for name in names}
        scores = ask.ask(f"query predict --evaluate --base {BASE} --json")
    by = {score["evidence"]: score for score in scores["scores"]}
    purity = purities["input"]
    return {
        "models": scores["models"],
        "purity": purity["purity"],
        "across": purity["cross_author"]["purity"],
        "right": by["together"]["accuracy"],
        "vectors": by["vectors"]["accuracy"],
        "head": by["head"]["accuracy"],
        "brier": by["together"]["brier"],
        "calibration": by["together"]["calibration_error"],
        "representations": {
            name: [one["purity"], one["cross_author"]["purity"]] for name, one in purities.items() if every
        },
    }


if __name__ == "__main__":
    sys.exit(main())
