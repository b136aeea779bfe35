"""Train adapters that share seeds (once), index them from a loopback Hub, and print the tables of docs/evidence/vectors.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from query import Atlas
from query.faces.atlas import opened
from query.models.reader import AtlasReader
from scripts.family.__main__ import ENVIRONMENT
from scripts.family.store import RESULTS, read_json
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown
from scripts.terminal import Terminal, exit_status
from studies.adapters.study import (
    MEASURES,
    Row,
    Started,
    Study,
    against_chance,
    load_study,
    null,
    read_started,
    starts,
    triples,
    whole,
)

ARCHITECTURES = ("roberta", "gpt2", "bert")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.adapters", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/adapters"), help="the folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)  # before anything imports torch

    def run() -> None:
        for name in ARCHITECTURES:
            folder = options.out.resolve() / name
            written = tables(figures_of(load_study(name), folder))
            print(f"\n{written}", flush=True)
            (folder / "tables.md").write_text(f"{written}\n", encoding="utf-8")

    return exit_status("The study", run)


# ---- figures as plain JSON, and their tables in Markdown

MATRICES = {"qv": "query and value", "all": "all linear"}
LEARNT = 0.1  # an adapter has learnt something if its accuracy is this much above the commonest label's share
NULLS = {"labels at random": 0.0, "half by the seed": 0.5, "four of five by the seed": 0.8}


def figures_of(study: Study, out: Path) -> dict[str, Any]:
    """Train the adapters below ``out`` and index them there from a loopback Hub, and measure; what is there is kept."""
    from scripts.family.family import build

    build(out / "family", study.plan)
    with LoopbackHub(out / "family") as hub:
        run = Terminal.of_hub(out, hub.endpoint)
        run(f"index build --base {study.plan.base} --discover names", show=False)
        run("index rebuild", show=False)  # a build that published twice may have kept the first centres
        edges = json.loads(run(f"query lineage --all --base {study.plan.base} --json", show=False))
    # None was made from another fine-tune.
    children = {edge["model"] for edge in edges if edge["parent"] not in (None, study.plan.base)}
    with Atlas(out / "atlas") as atlas, opened(atlas) as reader:
        return measure(reader, study, out / "family") | {"children": len(children)}


def measure(atlas: AtlasReader, study: Study, family: Path) -> dict[str, Any]:
    """By row, of all models and of nulls, and how initialisations were recognised; NaN is None.

    Before: of whole changes, with nothing subtracted; after: as published.
    """
    started = read_started(atlas, study.plan.base)
    labels = started.labels
    before, after = started.plain, started.population.table
    found = {"the data": [whole(started, table, labels) for table in (before, after)]}
    found |= {name: null(started, share) for name, share in NULLS.items()}
    # None is a duplicate.
    repeats = atlas.rows(
        "SELECT count(*) AS n FROM models WHERE base = ? AND duplicate_of IS NOT NULL", [study.plan.base]
    )
    return {
        "base": study.plan.base,
        "adapters": len(started.adapters),
        "full": len(labels) - len(started.adapters),
        "rows": _by_row(started, study, family),
        "whole": {
            name: [[None if math.isnan(value) else round(value, 4) for value in side] for side in pair]
            for name, pair in found.items()
        },
        "starts": {name: list(counts) for name, counts in starts(started, study).items()},
        "duplicates": repeats[0]["n"],
    }


def _by_row(started: Started, study: Study, family: Path) -> list[dict[str, Any]]:
    """By rank, matrices and rate: what was learnt, and how alike adapters are after and before."""
    before, after, runs_by_model = started.plain, started.population.table, study.runs
    places_of: dict[Row, list[int]] = {}
    for place, model in enumerate(started.population.models):
        if model in study.shared:
            places_of.setdefault(study.shared[model], []).append(place)
    rows = []
    for row, places in sorted(places_of.items()):
        runs = [runs_by_model[started.population.models[place]] for place in places]
        results = [read_json(family / run.model / RESULTS) for run in runs]
        learnt = [one["eval_accuracy"] >= one["eval_majority"] + LEARNT for one in results]
        by_dataset: dict[str, list[float]] = {}
        for run, result in zip(runs, results, strict=True):
            by_dataset.setdefault(run.dataset, []).append(result["eval_accuracy"])
        accuracies = [float(np.mean(found)) for found in by_dataset.values()]
        gains = [
            math.log(len(study.plan.datasets[run.dataset].labels)) - result["eval_loss"]
            for run, result in zip(runs, results, strict=True)
        ]
        sides = {"before": before.take(places), "after": after.take(places)}
        values = {name: triples(table, runs, learnt) for name, table in sides.items()}
        rows.append(
            {**row._asdict(), "adapters": len(runs), "accuracy": round(float(np.mean(accuracies)), 4),
             "worst": round(min(accuracies), 4), "gain": round(float(np.mean(gains)), 4),
             "by_data": [round(against_chance(table, runs)[0], 4) for table in sides.values()],
             "without_data": round(against_chance(sides["after"], runs)[1], 4),
             **{name: [None if math.isnan(one) else round(one, 4) for one in found] for name, found in values.items()}}
        )  # fmt: skip
    return rows


def tables(figures: dict[str, Any]) -> str:
    """The figures of one base as Markdown: before → after where there are two."""
    by_row = [
        ["rank, matrices, rate", "accuracy", "worst data set", "loss below guessing", "same data, other seed",
         "other data, same seed", "neither", "right", "right, if the data said nothing", "right, of learnt",
         "before: right", "other seed: same data before other data"]
    ]  # fmt: skip
    for row in figures["rows"]:
        *alike, right, of_learnt = row["after"]
        *alike_before, right_before, _ = row["before"]
        by_row.append(
            [
                f"{row['rank']}, {MATRICES[row['targets']]}, {row['rate']:g}",
                *(decimal(row[name], 2) for name in ("accuracy", "worst", "gain")),
                *map(decimal, alike),
                *(decimal(one, 2) for one in (right, row["without_data"], of_learnt)),
                f"{decimal(right_before, 2)} ({', '.join(map(decimal, alike_before))})",
                f"{decimal(row['by_data'][0], 2)} → {decimal(row['by_data'][1], 2)}",
            ]
        )
    overall: list[Sequence[str]] = [["labels", *MEASURES]]
    for name, (was, now) in figures["whole"].items():
        pairs = zip(was, now, strict=True)
        overall.append(
            [name, *("–" if old is new is None else f"{decimal(old)} → {decimal(new)}" for old, new in pairs)]
        )
    found = [
        f"pairs of {name}: {pairs:,}, taken for one: {taken:,}" for name, (pairs, taken) in figures["starts"].items()
    ]
    found.append(
        f"taken for duplicates: {figures['duplicates']}; taken for made from another fine-tune: {figures['children']}"
    )
    title = f"### {figures['base']}: {figures['adapters']} adapters, {figures['full']} full fine-tunes"
    return "\n\n".join([title, markdown(by_row), markdown(overall), "\n".join(f"- {one}" for one in found)])


if __name__ == "__main__":
    sys.exit(main())
