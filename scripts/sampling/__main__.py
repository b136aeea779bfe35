"""``python -m scripts.sampling``: read families of models by several plans of rows, and measure cost and loss."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.loopback_hub import LoopbackHub, StoreError
from scripts.tables import write_from_run
from scripts.terminal import hub_environment

LATENCY, BANDWIDTH = 0.03, "20M"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 where the shipped plan loses more than it may, 2 on wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.sampling",
        description="Read families of models by several plans of rows, and measure what each costs and keeps.",
    )
    add = parser.add_argument
    add(
        "families",
        nargs="*",
        type=Path,
        metavar="DIR",
        help="folders of `python -m scripts.family`; the first chose the plan",
    )
    add("--plans", help="only these, by name, as full,shipped,16 (default: all)")
    add("--lineage", action="store_true", help="also compare the lineage of every model (minutes)")
    add("--timed", type=int, default=0, metavar="N", help="also time N models of roberta-base's size (minutes)")
    add("--work", type=Path, metavar="DIR", help="where atlases are made (default: a temporary folder)")
    add("--json", type=Path, metavar="FILE", help="write the results to this file, as they come; continue it")
    add("--doc", type=Path, metavar="FILE", help="measure nothing: fill docs/reading.md from the JSON of a run")
    options = parser.parse_args(arguments)
    if options.doc:
        from scripts.sampling.report import DOCUMENT, write_document

        return write_from_run(parser, options.doc, write_document, DOCUMENT)
    if not options.families and not options.timed:
        parser.error("name the folder of a family, which `python -m scripts.family --out DIR` makes")
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-sampling-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        try:
            with LoopbackHub(*options.families) as hub:
                # Before the first import of huggingface_hub.
                os.environ |= hub_environment(hub.endpoint, work / "huggingface")
                return measure(options, work, hub)
        except StoreError as error:
            parser.error(str(error))


def measure(options: argparse.Namespace, work: Path, hub: LoopbackHub) -> int:
    """Measure family by family and plan by plan; print the tables."""
    from scripts.sampling import study
    from scripts.sampling.report import losses, text

    results: dict[str, Any] = {"families": {}, "timed": None}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text(encoding="utf-8"))

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    wanted = set(options.plans.split(",")) if options.plans else {plan.name for plan in study.PLANS}
    if unknown := wanted - {plan.name for plan in study.PLANS}:
        print(f"no such plan: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for folder in options.families:
        base, expected = study.expected_of(folder)
        family = results["families"].setdefault(base, {"plans": {}, "lineage": {}})
        atlases = work / base.replace("/", "--")
        full = atlases / study.FULL.name
        for plan in study.PLANS:
            if plan.name not in wanted | {study.FULL.name}:
                continue
            atlas = atlases / plan.name
            if plan.name not in family["plans"] or not atlas.exists():
                cost = study.build(plan, base, atlas, hub)
                with study.in_force(plan):
                    found = {**study.describe(plan), "cost": cost, **study.measure(atlas, base, expected)}
                    found |= study.compare(atlas, full, base) if plan != study.FULL else {}
                family["plans"][plan.name] = found
                save()
                line = f"{base} {plan.name}: purity {found['purity']:.3f}, predicted {found['predicted']:.3f}"
                print(line, file=sys.stderr, flush=True)
            if options.lineage and plan in (study.SHIPPED, study.Plan(16)) and plan.name not in family["lineage"]:
                with study.in_force(plan):
                    family["lineage"][plan.name] = study.lineage(atlas, full, base)
                save()
    if options.timed:
        results["timed"] = study.time_reading(work, options.timed, LATENCY, BANDWIDTH)
        save()
    print(text(results))
    found = list(losses(results))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
