"""``python -m studies.sampling``: read families of models by several plans of rows, and measure cost and loss.

Results are the JSON of a run: ``families`` by base, each with its ``plans`` by name and its ``lineage``. Tables of them go to the
terminal, and between the markers of docs/evidence/reading.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.loopback_hub import LoopbackHub, StoreError
from scripts.tables import aligned, decimal, fill, markdown, write_from_run
from scripts.terminal import hub_environment


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 where the shipped plan loses more than it may, 2 on wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.sampling",
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
    add("--work", type=Path, metavar="DIR", help="where atlases are made (default: a temporary folder)")
    add("--json", type=Path, metavar="FILE", help="write the results to this file, as they come; continue it")
    add(
        "--doc", type=Path, metavar="FILE", help="measure nothing: fill docs/evidence/reading.md from the JSON of a run"
    )
    options = parser.parse_args(arguments)
    if options.doc:
        return write_from_run(parser, options.doc, write_document, DOCUMENT)
    if not options.families:
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
    from studies.sampling import study

    results: dict[str, Any] = {"families": {}}
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
                    found = {"cost": cost, **study.measure(atlas, base, expected)}
                    found |= study.compare(atlas, full, base) if plan != study.FULL else {}
                family["plans"][plan.name] = found
                save()
                line = f"{base} {plan.name}: purity {found['purity']:.3f}, predicted {found['predicted']:.3f}"
                print(line, file=sys.stderr, flush=True)
            if options.lineage and plan in (study.SHIPPED, study.Plan(16)) and plan.name not in family["lineage"]:
                with study.in_force(plan):
                    family["lineage"][plan.name] = study.lineage(atlas, full, base)
                save()
    print(text(results))
    lost = list(losses(results))
    for line in lost:
        print(line, file=sys.stderr)
    return 1 if lost else 0


# ---- tables

DOCUMENT = PROJECT / "docs" / "evidence" / "reading.md"

# How much of purity and of accuracy the shipped plan may lose on any family.
MOST_LOST = 0.02
KEPT = ("purity", "across authors", "predicted")

ROWS = ("4", "8", "16", "32", "64", "shipped", "full")

Results = Mapping[str, Any]
Rows = list[list[str]]
Cells = list[tuple[str, str]]


def losses(results: Results) -> Iterator[str]:
    """A line for each number of KEPT that falls by more than MOST_LOST with the shipped plan."""
    for base, family in results["families"].items():
        plans = family["plans"]
        for name in KEPT:
            if {"shipped", "full"} <= plans.keys():
                lost = plans["full"][name] - plans["shipped"][name]
                if lost > MOST_LOST:
                    yield f"{base}: the shipped plan loses {lost:.3f} of {name}"


def text(results: Results) -> str:
    """Tables for a terminal."""
    return "\n\n".join(f"{name}\n{aligned(rows)}" for name, rows in tables(results).items())


def write_document(results: Results, path: Path = DOCUMENT) -> None:
    """Fill every marked part of the document. Raises ValueError if it lacks a marker."""
    fill(path, {name: markdown(rows) for name, rows in tables(results).items()})


def tables(results: Results) -> dict[str, Rows]:
    """The tables of what was measured, by the name of their part."""
    made = {
        "shipped": _shipped(results),
        "rows": _of_plans(results, ROWS, _kept),
        "found": _of_plans(results, ROWS, _found),
        "norms": _of_plans(
            results,
            ROWS[:-1],
            lambda plan: [cell for of in ("matrices", "whole models") for cell in _calibrated(of, plan[of])],
        ),
        "sigma": _of_plans(results, ROWS[:-1], lambda plan: _calibrated("matrices", plan["sigma_1"])),
        "null": _of_plans(results, ROWS, _null),
        "lineage": _lineage(results),
    }
    return {name: rows for name, rows in made.items() if len(rows) > 1}


def _of_plans(results: Results, names: tuple[str, ...], cells: Callable[[Results], Cells]) -> Rows:
    """A row for each family and plan that was measured."""
    rows: Rows = []
    for base, family in results["families"].items():
        for name in names:
            if name in family["plans"]:
                found = cells(family["plans"][name])
                rows = rows or [["family", "rows", *(title for title, _ in found)]]
                rows.append([_short(base), name, *(cell for _, cell in found)])
    return rows or [[]]


def _kept(plan: Results) -> Cells:
    cost = plan["cost"]
    return [
        ("kB a model", f"{cost['bytes'] / 1000:,.0f}"),
        ("requests a model", f"{cost['requests']:.1f}"),
        ("purity", decimal(plan["purity"])),
        ("across authors", decimal(plan["across authors"])),
        ("adapter → full", decimal(plan["adapter to full"])),
        ("purity, every 2nd matrix", decimal(plan["half of the matrices"]["purity"])),
        ("predicted", decimal(plan["predicted"])),
        ("by vectors alone", decimal(plan["predicted by vectors"])),
        ("clusters (AMI)", decimal(plan["clusters"])),
        ("correlation with full", decimal(plan.get("correlation", 1.0))),
        ("similarity to its own full vector", decimal(plan["own"][0] if "own" in plan else 1.0)),
    ]


def _found(plan: Results) -> Cells:
    counts = [
        (kind, "{} of {}".format(*plan["planted"].get(kind, [0, 0])))
        for kind in ("ordinary", "copy", "duplicate", "unrelated")
    ]
    wrong = [f"{one['model'].partition('/')[2]}: {one['found']}" for one in plan["mismatches"]]
    return [*counts, ("not as planted", "; ".join(wrong) or "none")]


def _calibrated(of: str, one: Results) -> Cells:
    if not one["count"]:
        return [(of, "0"), ("in the interval", ""), ("bias", ""), ("off by", "")]
    return [
        (of, f"{one['count']:,}"),
        ("in the interval", decimal(one["inside"] / one["count"])),
        ("bias", f"{one['bias']:+.3f}"),
        ("off by", decimal(one["off"])),
    ]


def _null(plan: Results) -> Cells:
    return [
        ("similarity of unrelated pairs, 95 %", decimal(plan["background 95 %"])),
        ("99 %", decimal(plan["background 99 %"])),
        ("purity with permuted data sets", decimal(plan["permuted"])),
        ("chance", decimal(plan["chance"])),
    ]


def _shipped(results: Results) -> Rows:
    rows = [["family", "the plan was", *(f"{name}: full → sample" for name in KEPT), f"all within {MOST_LOST}"]]
    failed = [line.partition(":")[0] for line in losses(results)]
    for place, (base, family) in enumerate(results["families"].items()):
        if {"shipped", "full"} <= family["plans"].keys():
            full, sample = family["plans"]["full"], family["plans"]["shipped"]
            kept = [f"{decimal(full[name])} → {decimal(sample[name])}" for name in KEPT]
            rows.append([_short(base), "confirmed" if place else "chosen", *kept, "NO" if base in failed else "yes"])
    return rows


def _lineage(results: Results) -> Rows:
    rows = [["family", "rows", "equal steps", "of these from another fine-tune", "models with other steps, or none"]]
    for base, family in results["families"].items():
        for name, one in family["lineage"].items():
            counts = [
                f"{one['equal']} of {one['steps']}",
                f"{one['equal from fine-tunes']} of {one['from fine-tunes']}",
            ]
            rows.append([_short(base), name, *counts, str(len(one["differ"]))])
    return rows


def _short(base: str) -> str:
    return base.partition("tiny-")[2] or base


if __name__ == "__main__":
    sys.exit(main())
