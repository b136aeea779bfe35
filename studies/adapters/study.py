"""The adapters to train, from ``plan.toml``, as a family that ``scripts.family`` can make; and what is measured of them."""

from __future__ import annotations

import hashlib
import itertools
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.records.sketch import DRAW, sketched
from indexer.records.store import RecordStore
from indexer.vectors.centre import FULL
from indexer.vectors.table import VectorTable
from query.models.population import START, Head, Population, distinct, read_population
from query.models.reader import AtlasReader
from query.questions.clusters.study import clusters
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.training_set import LabelledModels
from query.questions.purity.study import purity
from scripts.family.plan import Adapter, Plan, Run, load_plan
from studies.vectors import matches_of_nearest

PATH = Path(__file__).with_name("plan.toml")


class Row(NamedTuple):
    """What the adapters of one row of the table have in common; they differ in data set and seed."""

    rank: int
    targets: str
    rate: float


@dataclass(frozen=True)
class Study:
    """``plan``: the family. ``shared``: the row of each adapter whose seed others have, too."""

    plan: Plan
    shared: Mapping[str, Row]

    @property
    def runs(self) -> dict[str, Run]:
        """Every run by its id."""
        return {run.model: run for run in self.plan.runs}


def load_study(architecture: str, path: Path = PATH, family: Plan | None = None) -> Study:
    """The study of one architecture. Raises ValueError if the plan has nothing for it.

    Args:
        architecture: a name in the rows of the plan; without ``family`` also a table of ``scripts/family/plan.toml``.
        path: the plan.
        family: the base and its data sets, if they are not those of the family of this architecture.
    """
    text = path.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = family or load_plan("full", architecture)
    accounts = sorted(set(family.authors) - {family.base.partition("/")[0]})

    def run(dataset: str, seed: int, rate: float, label: str, adapter: Adapter | None) -> Run:
        """By an account that the name decides, so that no account has only one seed or data set."""
        name = f"{dataset.partition('/')[2]}-{label}-{rate:g}-s{seed}"
        account = accounts[hashlib.sha256(name.encode()).digest()[0] % len(accounts)]
        return Run(
            f"{account}/{family.base.partition('/')[2]}-{name}", dataset=dataset, seed=seed, learning_rate=rate,
            steps=data["steps"], batch=data["batch"], share=data["share"], adapter=adapter,
        )  # fmt: skip

    # For each rate and data set: adapters with all shared seeds, adapters with a seed of their own, full fine-tunes.
    runs: list[Run] = []
    shared: dict[str, Row] = {}
    for kind in ("shared", "own"):
        for row in data[kind]:
            if architecture not in row["architectures"]:
                continue
            for rate in row["rates"]:
                for place, dataset in enumerate(data["datasets"]):
                    for seed in data["seeds"] if kind == "shared" else [row["first_seed"] + place]:
                        named = data["targets"][row["targets"]]
                        targets = tuple(one for one in named if one in family.architecture.modules)
                        adapter = Adapter(row["rank"], 2 * row["rank"], targets, start=seed)
                        one = run(dataset, seed, rate, f"r{row['rank']}-{row['targets']}", adapter)
                        runs.append(one)
                        if kind == "shared":
                            shared[one.model] = Row(row["rank"], row["targets"], rate)
    runs += [
        run(dataset, row["seed"], rate, "full", None)
        for row in data["full"]
        if architecture in row["architectures"]
        for rate in row["rates"]
        for dataset in data["datasets"]
    ]
    if not shared:
        raise ValueError(f"{path.name} has no rows for {architecture!r}")
    plan = replace(
        family,
        size="adapters",
        text=replace(family.text, tokens=data["tokens"]),
        runs=tuple(runs),
        oddities=(),
        fingerprint=hashlib.sha256(f"{family.fingerprint} {text}".encode()).hexdigest(),
    )
    return Study(plan, shared)


