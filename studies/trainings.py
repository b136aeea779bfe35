"""What a second training changes: the same family of models, trained from several seeds, indexed and asked.

``python -m studies.trainings --out DIR`` makes the families that are missing, builds an atlas of each, and writes
docs/evidence/trainings.json, and the ranges into docs/evidence/vectors.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.family import make_family
from scripts.family.plan import SIZES
from scripts.loopback_hub import LoopbackHub
from scripts.ship import BASE
from scripts.tables import decimal, fill
from scripts.terminal import Terminal, exit_status

TRAININGS = PROJECT / "docs" / "evidence" / "trainings.json"
PAGE = TRAININGS.with_name("vectors.md")
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
    fill(PAGE, {"trainings": sentences(found)})
    print(f"The figures: {TRAININGS.relative_to(PROJECT)}, and in words {PAGE.relative_to(PROJECT)}")


def sentences(trainings: Sequence[Mapping[str, Any]]) -> str:
    """The ranges over all trainings in words, as docs/evidence/vectors.md has them."""
    full = [training for training in trainings if training["size"] == "full"]
    spans = []
    for name in full[0]["representations"]:
        values = [training["representations"][name][0] for training in full]
        spans.append(f"`{name}` {decimal(min(values), 2)} to {decimal(max(values), 2)}")
    count = sum(training["size"] == "demo" for training in trainings)
    return (
        f"A second training gives other figures. Over {len(full)} trainings of the RoBERTa family from other seeds, "
        f"purity was: {', '.join(spans)}; across authors, `input` had {_span(trainings, 'full', 'across')}.\n`make demo` "
        f"trains the same models for a shorter time: over {count} trainings, `input` had there "
        f"{_span(trainings, 'demo', 'purity')} ({_span(trainings, 'demo', 'across')} across authors). Of its models, "
        f"{_span(trainings, 'demo', 'right')} were predicted right, with a Brier score of {_span(trainings, 'demo', 'brier')}."
    )


def _span(trainings: Sequence[Mapping[str, Any]], size: str, name: str) -> str:
    """The smallest and the largest of a figure over the trainings of one size: ".81 to .86"."""
    values = [training[name] for training in trainings if training["size"] == size]
    low, high = decimal(min(values), 2), decimal(max(values), 2)
    return low if low == high else f"{low} to {high}"


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
