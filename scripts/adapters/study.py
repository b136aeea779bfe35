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

from indexer.vectors.centre import (
    ADAPTER,
    FULL,
    GROUPS,
    Centre,
    GroupCentre,
    centre_of,
    data_vote,
    fewest_votes,
    initialisation_group,
)
from query import Atlas
from query.clusters.study import clusters
from query.population import Head, Population, distinct, read_population
from query.predict.evaluation import evaluate_models
from query.predict.training_set import LabelledModels
from query.purity.study import purity
from query.statistics.likeness import similarities
from scripts.family.plan import Adapter, Plan, Run, load_plan
from scripts.vectors import matches_of_nearest

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


def load_study(architecture: str) -> Study:
    """The study of one architecture. Raises ValueError if the plan has nothing for it."""
    text = PATH.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    family = load_plan("full", architecture)
    accounts = sorted(set(family.authors) - {family.base.partition("/")[0]})

    def run(dataset: str, seed: int, rate: float, label: str, adapter: Adapter | None) -> Run:
        """By an account that the name decides, so that no account has only one seed or data set."""
        name = f"{dataset.partition('/')[2]}-{label}-{rate:g}-s{seed}"
        account = accounts[hashlib.sha256(name.encode()).digest()[0] % len(accounts)]
        return Run(
            f"{account}/tiny-{family.architecture_name}-{name}", dataset=dataset, seed=seed, learning_rate=rate,
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
                        targets = tuple(data["targets"][row["targets"]])
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
        raise ValueError(f"{PATH.name} has no rows for {architecture!r}")
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

    ``uncentred``: (n, d) vectors before anything was subtracted. ``groups``: adapter or full. ``norms``: of the whole
    change.
    """

    population: Population
    groups: NDArray[np.str_]
    initialisations: list[int | None]
    norms: list[float]
    uncentred: Floats

    @property
    def labels(self) -> list[str]:
        """The data set of every model."""
        return [min(names) for names in self.population.datasets]

    @property
    def adapters(self) -> list[int]:
        """Places of the adapters."""
        return np.flatnonzero(self.groups == ADAPTER).tolist()

    def centred(self, labels: Sequence[str], rows: Sequence[int] | None = None, *, by_start: bool = True) -> Floats:
        """(n, d) vectors of the models at ``rows`` (default: all), as an atlas of these would publish them.

        ``labels``: for each of ``rows``, the data set that its vote counts for. ``by_start``: with centres of
        initialisations; without, as before they were introduced.
        """
        chosen = list(range(len(self.groups))) if rows is None else list(rows)
        mine, blocks = self.uncentred[chosen], self.population.blocks
        groups = self.groups[chosen]
        starts = [self.initialisations[row] for row in chosen]
        authors = [self.population.authors[row] for row in chosen]
        centres = {name: GroupCentre.nothing(blocks, mine.shape[1] // blocks) for name in GROUPS}
        for name in set(groups.tolist()):
            members = np.flatnonzero(groups == name)
            centres[name] = centre_of(mine[members], [authors[place] for place in members], blocks)
        for start in {one for one in starts if one is not None} if by_start else ():
            members = np.array([place for place, one in enumerate(starts) if one == start])
            votes = [data_vote([labels[place]]) for place in members]
            if len(set(votes)) >= fewest_votes(votes):
                norms = [self.norms[chosen[place]] for place in members]
                made = centre_of(mine[members], votes, blocks, centres[ADAPTER], norms)
                centres[initialisation_group(start)] = made
        centre = Centre(centres)
        found = np.zeros_like(mine)
        for place, (group, start) in enumerate(zip(groups.tolist(), starts, strict=True)):
            found[place] = centre.centred(mine[place : place + 1], centre.group_of(group, start))[0]
        return found


def read_started(atlas: Atlas, base: str) -> Started:
    """Raises AtlasError if the base has no vectors."""
    population = distinct(read_population(atlas, base))
    centre = atlas.centre(base)
    assert centre is not None
    rows = atlas.rows("SELECT model_id, vector_group, initialisation, delta_norm FROM models WHERE base = ?", [base])
    known = {row["model_id"]: row for row in rows}
    found = [known[model_id] for model_id in population.ids.tolist()]
    uncentred = np.zeros_like(population.vectors)
    for place, row in enumerate(found):
        group = centre.group_of(row["vector_group"], row["initialisation"])
        uncentred[place] = centre.uncentred(population.vectors[place : place + 1], group)[0]
    groups, starts, norms = ([row[name] for row in found] for name in ("vector_group", "initialisation", "delta_norm"))
    return Started(population, np.array(groups), starts, norms, uncentred)


def triples(vectors: Floats, blocks: int, runs: Sequence[Run], has_learnt: Sequence[bool]) -> list[float]:
    """How adapters of one row of the table compare: data against seeds.

    ``runs``: of the vectors; all have shared seeds, and each seed was used on each data set once.

    Returns the mean similarities of adapters with the same data (and another seed), with the same seed (and other
    data), and with neither; the share of triples that are right: an adapter on the same data with another seed is more
    similar than one on other data with the same seed; and that share among triples of adapters that all learnt
    something.
    """
    table = similarities(vectors.astype(np.float64), vectors.astype(np.float64), blocks)
    kinds: dict[tuple[bool, bool], list[float]] = {}
    wins: list[bool] = []
    of_learnt: list[bool] = []
    for asked, other in itertools.permutations(range(len(runs)), 2):
        is_data = runs[asked].dataset == runs[other].dataset
        is_seed = runs[asked].seed == runs[other].seed
        kinds.setdefault((is_data, is_seed), []).append(table[asked, other])
        if is_data:
            for rival, run in enumerate(runs):
                if run.seed == runs[asked].seed and run.dataset != runs[asked].dataset:
                    wins.append(table[asked, other] > table[asked, rival])
                    if has_learnt[asked] and has_learnt[other] and has_learnt[rival]:
                        of_learnt.append(wins[-1])
    return [
        *(float(np.mean(kinds[kind])) for kind in ((True, False), (False, True), (False, False))),
        float(np.mean(wins)),
        float(np.mean(of_learnt)) if of_learnt else math.nan,
    ]


def whole(started: Started, vectors: Floats, labels: Sequence[str], *, is_null: bool = False) -> list[float]:
    """The values of MEASURES.

    Purity of all models, across authors, of adapters among adapters and among full fine-tunes; accuracy of predictions
    for adapters by vectors alone; adjusted mutual information of clusters with data sets.

    ``is_null``: what is above chance (for predictions, above the share of the commonest label), and no clusters.
    """
    sets = [frozenset([label]) for label in labels]
    population = replace(started.population, vectors=vectors, datasets=sets)
    found = purity(population, draws=1)  # p values are not shown
    scores = []
    for score in (found, found.cross_author):
        known = score.purity is not None and score.chance is not None
        scores.append(score.purity - (score.chance if is_null else 0) if known else math.nan)
    adapters = started.adapters
    for candidates in (adapters, np.flatnonzero(started.groups == FULL).tolist()):
        pairs = matches_of_nearest(vectors, population.blocks, sets, adapters, candidates)
        shares = [share - (chance if is_null else 0) for share, chance in pairs]
        scores.append(float(np.mean(shares)) if shares else math.nan)
    labelled = LabelledModels(
        vectors=vectors,
        models=population.models,
        authors=population.authors,
        datasets=sets,
        heads=[Head()] * len(labels),
        blocks=population.blocks,
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
        for rows, by_start in zip(found, (False, True), strict=True):
            rows.append(whole(started, started.centred(labels, by_start=by_start), labels, is_null=True))
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
