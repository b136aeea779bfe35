"""Purity of vectors: of all models, across authors, of adapters among full fine-tunes, of full fine-tunes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, FULL
from query.population import Population
from query.purity.purity import PurityScore, purity
from query.statistics.likeness import similarities
from scripts.vectors.variants import Family, Floats, vectors_of

_DRAWS = 1  # the p of each is below .001 and told by `query purity`


@dataclass(frozen=True)
class Scores:
    """Purity with its 95 % interval over authors, where there is one."""

    all: PurityScore
    across: PurityScore
    full: PurityScore
    adapter_to_full: float | None
    chance: float | None


def scores_of(family: Family, name: str) -> Scores:
    """How one make of vectors does."""
    vectors, blocks = vectors_of(family, name)
    whole = replace(family.population, vectors=vectors, blocks=blocks)
    found = purity(whole, draws=_DRAWS)
    full = purity(_some(whole, np.array(family.groups) == FULL), draws=_DRAWS)
    return Scores(found, found.cross_author, full, _adapters(family, vectors, blocks), found.chance)


def without_the_asked(family: Family, name: str) -> float:
    """Purity of all models where those of the asked model's data sets have no vote in the centre."""
    labels = family.population.datasets
    scored: list[float] = []
    for names in sorted({tuple(sorted(found)) for found in labels if found}):
        asked = [row for row, found in enumerate(labels) if found == frozenset(names)]
        but = {row for row, found in enumerate(labels) if found & frozenset(names)}
        vectors, blocks = vectors_of(family, name, but)
        scored += _purities(family, vectors, blocks, asked, [row for row, found in enumerate(labels) if found])
    return float(np.mean(scored))


def _some(population: Population, kept: NDArray[np.bool_]) -> Population:
    rows = np.flatnonzero(kept)
    columns = ("models", "authors", "datasets", "relations", "group")
    return replace(
        population,
        **{name: [getattr(population, name)[row] for row in rows] for name in columns},
        **{name: getattr(population, name)[rows] for name in ("vectors", "ids", "is_copy", "is_unrelated")},
        representative=population.representative[rows],
    )


def _adapters(family: Family, vectors: Floats, blocks: int) -> float | None:
    """Mean over adapters of the share of matches among the m nearest full fine-tunes, where m match."""
    labels, groups = family.population.datasets, family.groups
    adapters = [row for row, names in enumerate(labels) if names and groups[row] == ADAPTER]
    full = [row for row, names in enumerate(labels) if names and groups[row] == FULL]
    scored = _purities(family, vectors, blocks, adapters, full)
    return float(np.mean(scored)) if scored else None


def _purities(family: Family, vectors: Floats, blocks: int, asked: list[int], candidates: list[int]) -> list[float]:
    labels = family.population.datasets
    table = similarities(vectors[asked].astype(np.float64), vectors[candidates].astype(np.float64), blocks)
    found = []
    for place, row in enumerate(asked):
        others = [column for column, other in enumerate(candidates) if other != row]
        near = sorted(others, key=lambda column: (-table[place, column], column))
        matches = [bool(labels[row] & labels[candidates[column]]) for column in near]
        if any(matches):
            found.append(float(np.mean(matches[: sum(matches)])))
    return found
