"""Train adapters that share seeds (once), index them from a loopback Hub, and print the tables of docs/vectors.md."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from indexer.errors import AtlasError
from query import Atlas
from scripts.adapters.study import (
    MEASURES,
    Row,
    Started,
    Study,
    load_study,
    null,
    read_started,
    starts,
    triples,
    whole,
)
from scripts.family.__main__ import ENVIRONMENT
from scripts.family.store import RESULTS, read_json
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown
from scripts.terminal import Terminal, exit_status

ARCHITECTURES = ("roberta", "gpt2", "bert")
MATRICES = {"qv": "query and value", "all": "all linear"}
_SAME = 2e-3  # of a number of a vector: the error of 16 bits where vectors are computed again from published ones
LEARNT = 0.1  # an adapter has learnt something if its accuracy is this much above the commonest label's share
NULLS = {"labels at random": 0.0, "half by the seed": 0.5, "four of five by the seed": 0.8}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.adapters", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo/adapters"), help="the folder (default: %(default)s)")
    parser.add_argument(
        "--architectures", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, metavar="NAME",
        help=f"of {', '.join(ARCHITECTURES)} (default: all)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    return exit_status("The study", lambda: run_studies(options.architectures, options.out.resolve()))


def run_studies(architectures: Sequence[str], folder: Path) -> None:
    """Train, index and measure the adapters of each architecture below ``folder``."""
    from scripts.family.family import build

    for name in architectures:
        out, study = folder / name, load_study(name)
        build(out / "family", study.plan)
        with LoopbackHub(out / "family") as hub:
            Terminal.of_hub(out, hub.endpoint)(f"index build --base {study.plan.base} --discover names")
        with Atlas(out / "atlas") as atlas, (out / "tables.md").open("w", encoding="utf-8") as file:
            for line in tables(atlas, study, out):
                print(line, flush=True)
                file.write(f"{line}\n")


def tables(atlas: Atlas, study: Study, out: Path) -> Iterator[str]:
    """Lines of Markdown: by row, of all models and of nulls, and how initialisations were recognised."""
    started = read_started(atlas, study.plan.base)
    labels = started.labels
    before, after = started.centred(labels, by_start=False), started.population.vectors
    if np.abs(after - started.centred(labels)).max() > _SAME:
        raise AtlasError(
            "The published vectors are not those that this script computes.",
            "Run `index rebuild` there: the centres may be older than the latest models.",
        )
    yield from by_row(started, study, out, before)
    found = {"the data": [whole(started, vectors, labels) for vectors in (before, after)]}
    found |= {name: null(started, share) for name, share in NULLS.items()}
    rows = [["labels", *MEASURES]]
    for name, pair in found.items():
        cells = [
            "–" if math.isnan(was) and math.isnan(now) else f"{decimal(was)} → {decimal(now)}"
            for was, now in zip(*pair, strict=True)
        ]
        rows.append([name, *cells])
    yield f"\n{markdown(rows)}\n"
    for name, (pairs, taken) in starts(started, study).items():
        yield f"- pairs of {name}: {pairs:,}, taken for one: {taken:,}"
    # No model here is a duplicate, and none was made from another fine-tune.
    repeats = atlas.rows(
        "SELECT count(*) AS n FROM models WHERE base = ? AND duplicate_of IS NOT NULL", [study.plan.base]
    )
    steps = [edge for answer in atlas.lineages(study.plan.base) for edge in answer.edges if edge.parent]
    yield f"- taken for duplicates: {repeats[0]['n']}; taken for made from another fine-tune: {len(steps)}"


def by_row(started: Started, study: Study, out: Path, before: np.ndarray) -> Iterator[str]:
    """The table by rank, matrices and rate; ``before``: vectors without centres of initialisations."""
    yield f"\n### {study.plan.base}\n"
    shown = [
        ["rank, matrices, rate", "accuracy", "worst data set", "loss below guessing", "same data, other seed",
         "other data, same seed", "neither", "right", "right, of learnt", "right, row alone", "before: right"]
    ]  # fmt: skip
    blocks = started.population.blocks
    rows: dict[Row, list[int]] = {}
    for place, model in enumerate(started.population.models):
        if model in study.shared:
            rows.setdefault(study.shared[model], []).append(place)
    for row, places in sorted(rows.items()):
        runs = [study.runs[started.population.models[place]] for place in places]
        results = [read_json(out / "family" / run.model / RESULTS) for run in runs]
        learnt = [one["eval_accuracy"] >= one["eval_majority"] + LEARNT for one in results]
        by_dataset: dict[str, list[float]] = {}
        for run, result in zip(runs, results, strict=True):
            by_dataset.setdefault(run.dataset, []).append(result["eval_accuracy"])
        accuracies = [np.mean(found) for found in by_dataset.values()]
        gains = [
            math.log(len(study.plan.datasets[run.dataset].labels)) - result["eval_loss"]
            for run, result in zip(runs, results, strict=True)
        ]
        *alike, right, of_learnt = triples(started.population.vectors[places], blocks, runs, learnt)
        *alike_before, right_before, _ = triples(before[places], blocks, runs, learnt)
        alone = triples(started.centred([run.dataset for run in runs], places), blocks, runs, learnt)[3]
        cells = [
            f"{row.rank}, {MATRICES[row.targets]}, {row.rate:g}",
            f"{np.mean(accuracies):.2f}",
            f"{min(accuracies):.2f}",
            f"{np.mean(gains):.2f}",
            *map(decimal, alike),
            f"{right:.2f}",
            f"{of_learnt:.2f}",
            f"{alone:.2f}",
            f"{right_before:.2f} ({', '.join(map(decimal, alike_before))})",
        ]
        shown.append(cells)
    yield markdown(shown)


if __name__ == "__main__":
    sys.exit(main())
