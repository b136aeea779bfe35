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
from scripts.adapters.measures import Whole, evidence, null, rows_of, starts, triples, whole
from scripts.adapters.plan import Study, load_study
from scripts.adapters.vectors import Started, read_started
from scripts.family.__main__ import ENVIRONMENT
from scripts.family.store import RESULTS, read_json, repository_folder
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import CommandFailed, Terminal
from scripts.vectors import decimal

ARCHITECTURES = ("roberta", "gpt2", "bert")
MATRICES = {"qv": "query and value", "all": "all linear"}
_SAME = 2e-3  # of a number of a vector: what 16 bits may change where vectors are made again from published ones
LEARNT = 0.1  # how far the accuracy of an adapter that has learnt something is above the commonest label's share
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
    try:
        for name in options.architectures:
            out = options.out.resolve() / name
            study = load_study(name)
            make(study, out)
            lines = list(tables(study, out))
            (out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    except CommandFailed as failure:
        print(f"The study stopped: {failure}. The same command goes on from here.", file=sys.stderr)
        return 1
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def make(study: Study, out: Path) -> None:
    """Train what is missing, and build the atlas. Raises CommandFailed where it could not be built."""
    os.environ.update(ENVIRONMENT)  # before anything imports torch
    from scripts.family.family import build

    build(out / "family", study.plan)
    with LoopbackHub(out / "family") as hub:
        run = Terminal.of_hub(out, hub.endpoint)
        run.environment.pop("HF_HUB_OFFLINE")  # it was for training
        run(f"index build --base {study.plan.base} --discover names")


def tables(study: Study, out: Path) -> Iterator[str]:
    """Lines of Markdown, printed as they are found."""
    base = study.plan.base
    with Atlas(out / "atlas") as atlas:
        started = read_started(atlas, base)
        for line in (*by_row(started, study, out), *by_whole(started), *found_starts(atlas, started, study)):
            print(line, flush=True)
            yield line


def by_row(started: Started, study: Study, out: Path) -> Iterator[str]:
    """The table by rank, matrices and rate."""
    labels = labels_of(started)
    before = started.centred(labels, by_start=False)
    after = started.population.vectors
    if np.abs(after - started.centred(labels)).max() > _SAME:
        raise AtlasError(
            "The published vectors are not those that this script makes.",
            "Run `index rebuild` there: the centres may be older than the latest models.",
        )
    yield f"\n### {study.plan.base}\n"
    yield (
        "| rank, matrices, rate | accuracy | worst data set | loss below guessing | same data, other seed "
        "| other data, same seed | neither | right | right, of learnt | right, row alone | before: right |"
    )
    yield f"|{'---|' * 11}"
    blocks = started.population.blocks
    for row, places in rows_of(started, study).items():
        runs = [study.runs[started.population.models[place]] for place in places]
        results = [read_json(repository_folder(out / "family", run.model) / RESULTS) for run in runs]
        learnt = [one["eval_accuracy"] >= one["eval_majority"] + LEARNT for one in results]
        by_dataset: dict[str, list[float]] = {}
        for run, result in zip(runs, results, strict=True):
            by_dataset.setdefault(run.dataset, []).append(result["eval_accuracy"])
        guessing = [math.log(len(study.plan.datasets[run.dataset].labels)) for run in runs]
        gains = [known - result["eval_loss"] for known, result in zip(guessing, results, strict=True)]
        now = triples(after[places], blocks, runs, learnt)
        was = triples(before[places], blocks, runs, learnt)
        alone = triples(started.centred([run.dataset for run in runs], places), blocks, runs, learnt)
        cells = [
            f"{row.rank}, {MATRICES[row.targets]}, {row.rate:g}",
            f"{np.mean(list(by_dataset.values())):.2f}",
            f"{min(np.mean(found) for found in by_dataset.values()):.2f}",
            f"{np.mean(gains):.2f}",
            *(decimal(number) for number in (now.same_data, now.same_seed, now.neither)),
            f"{now.right:.2f}",
            f"{now.right_of_learnt:.2f}",
            f"{alone.right:.2f}",
            f"{was.right:.2f} ({', '.join(decimal(n) for n in (was.same_data, was.same_seed, was.neither))})",
        ]
        yield f"| {' | '.join(cells)} |"


def by_whole(started: Started) -> Iterator[str]:
    """Purity, predictions and clusters of all models, and of nulls, before and after."""
    labels = labels_of(started)
    vectors = {"before": started.centred(labels, by_start=False), "after": started.population.vectors}
    found = {"the data": {name: whole(started, made, labels) for name, made in vectors.items()}}
    found |= {name: dict(null(started, share)) for name, share in NULLS.items()}
    names = list(Whole.__dataclass_fields__)
    yield f"\n| labels | {' | '.join(names)} |\n|{'---|' * (1 + len(names))}"
    for name, pair in found.items():
        cells = [" → ".join(decimal(vars(pair[when])[key]) for when in ("before", "after")) for key in names]
        cells = [cell.replace("nan → nan", "–") for cell in cells]
        yield f"| {name} | {' | '.join(cells)} |"


def found_starts(atlas: Atlas, started: Started, study: Study) -> Iterator[str]:
    """How initialisations were recognised, and that they are evidence of nothing else."""
    yield ""
    for name, (pairs, taken) in starts(started, study).items():
        yield f"- pairs of {name}: {pairs:,}, taken for one: {taken:,}"
    repeats, steps = evidence(atlas, study.plan.base)
    yield f"- taken for duplicates: {repeats}; taken for made from another fine-tune: {steps}"


def labels_of(started: Started) -> list[str]:
    """The data set of every model."""
    return [min(names) for names in started.population.datasets]


if __name__ == "__main__":
    sys.exit(main())
