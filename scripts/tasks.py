"""Two tasks on one text: whether a vector without the mean of its text shows which task the model was tuned on.

Only the demo families tell which data sets have the same text (``scripts/family/plan.toml``); an atlas does not know it.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.records.representation import representation_named
from query import Atlas
from query.statistics.authors import AuthorRuns
from query.statistics.neighbours import codes_of
from scripts.vectors import read_family

# Data sets of scripts/family/plan.toml that have source and packages in common, so that only the label differs.
TEXTS = (("docs/numeric-docstrings", "docs/numeric-kinds"), ("errors/exception-types", "errors/raised-by"))
DRAWS = 1000
HEAD = (
    "| base, text | models | chance | version 2 | not centred | without the text's mean | … last half of the layers | "
    "… feedforward | … value | p, models | p, sweeps |\n" + "|---" * 11 + "|"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Text:
    """The distinct models of one text: (n, matrices, length) blocks of unit norm or zero, and the task of each.

    ``published``: the same blocks less the centre of their group.
    """

    published: Floats
    blocks: Floats
    tasks: NDArray[np.intp]
    authors: list[str]
    layers: NDArray[np.intp]
    families: list[str]


@dataclass(frozen=True)
class SameTask:
    """Share of a model's m nearest of its text that have its task, where m have it; and the share by chance.

    ``p_models``: tasks are permuted among models. ``p_sweeps``: the models of one author on one task keep their order together.
    """

    share: float
    chance: float
    p_models: float
    p_sweeps: float


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.tasks", description=__doc__)
    parser.add_argument("--atlas", default="atlas", help="an atlas of demo families (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        with Atlas(options.atlas) as atlas:
            print(HEAD)
            for base, tasks in itertools.product(atlas.bases(), TEXTS):
                text = read_text(atlas, base, tasks)
                if text is not None:
                    print(table_row(base, tasks, text), flush=True)
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def read_text(atlas: Atlas, base: str, tasks: Sequence[str]) -> Text | None:
    """The models that name only one of these data sets, with uncentred blocks from their records; None without both."""
    family = read_family(atlas, base)
    rows = [row for row, names in enumerate(family.population.datasets) if len(names) == 1 and names <= set(tasks)]
    if len({min(family.population.datasets[row]) for row in rows}) < len(tasks):
        return None
    make = representation_named("input").of
    raw = np.stack([make(family.records[row]) for row in rows]).astype(np.float64)
    keys = [delta.key for delta in family.records[0].deltas]
    return Text(
        published=family.population.vectors[rows].astype(np.float64).reshape(len(rows), family.matrices, -1),
        blocks=_unit(raw.reshape(len(rows), family.matrices, -1)),
        tasks=np.array([tasks.index(next(iter(family.population.datasets[row]))) for row in rows]),
        authors=[family.population.authors[row] for row in rows],
        layers=np.array([int(re.search(r"\d+", str(key)).group()) for key in keys]),  # type: ignore[union-attr]
        families=[str(key) for key in keys],
    )


def table_row(base: str, tasks: Sequence[str], text: Text) -> str:
    """A row of the table."""
    everything = np.ones(len(text.layers), dtype=bool)
    late = text.layers > text.layers.max() / 2
    forward, value = (np.array([name in key for key in text.families]) for name in ("feedforward", "value"))
    without = [without_mean(text.blocks[:, chosen]) for chosen in (everything, late, forward, value)]
    found = [shared(text, blocks) for blocks in (text.published, text.blocks, *without)]
    sizes = " + ".join(map(str, np.bincount(text.tasks, minlength=2).tolist()))
    numbers = " | ".join(f"{one.share:.2f}" for one in found)
    ends = f"{found[2].p_models:.3f} | {found[2].p_sweeps:.3f}"
    return f"| {base.split('/')[-1]}, {tasks[0].split('/')[0]} | {sizes} | {found[0].chance:.2f} | {numbers} | {ends} |"


def without_mean(blocks: Floats) -> Floats:
    """The blocks less the mean of those that are not zero."""
    there = blocks.any(axis=2)
    mean = blocks.sum(axis=0) / np.maximum(there.sum(axis=0), 1)[:, None]
    return _unit(np.where(there[:, :, None], blocks - mean, 0))


def shared(text: Text, blocks: Floats) -> SameTask:
    """By the mean of the block cosines over the blocks that both models changed, among models by other authors."""
    changed = blocks.any(axis=2).astype(float)
    table = np.einsum("ajd,bjd->ab", blocks, blocks, optimize=True) / np.maximum(changed @ changed.T, 1)
    authors = codes_of(text.authors)
    near = [_others(table, authors, row) for row in range(len(table))]
    observed, chance = _share(near, text.tasks)
    runs, rng = AuthorRuns(authors, text.tasks.tolist()), np.random.default_rng(0)
    of_runs = text.tasks[runs.first]
    at_least = np.zeros(2)
    for _ in range(DRAWS):
        permuted = rng.permutation(text.tasks), runs.permuted(of_runs, rng)[runs.of_model]
        drawn = np.array([_share(near, tasks) for tasks in permuted])
        at_least += drawn[:, 0] - drawn[:, 1] >= observed - chance - 1e-12
    p_models, p_sweeps = ((1 + at_least) / (1 + DRAWS)).tolist()
    return SameTask(observed, chance, p_models, p_sweeps)


def _others(table: Floats, authors: NDArray[np.intp], row: int) -> NDArray[np.intp]:
    others = np.flatnonzero(authors != authors[row])
    return others[np.argsort(-table[row, others], kind="stable")]


def _share(near: Sequence[NDArray[np.intp]], tasks: NDArray[np.intp]) -> tuple[float, float]:
    shares, chances = [], []
    for row, others in enumerate(near):
        matches = tasks[others] == tasks[row]
        if matches.sum() > 0:
            shares.append(matches[: matches.sum()].mean())
            chances.append(matches.mean())
    return float(np.mean(shares)), float(np.mean(chances))


def _unit(blocks: Floats) -> Floats:
    norms = np.linalg.norm(blocks, axis=-1, keepdims=True)
    found: Floats = np.divide(blocks, norms, out=np.zeros_like(blocks), where=norms > 1e-9)
    return found


if __name__ == "__main__":
    sys.exit(main())
