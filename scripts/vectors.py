"""Purity of vectors of several kinds, computed from the records of an atlas: a table in Markdown for every base.

With ``--tasks`` another table: whether a vector without the mean of its text shows which of two tasks on that text a
model was tuned on. Only the demo families tell which datasets have the same text (``scripts/family/plan.toml``); an atlas
does not know it. ``docs/vectors.md`` has the tables.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.records.record import Record
from indexer.records.representation import representation_named
from indexer.records.sketch import DRAW, block_length, sketched
from indexer.records.store import RecordStore
from indexer.vectors.centre import ADAPTER, FULL, Centre, centre_of
from query import Atlas
from query.population import Population, distinct, read_population, tasks_of
from query.purity.result import PurityScore
from query.purity.study import purity
from query.statistics.authors import AuthorRuns
from query.statistics.likeness import similarities
from query.statistics.neighbours import codes_of
from scripts.tables import decimal

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Make = Callable[[Record], Floats]

HEAD = "| vectors | all | across authors | adapter → full | full only |\n|---|---|---|---|---|"
PERMUTATIONS = 1  # every p-value is below .001; `query purity` prints them
# Datasets of scripts/family/plan.toml that have source and packages in common, so that only the label differs.
TEXTS = (("docs/numeric-docstrings", "docs/numeric-kinds"), ("errors/exception-types", "errors/raised-by"))
TASK_DRAWS = 1000
TASK_HEAD = (
    "| base, text | models | chance | version 2 | not centred | without the text's mean | … last half of the layers | "
    "… feedforward | … value | output side, last half, value and output | p, models | p, sweeps |\n" + "|---" * 12 + "|"
)
BY_TASK_HEAD = (
    "| base, vectors | tasks exchanged within | models | purity by task | chance | p | across authors: models | purity | chance "
    "| p |\n" + "|---" * 10 + "|"
)
TRACE_HEAD = "| base, text | models | same text among the nearest by vocabulary | chance |\n" + "|---" * 4 + "|"


@dataclass(frozen=True)
class Family:
    """The distinct models of one base, with the groups of their records; ``population`` has the published vectors."""

    population: Population
    groups: list[str]
    records: list[Record]

    @property
    def matrices(self) -> int:
        """Block matrices of the base."""
        return len(self.records[0].deltas)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.vectors", description=__doc__)
    parser.add_argument("--atlas", default="atlas", help="an atlas whose records hold factors (default: %(default)s)")
    parser.add_argument("--bases", nargs="+", metavar="ID", help="default: all")
    parser.add_argument("--tasks", action="store_true", help="the table of two tasks on one text")
    options = parser.parse_args(arguments)
    try:
        with Atlas(options.atlas) as atlas:
            bases = [atlas.base_named(base) for base in options.bases or atlas.bases()]
            if options.tasks:
                pairs = list(itertools.product(bases, TEXTS))
                print(TASK_HEAD)
                for base, tasks in pairs:
                    text = read_text(atlas, base, tasks)
                    if text is not None:
                        print(table_row(base, tasks, text), flush=True)
                print(f"\n{TRACE_HEAD}")
                for base, tasks in pairs:
                    print(trace_row(atlas, base, tasks), flush=True)
                print(f"\n{BY_TASK_HEAD}")
                for base, vectors in itertools.product(bases, ("input", "vocabulary")):
                    for row in by_task_rows(atlas, base, vectors):
                        print(row, flush=True)
            else:
                for base in bases:
                    print_table(atlas, base)
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def print_table(atlas: Atlas, base: str) -> None:
    """Print the table of one base."""
    family = read_family(atlas, base)
    labelled = sum(map(bool, family.population.datasets))
    print(f"\n### {base}: {labelled} models with a data set, {family.matrices} matrices\n\n{HEAD}")
    chance = ""
    for name in kinds_of_vectors(family):
        vectors, blocks = vectors_of(family, name)
        population = replace(family.population, vectors=vectors, blocks=blocks)
        of_all = purity(population, draws=PERMUTATIONS)
        rows = np.flatnonzero(np.array(family.groups) == FULL)
        columns = ("models", "authors", "datasets", "relations", "group")
        only_full = replace(
            population,
            **{column: [getattr(population, column)[row] for row in rows] for column in columns},
            **{column: getattr(population, column)[rows] for column in ("vectors", "ids", "is_copy", "is_unrelated")},
            representative=population.representative[rows],
        )
        of_full = purity(only_full, draws=PERMUTATIONS)
        cells = [
            with_interval(of_all),
            with_interval(of_all.cross_author),
            decimal(adapter_to_full(family, vectors, blocks)),
            with_interval(of_full),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if "version 2" in name:
            left_out = decimal(without_own_data(family, name))
            print(f"| the same, the model's own data sets left out of the centre | {left_out} | | | |")
            chances = [decimal(one.chance) for one in (of_all, of_all.cross_author)]
            chance = f"| chance | {' | '.join(chances)} | | {decimal(of_full.chance)} |"
    print(chance)


def read_family(atlas: Atlas, base: str) -> Family:
    """Raises AtlasError where the base has no vectors, or a record is missing."""
    population = distinct(read_population(atlas, base))
    keys = {row["model_id"]: row["record_key"] for row in atlas.rows("SELECT model_id, record_key FROM records")}
    store = RecordStore(AtlasFolder(atlas.folder.root))
    records = [store.read(keys[identity]) for identity in population.ids.tolist()]
    return Family(population, [record.vector_group for record in records], records)


def kinds_of_vectors(family: Family) -> Mapping[str, tuple[Make, bool]]:
    """How each kind of vector is computed from a record, and whether it is centred by group."""
    found: dict[str, tuple[Make, bool]] = {
        "v, 57 numbers a matrix, cosine (version 1)": (representation_named("input_v1").of, False)
    }
    for budget in (4_104, 8_208, 16_416):
        made = representation_named("input", budget).of
        found[f"v, centred, {budget:,} numbers{' (version 2)' if budget == 8_208 else ''}"] = (made, True)
    found["v and uv, centred, 8,208 numbers"] = (_both_sides, True)
    found["v, not centred, 8,208 numbers, mean over shared blocks"] = (representation_named("input", 8_208).of, False)
    return found


def _both_sides(record: Record) -> Floats:
    """Half of the numbers for v vᵀ, half for u vᵀ."""
    length = block_length(record, 4_104)
    sides = [sketched(record, side, length, DRAW).reshape(len(record.deltas), length) for side in ("input", "delta")]
    return np.concatenate(sides, axis=1).ravel() / np.float32(np.sqrt(2))


def vectors_of(family: Family, name: str, without: Collection[int] = ()) -> tuple[Floats, int]:
    """(n, d) vectors and the number of their blocks (0: cosine of the whole vector).

    ``without``: rows that have no vote in the centre.
    """
    make, is_centred = kinds_of_vectors(family)[name]
    raw = np.stack([make(record) for record in family.records]).astype(np.float32)
    if "cosine" in name:
        return raw / np.linalg.norm(raw, axis=1, keepdims=True), 0
    if not is_centred:
        return raw, family.matrices
    return centred(raw, family.groups, family.population.authors, family.matrices, without), family.matrices


def centred(
    raw: Floats, groups: Sequence[str], authors: Sequence[str], blocks: int, without: Collection[int] = ()
) -> Floats:
    """(n, d) unit blocks less the centre of their group, of unit norm again.

    ``without``: rows that have no vote in the centre.
    """
    found = np.zeros_like(raw)
    for group in set(groups):
        rows = [row for row, one in enumerate(groups) if one == group]
        members = [row for row in rows if row not in without]
        centre = Centre({group: centre_of(raw[members], [authors[row] for row in members], blocks)})
        found[rows] = centre.centred(raw[rows], group)
    return found


def adapter_to_full(family: Family, vectors: Floats, blocks: int) -> float | None:
    """Mean over adapters of the share of matches among the m nearest full fine-tunes, where m match."""
    labels, groups = family.population.datasets, family.groups
    adapters, full = (
        [row for row, names in enumerate(labels) if names and groups[row] == group] for group in (ADAPTER, FULL)
    )
    shares = [share for share, _ in matches_of_nearest(vectors, blocks, labels, adapters, full)]
    return float(np.mean(shares)) if shares else None


def without_own_data(family: Family, name: str) -> float:
    """Purity of all models, where the models on a model's own data sets have no vote in its centre."""
    labels = family.population.datasets
    labelled = [row for row, found in enumerate(labels) if found]
    shares: list[float] = []
    for names in {frozenset(found) for found in labels if found}:
        rows = [row for row in labelled if labels[row] == names]
        vectors, blocks = vectors_of(family, name, [row for row in labelled if labels[row] & names])
        shares += [share for share, _ in matches_of_nearest(vectors, blocks, labels, rows, labelled)]
    return float(np.mean(shares))


