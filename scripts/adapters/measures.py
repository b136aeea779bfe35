"""What is measured of adapters that share seeds: triples, purity, predictions, clusters, starts, and nulls."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, FULL
from query import Atlas
from query.clusters.clusters import clusters
from query.predict.calibration import evaluate_documents
from query.predict.documented import Documents
from query.predict.head_evidence import Head
from query.purity.purity import purity
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


@dataclass(frozen=True)
class Whole:
    """What the models of a base make of each other. ``prediction``: accuracy by vectors alone."""

    all: float
    across: float
    adapters: float
    to_full: float
    prediction: float
    clusters: float


def triples(vectors: Floats, blocks: int, runs: Sequence[Run]) -> Triples:
    """``runs``: by vector; all start from shared seeds, and each seed was used on each data set once.

    Right: an adapter on the same data with another seed is more similar than one on other data with the same seed.
    """
    table = similarities(vectors.astype(np.float64), vectors.astype(np.float64), blocks)
    kinds: dict[tuple[bool, bool], list[float]] = {}
    wins: list[bool] = []
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
    mean = {kind: float(np.mean(found)) for kind, found in kinds.items()}
    return Triples(mean[True, False], mean[False, True], mean[False, False], float(np.mean(wins)))


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
    documents = Documents(
        vectors=vectors,
        models=population.models,
        authors=population.authors,
        datasets=population.datasets,
        heads=[_NO_HEAD] * len(labels),
        blocks=population.blocks,
    )
    judged = evaluate_documents(documents, k=10)
    asked = {population.models[row] for row in rows}
    hits = [one.right > 0 for one in judged.outcomes if one.model in asked]
    commonest = max(Counter(labels).values()) / len(labels) if is_null else 0.0
    grouped = None if is_null else clusters(population, draws=_FEW).value("datasets", "ami")
    return Whole(
        all=found.purity - (found.chance if is_null else 0),
        across=found.cross_author.purity - (found.cross_author.chance if is_null else 0),
        adapters=among(population.vectors, population.blocks, labels, rows, rows),
        to_full=among(population.vectors, population.blocks, labels, rows, np.flatnonzero(groups == FULL)),
        prediction=float(np.mean(hits)) - commonest,
        clusters=float("nan") if grouped is None else grouped,
    )


def among(
    vectors: Floats, blocks: int, labels: Sequence[str], asked: NDArray[np.intp], candidates: NDArray[np.intp]
) -> float:
    """Mean over ``asked`` of the share of matches among the m nearest ``candidates``, where m match."""
    table = similarities(vectors[asked].astype(np.float64), vectors[candidates].astype(np.float64), blocks)
    found = []
    for place, row in enumerate(asked.tolist()):
        near = [candidates[column] for column in np.argsort(-table[place], kind="stable") if candidates[column] != row]
        matches = [labels[one] == labels[row] for one in near]
        if any(matches):
            found.append(float(np.mean(matches[: sum(matches)])))
    return float(np.mean(found)) if found else float("nan")


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
