"""What is measured of adapters that share seeds: triples, purity, predictions, clusters, starts, and nulls."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, FULL
from query import Atlas
from query.clusters.study import clusters
from query.population import Population
from query.predict.evaluation import evaluate_models
from query.predict.heads import Head
from query.predict.training_set import LabelledModels
from query.purity.result import PurityScore
from query.purity.study import purity
from query.statistics.likeness import similarities
from scripts.adapters.plan import Row, Study
from scripts.adapters.vectors import Floats, Started
from scripts.family.plan import Run

DRAWS = 8  # of dealt labels
_FEW = 1  # p values are not shown
_NO_HEAD = Head()


@dataclass(frozen=True)
class Triples:
    """Mean similarities of the adapters of one row, and how often data count for more than the seed."""

    same_data: float
    same_seed: float
    neither: float
    right: float
    right_of_learnt: float


@dataclass(frozen=True)
class Whole:
    """What the models of a base make of each other. ``prediction``: accuracy by vectors alone."""

    all: float
    across: float
    adapters: float
    to_full: float
    prediction: float
    clusters: float


def triples(vectors: Floats, blocks: int, runs: Sequence[Run], has_learnt: Sequence[bool]) -> Triples:
    """``runs``: by vector; all start from shared seeds, and each seed was used on each data set once.

    Right: an adapter on the same data with another seed is more similar than one on other data with the same seed.
    ``right_of_learnt``: where all three have learnt something.
    """
    table = similarities(vectors.astype(np.float64), vectors.astype(np.float64), blocks)
    kinds: dict[tuple[bool, bool], list[float]] = {}
    wins: list[bool] = []
    counts: list[bool] = []
    for asked, other in itertools.permutations(range(len(runs)), 2):
        is_data = runs[asked].dataset == runs[other].dataset
        is_seed = runs[asked].seed == runs[other].seed
        kinds.setdefault((is_data, is_seed), []).append(table[asked, other])
        if is_data:
            rivals = [
                row
                for row, run in enumerate(runs)
                if run.seed == runs[asked].seed and run.dataset != runs[asked].dataset
            ]
            wins += [table[asked, other] > table[asked, rival] for rival in rivals]
            counts += [has_learnt[asked] and has_learnt[other] and has_learnt[rival] for rival in rivals]
    mean = {kind: float(np.mean(found)) for kind, found in kinds.items()}
    of_learnt = np.array(wins)[counts]
    return Triples(
        mean[True, False],
        mean[False, True],
        mean[False, False],
        float(np.mean(wins)),
        float(of_learnt.mean()) if len(of_learnt) else math.nan,
    )


def rows_of(started: Started, study: Study) -> dict[Row, list[int]]:
    """Places of the adapters of each row of the table."""
    found: dict[Row, list[int]] = {}
    for place, model in enumerate(started.population.models):
        if model in study.shared:
            found.setdefault(study.shared[model], []).append(place)
    return dict(sorted(found.items()))


def whole(started: Started, vectors: Floats, labels: Sequence[str], *, is_null: bool = False) -> Whole:
    """Everything but triples; ``is_null``: what is above chance (of predictions: the commonest label), no clusters."""
    population = replace(started.population, vectors=vectors, datasets=[frozenset([label]) for label in labels])
    groups = np.array(started.groups)
    found = purity(population, draws=_FEW)
    rows = np.flatnonzero(groups == ADAPTER)
    labelled = LabelledModels(
        vectors=vectors,
        models=population.models,
        authors=population.authors,
        datasets=population.datasets,
        heads=[_NO_HEAD] * len(labels),
        blocks=population.blocks,
    )
    evaluation = evaluate_models(labelled, k=10)
    asked = {population.models[row] for row in rows}
    hits = [one.right > 0 for one in evaluation.outcomes if one.model in asked]
    commonest = max(Counter(labels).values()) / len(labels) if is_null else 0.0
    grouped = None if is_null else clusters(population, draws=_FEW).value("datasets", "ami")
    return Whole(
        all=score_of(found, is_null),
        across=score_of(found.cross_author, is_null),
        adapters=among(population, labels, rows, rows, is_null=is_null),
        to_full=among(population, labels, rows, np.flatnonzero(groups == FULL), is_null=is_null),
        prediction=float(np.mean(hits)) - commonest,
        clusters=math.nan if grouped is None else grouped,
    )


def score_of(found: PurityScore, is_null: bool) -> float:
    """Purity, or what is above chance; nan where no model is scored."""
    if found.purity is None or found.chance is None:
        return math.nan
    return found.purity - (found.chance if is_null else 0)


def among(
    population: Population,
    labels: Sequence[str],
    asked: NDArray[np.intp],
    candidates: NDArray[np.intp],
    *,
    is_null: bool,
) -> float:
    """Mean over ``asked`` of the share of matches among the m nearest ``candidates``, where m match.

    ``is_null``: less the share of matches among all candidates.
    """
    mine, theirs = (population.vectors[rows].astype(np.float64) for rows in (asked, candidates))
    table = similarities(mine, theirs, population.blocks)
    found = []
    for place, row in enumerate(asked.tolist()):
        near = [candidates[column] for column in np.argsort(-table[place], kind="stable") if candidates[column] != row]
        matches = [labels[one] == labels[row] for one in near]
        if any(matches):
            found.append(np.mean(matches[: sum(matches)]) - (np.mean(matches) if is_null else 0))
    return float(np.mean(found)) if found else math.nan


def starts(started: Started, study: Study) -> dict[str, tuple[int, int]]:
    """Pairs of adapters, and how many of them the atlas takes for one start: of one start, and of two."""
    runs, names = study.runs, started.population.models
    counts = {"one start": [0, 0], "two starts": [0, 0]}
    for one, other in itertools.combinations(started.adapters.tolist(), 2):
        mine, theirs = runs[names[one]], runs[names[other]]
        kind = counts["one start" if mine.adapter == theirs.adapter else "two starts"]
        given = started.initialisations[one]
        kind[0] += 1
        kind[1] += given is not None and given == started.initialisations[other]
    return {name: (pairs, taken) for name, (pairs, taken) in counts.items()}


def evidence(atlas: Atlas, base: str) -> tuple[int, int]:
    """How many models are taken for duplicates, and for made from another fine-tune; nobody here is either."""
    repeats = atlas.rows("SELECT count(*) AS n FROM models WHERE base = ? AND duplicate_of IS NOT NULL", [base])
    steps = [edge for answer in atlas.lineages(base) for edge in answer.edges if edge.parent]
    return repeats[0]["n"], len(steps)


def null(started: Started, share: float) -> Mapping[str, Whole]:
    """Labels that say nothing of the data, before and after: means over DRAWS of what is above chance.

    ``share`` of the adapters bear the label of their seed; all others, and full fine-tunes, one at random.
    """
    truth = [min(names) for names in started.population.datasets]
    kinds = sorted(set(truth))
    found: dict[str, list[Whole]] = {"before": [], "after": []}
    for number in range(DRAWS):
        draw = np.random.default_rng(number)
        labels = draw.permutation(truth).tolist()
        numbers = {start: place for place, start in enumerate(dict.fromkeys(started.initialisations))}
        for row in started.adapters.tolist():
            if draw.random() < share and started.initialisations[row] is not None:
                labels[row] = kinds[numbers[started.initialisations[row]] % len(kinds)]
        for name, by_start in (("before", False), ("after", True)):
            vectors = started.centred(labels, by_start=by_start)
            found[name].append(whole(started, vectors, labels, is_null=True))
    return {
        name: Whole(**{key: float(np.mean([vars(one)[key] for one in draws])) for key in vars(draws[0])})
        for name, draws in found.items()
    }