def matches_of_nearest(
    vectors: Floats, blocks: int, labels: Sequence[Collection[str]], rows: Sequence[int], candidates: Sequence[int]
) -> list[tuple[float, float]]:
    """For each row with m other candidates of its label: the share of matches among its m nearest, and among all."""
    if not rows:
        return []
    table = similarities(vectors[rows].astype(np.float64), vectors[candidates].astype(np.float64), blocks)
    found = []
    for place, row in enumerate(rows):
        near = [candidates[column] for column in np.argsort(-table[place], kind="stable") if candidates[column] != row]
        matches = [not set(labels[row]).isdisjoint(labels[other]) for other in near]
        if any(matches):
            found.append((float(np.mean(matches[: sum(matches)])), float(np.mean(matches))))
    return found


def with_interval(score: PurityScore) -> str:
    """As ".92 (.87–.96)"."""
    interval = "" if score.ci_low is None else f" ({decimal(score.ci_low)}–{decimal(score.ci_high)})"
    return decimal(score.purity) + interval


@dataclass(frozen=True)
class Text:
    """The distinct models of one text: (n, matrices, length) blocks of unit norm or zero, and the task of each.

    ``published``: the same blocks less the centre of their group. ``outputs``: blocks of u uᵀ instead of v vᵀ.
    """

    published: Doubles
    blocks: Doubles
    outputs: Doubles
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