DRAWS = 8  # of random labels
MEASURES = ("all", "across", "adapters", "to_full", "prediction", "clusters")
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Started:
    """The distinct models of a base, and what the atlas knows of their starts; entry i is the same model.

    ``plain``: the vectors of whole changes, with nothing subtracted. ``groups``: see ``indexer.vectors.centre``.
    ``initialisations`` and ``starts`` (``query.models.population.START``): models that began alike, and where.
    """

    population: Population
    groups: NDArray[np.str_]
    initialisations: list[int | None]
    starts: list[str | None]
    plain: VectorTable

    @property
    def labels(self) -> list[str]:
        """The data set of every model."""
        return [min(names) for names in self.population.datasets]

    @property
    def adapters(self) -> list[int]:
        """Places of the adapters."""
        return np.flatnonzero(self.groups != FULL).tolist()


def read_started(atlas: AtlasReader, base: str) -> Started:
    """Raises AtlasError if the base has no vectors, or a record is missing."""
    population = distinct(read_population(atlas, base))
    rows = atlas.rows(
        f"SELECT model_id, vector_group, initialisation, {START} AS start, record_key FROM models WHERE base = ?",
        [base],
    )
    known = {row["model_id"]: row for row in rows}
    found = [known[model_id] for model_id in population.ids.tolist()]
    store = RecordStore(atlas.folder)
    length = population.vectors.shape[1] // population.blocks
    plain = np.stack([sketched(store.read(row["record_key"]), "input", length, DRAW) for row in found])
    groups, alike, starts = ([row[name] for row in found] for name in ("vector_group", "initialisation", "start"))
    return Started(population, np.array(groups), alike, starts, VectorTable(plain, population.blocks))


def triples(table: VectorTable, runs: Sequence[Run], has_learnt: Sequence[bool]) -> list[float]:
    """How adapters of one row of the table compare: data against seeds.

    ``runs``: of the models of ``table``; all have shared seeds, and each seed was used on each data set once.

    Returns the mean similarities of adapters with the same data (and another seed), with the same seed (and other
    data), and with neither; the share of triples that are right: an adapter on the same data with another seed is more
    similar than one on other data with the same seed; and that share among triples of adapters that all learnt
    something.
    """
    found = table.similarities(table, np.float64)
    kinds: dict[tuple[bool, bool], list[float]] = {}
    wins: list[bool] = []
    of_learnt: list[bool] = []
    for asked, other in itertools.permutations(range(len(runs)), 2):
        is_data = runs[asked].dataset == runs[other].dataset
        is_seed = runs[asked].seed == runs[other].seed
        kinds.setdefault((is_data, is_seed), []).append(found[asked, other])
        if is_data:
            for rival, run in enumerate(runs):
                if run.seed == runs[asked].seed and run.dataset != runs[asked].dataset:
                    wins.append(found[asked, other] > found[asked, rival])
                    if has_learnt[asked] and has_learnt[other] and has_learnt[rival]:
                        of_learnt.append(wins[-1])
    return [
        *(float(np.mean(kinds[kind])) for kind in ((True, False), (False, True), (False, False))),
        float(np.mean(wins)),
        float(np.mean(of_learnt)) if of_learnt else math.nan,
    ]


def against_chance(table: VectorTable, runs: Sequence[Run]) -> tuple[float, float]:
    """Two shares that put ``triples`` into perspective; arguments as there.

    The first: of an adapter, one on the same data with another seed, and one on other data with another seed, how often
    the first of these is more similar. Seeds play no part in it: it is .5 if the data say nothing. The second: how
    often an adapter on other data with another seed is more similar than one on other data with the same seed. That is
    what the share of right triples would be if the data said nothing: subtracting the mean of n adapters of a seed
    makes them on average dissimilar, by −1 / (n − 1).
    """
    found = table.similarities(table, np.float64)
    by_data: list[bool] = []
    without_data: list[bool] = []
    for asked, run in enumerate(runs):
        others = [place for place in range(len(runs)) if place != asked]
        unlike = [one for one in others if runs[one].dataset != run.dataset and runs[one].seed != run.seed]
        by_data += [
            found[asked, one] > found[asked, other]
            for one in others
            for other in unlike
            if runs[one].dataset == run.dataset and runs[one].seed != run.seed
        ]
        without_data += [
            found[asked, other] > found[asked, one]
            for one in others
            for other in unlike
            if runs[one].dataset != run.dataset and runs[one].seed == run.seed
        ]
    return float(np.mean(by_data)), float(np.mean(without_data))