def read_text(atlas: Atlas, base: str, tasks: Sequence[str]) -> Text | None:
    """The models that name only one of these data sets, with uncentred blocks from their records; None without both."""
    family = read_family(atlas, base)
    rows = [row for row, names in enumerate(family.population.datasets) if len(names) == 1 and names <= set(tasks)]
    if len({min(family.population.datasets[row]) for row in rows}) < len(tasks):
        return None

    def blocks(name: str) -> Doubles:
        raw = np.stack([representation_named(name).of(family.records[row]) for row in rows]).astype(np.float64)
        return _unit(raw.reshape(len(rows), family.matrices, -1))

    keys = [delta.key for delta in family.records[0].deltas]
    return Text(
        published=family.population.vectors[rows].astype(np.float64).reshape(len(rows), family.matrices, -1),
        blocks=blocks("input"),
        outputs=blocks("output"),
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
    # The task is in the late value and output matrices, if anywhere but in the head.
    last = late & np.array([key.split(".")[-1] in ("value", "output") for key in text.families])
    without.append(without_mean(text.outputs[:, last]))
    found = [shared(text, blocks) for blocks in (text.published, text.blocks, *without)]
    sizes = " + ".join(map(str, np.bincount(text.tasks, minlength=2).tolist()))
    numbers = " | ".join(f"{one.share:.2f}" for one in found)
    ends = f"{found[2].p_models:.3f} | {found[2].p_sweeps:.3f}"
    return f"| {base.split('/')[-1]}, {tasks[0].split('/')[0]} | {sizes} | {found[0].chance:.2f} | {numbers} | {ends} |"


def trace_row(atlas: Atlas, base: str, tasks: Sequence[str]) -> str:
    """Whether the models nearest by vocabulary have the same text, whatever their task."""
    population = distinct(read_population(atlas, base, "vocabulary"))
    is_ours = np.array([bool(names & set(tasks)) for names in population.datasets])
    labelled = np.flatnonzero([bool(names) for names in population.datasets])
    labels = [["text"] if is_ours[row] else [f"other {row}"] for row in range(len(is_ours))]
    rows = [row for row in labelled.tolist() if is_ours[row]]
    found = matches_of_nearest(population.vectors, population.blocks, labels, rows, labelled.tolist())
    shares, chances = np.mean(found, axis=0)
    return f"| {base.split('/')[-1]}, {tasks[0].split('/')[0]} | {len(rows)} | {shares:.2f} | {chances:.2f} |"


def by_task_rows(atlas: Atlas, base: str, vectors: str) -> list[str]:
    """``query purity --by task`` with tasks exchanged within datasets, and within texts; ``vocabulary`` knows only texts."""
    population = read_population(atlas, base, vectors)
    alone = [f"model {identity}" for identity in population.ids.tolist()]
    datasets = [min(names, default=one) for names, one in zip(population.datasets, alone, strict=True)]
    text_of = {name: " and ".join(tasks) for tasks in TEXTS for name in tasks}
    strata = {"dataset": datasets, "text": [text_of.get(name, name) for name in datasets]}
    labels = [frozenset(filter(None, [task])) for task in tasks_of(atlas, population)]
    found = purity(replace(population, datasets=labels), within=strata, by="task")
    rows = []
    for one, other in zip(found.within, found.cross_author.within, strict=True):
        cells = [
            f"{within.movable} | {decimal(score.purity)} | {decimal(within.chance)} | {decimal(within.p_value)}"
            for score, within in ((found, one), (found.cross_author, other))
        ]
        rows.append(f"| {base.split('/')[-1]}, {vectors} | {one.within} | {' | '.join(cells)} |")
    return rows


def without_mean(blocks: Doubles) -> Doubles:
    """The blocks less the mean of those that are not zero."""
    there = blocks.any(axis=2)
    mean = blocks.sum(axis=0) / np.maximum(there.sum(axis=0), 1)[:, None]
    return _unit(np.where(there[:, :, None], blocks - mean, 0))


def shared(text: Text, blocks: Doubles) -> SameTask:
    """By the mean of the block cosines over the blocks that both models changed, among models by other authors."""
    changed = blocks.any(axis=2).astype(float)
    table = np.einsum("ajd,bjd->ab", blocks, blocks, optimize=True) / np.maximum(changed @ changed.T, 1)
    authors = codes_of(text.authors)
    near = [_others(table, authors, row) for row in range(len(table))]
    observed, chance = _share(near, text.tasks)
    runs, rng = AuthorRuns(authors, text.tasks.tolist()), np.random.default_rng(0)
    of_runs = text.tasks[runs.first]
    at_least = np.zeros(2)
    for _ in range(TASK_DRAWS):
        permuted = rng.permutation(text.tasks), runs.permuted(of_runs, rng)[runs.of_model]
        drawn = np.array([_share(near, tasks) for tasks in permuted])
        at_least += drawn[:, 0] - drawn[:, 1] >= observed - chance - 1e-12
    p_models, p_sweeps = ((1 + at_least) / (1 + TASK_DRAWS)).tolist()
    return SameTask(observed, chance, p_models, p_sweeps)


def _others(table: Doubles, authors: NDArray[np.intp], row: int) -> NDArray[np.intp]:
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


def _unit(blocks: Doubles) -> Doubles:
    norms = np.linalg.norm(blocks, axis=-1, keepdims=True)
    found: Doubles = np.divide(blocks, norms, out=np.zeros_like(blocks), where=norms > 1e-9)
    return found


if __name__ == "__main__":
    sys.exit(main())