def whole(started: Started, table: VectorTable, labels: Sequence[str], *, is_null: bool = False) -> list[float]:
    """The values of MEASURES.

    Purity of all models, across authors, of adapters among adapters and among full fine-tunes; accuracy of predictions
    for adapters by vectors alone; adjusted mutual information of clusters with data sets.

    ``is_null``: what is above chance (for predictions, above the share of the commonest label), and no clusters.
    """
    sets = [frozenset([label]) for label in labels]
    population = replace(
        started.population, vectors=table.inputs, outputs=table.outputs, groups=table.groups, datasets=sets
    )
    found = purity(population, draws=1)  # p values are not shown
    scores = []
    for score in (found, found.cross_author):
        known = score.purity is not None and score.chance is not None
        scores.append(score.purity - (score.chance if is_null else 0) if known else math.nan)
    adapters = started.adapters
    for candidates in (adapters, np.flatnonzero(started.groups == FULL).tolist()):
        pairs = matches_of_nearest(table, sets, adapters, candidates)
        shares = [share - (chance if is_null else 0) for share, chance in pairs]
        scores.append(float(np.mean(shares)) if shares else math.nan)
    labelled = LabelledModels(
        table=table,
        models=population.models,
        authors=population.authors,
        datasets=sets,
        heads=[Head()] * len(labels),
        starts=None if table is started.plain else started.starts,
    )
    asked = {population.models[row] for row in adapters}
    hits = [one.right > 0 for one in evaluate_models(labelled, k=10).outcomes if one.model in asked]
    commonest = max(Counter(labels).values()) / len(labels) if is_null else 0.0
    grouped = None if is_null else clusters(population, draws=1).value("datasets", "ami")
    return [*scores, float(np.mean(hits)) - commonest, math.nan if grouped is None else grouped]


def null(started: Started, share: float) -> list[list[float]]:
    """MEASURES above chance before and after, for labels unrelated to the data: means over DRAWS.

    ``share`` of the adapters have the label of their seed; all others, and full fine-tunes, a random one.
    """
    truth = started.labels
    kinds = sorted(set(truth))
    found: list[list[list[float]]] = [[], []]
    for number in range(DRAWS):
        draw = np.random.default_rng(number)
        labels = draw.permutation(truth).tolist()
        numbers = {start: place for place, start in enumerate(dict.fromkeys(started.initialisations))}
        for row in started.adapters:
            if draw.random() < share and started.initialisations[row] is not None:
                labels[row] = kinds[numbers[started.initialisations[row]] % len(kinds)]
        for rows, table in zip(found, (started.plain, started.population.table), strict=True):
            rows.append(whole(started, table, labels, is_null=True))
    return [np.mean(rows, axis=0).tolist() for rows in found]


def starts(started: Started, study: Study) -> dict[str, tuple[int, int]]:
    """Pairs of adapters, and how many of them the atlas takes for one start: of one start, and of two."""
    runs, names = study.runs, started.population.models
    counts = {"one start": (0, 0), "two starts": (0, 0)}
    for one, other in itertools.combinations(started.adapters, 2):
        kind = "one start" if runs[names[one]].adapter == runs[names[other]].adapter else "two starts"
        given = started.initialisations[one]
        is_taken = given is not None and given == started.initialisations[other]
        counts[kind] = counts[kind][0] + 1, counts[kind][1] + is_taken
    return counts
