"""Whether synthetic vectors are like real ones: the same figures of both, side by side.

The synthetic ones are drawn for the real ones' own labels (who made which model on which data, which matrices an
adapter changes), so that only the vectors are compared, several times, so that chance shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from query.statistics.likeness import similarities
from scripts.scale.centring import as_published, centre_of_drawn
from scripts.scale.facts import FAMILIES, HUB_2022, HUB_2023, LAW, Counted, Law
from scripts.scale.labels import EVERY_FAMILY, Labels, draw_labels
from scripts.scale.population import Population

Floats = NDArray[np.float32]

# The synthetic figure is the mean of so many draws.
DRAWS = 12

# Figures, what they mean, and how far the two may be apart.
FIGURES = {
    "across": ("similarity, other data and author", 0.03),
    "across_spread": ("… its deviation", 0.025),
    "author": ("similarity, same author, other data", 0.03),
    "dataset": ("similarity, same data, other author", 0.04),
    "dataset_spread": ("… its deviation", 0.03),
    "project": ("similarity, same author and data", 0.05),
    "project_spread": ("… its deviation", 0.05),
    "adapter_across": ("similarity, adapter and full, other data", 0.02),
    "adapter_dataset": ("similarity, adapter and full, same data", 0.04),
    "nearest_5": ("nearest neighbour's similarity, 5th percentile", 0.06),
    "nearest_50": ("… median", 0.05),
    "nearest_95": ("… 95th percentile", 0.06),
    "nearest_same": ("share whose nearest has the same data", 0.06),
    "dimension": ("effective dimension (Σλ)²/Σλ² of the full ones", 4.0),
    "first_ten": ("share of variance in 10 principal components", 0.05),
    "hub_skew": ("hubness: skew of how often one is in others' top 10", 1.0),
    "hub_most": ("… most often (÷ 10)", 1.5),
    "hub_never": ("… share that is in none", 0.06),
}


# The same of labels: real listings differ among themselves, so synthetic ones have to lie between them, or this close.
LABEL_FIGURES = {
    "authors": ("authors ÷ models", 0.05),
    "lone_authors": ("share of authors with one model", 0.05),
    "largest_author": ("share of models that the largest account holds", 0.05),
    "named": ("share of models that name a data set", 0.05),
    "datasets": ("data sets ÷ claims", 0.05),
    "lone_datasets": ("share of data sets that one model names", 0.06),
    "largest_dataset": ("share of claims that the largest data set holds", 0.05),
}


@dataclass(frozen=True)
class Real:
    """What is kept of a real atlas: labels, layers and figures, no vectors and no names."""

    layers: int
    labels: Labels
    figures: dict[str, float]


@dataclass(frozen=True)
class Compared:
    """One figure of both.

    ``low`` and ``high``: the real ones, the same where there is one; ``synthetic`` is the mean of the draws,
    ``deviation`` theirs; ``bound``: how far outside of the real ones it may lie.
    """

    name: str
    low: float
    high: float
    synthetic: float
    deviation: float
    bound: float

    @property
    def is_like(self) -> bool:
        """Whether it is as close as it should be."""
        return self.low - self.bound <= self.synthetic <= self.high + self.bound


def _compared(name: str, real: Sequence[float], drawn: Sequence[float], bound: float) -> Compared:
    return Compared(name, min(real), max(real), float(np.mean(drawn)), float(np.std(drawn, ddof=1)), bound)


def real_figures() -> Real:
    """The real atlas whose figures are kept here."""
    kept = json.loads((resources.files("scripts.scale") / "real.json").read_text(encoding="utf-8"))
    return Real(kept["layers"], _labels(kept["models"]), kept["figures"])


def measured_figures(atlas: Path, base: str | None = None) -> Real:
    """The same of any atlas. Raises AtlasError where it cannot be read or has several bases and none is named."""
    from query import Atlas
    from query.population import distinct, read_population

    with Atlas(atlas) as opened:
        found = distinct(read_population(opened, base))
    families = len(FAMILIES)
    lengths = np.linalg.norm(
        found.vectors.reshape(len(found.ids), -1, families, found.vectors.shape[1] // found.blocks), axis=3
    )
    authors = {name: number for number, name in enumerate(sorted(set(found.authors)))}
    names = [min(datasets, default=f"?{row}") for row, datasets in enumerate(found.datasets)]
    datasets = {name: number for number, name in enumerate(sorted(set(names)))}
    models = [
        [authors[author], datasets[name], int(((lengths[row].max(axis=0) > 0) << np.arange(families)).sum()), relation == "adapter"]
        for row, (author, name, relation) in enumerate(zip(found.authors, names, found.relations, strict=True))
    ]  # fmt: skip
    labels = _labels(models)
    return Real(lengths.shape[1], labels, figures_of(found.vectors, labels, found.blocks))


def as_json(real: Real) -> dict[str, Any]:
    """What ``real.json`` holds."""
    labels = real.labels
    columns = (labels.author, labels.dataset, labels.changed, labels.is_adapter)
    models = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return {"layers": real.layers, "figures": real.figures, "models": models}


def compare(real: Real, draws: int = DRAWS, law: Law = LAW, seed: int = 0) -> list[Compared]:
    """Every figure of the real vectors beside that of synthetic ones with the same labels."""
    drawn = [_drawn_figures(Population(real.labels, seed + number, real.layers, law)) for number in range(draws)]
    return [
        _compared(name, [real.figures[name]], [figures[name] for figures in drawn], bound)
        for name, (_, bound) in FIGURES.items()
        if name in real.figures
    ]


def _drawn_figures(population: Population) -> dict[str, float]:
    """Of vectors that are centred by themselves, as real ones are when they are published."""
    labels, blocks = population.labels, population.blocks
    drawn = population.vectors(0, len(labels))
    everyone = np.ones(len(labels), dtype=bool)
    centre = centre_of_drawn(drawn, blocks, labels.is_adapter, labels.author, everyone)
    return figures_of(as_published(drawn, blocks, labels.is_adapter, centre), labels, blocks)


def compare_labels(draws: int = DRAWS, seed: int = 0) -> list[Compared]:
    """Every figure of two real listings' labels beside that of synthetic ones of as many models as the smaller has."""
    drawn = [counted(draw_labels(HUB_2022.models, seed + number)) for number in range(draws)]
    both = (HUB_2022, HUB_2023)
    return [
        _compared(name, [getattr(hub, name) for hub in both], [getattr(one, name) for one in drawn], bound)
        for name, (_, bound) in LABEL_FIGURES.items()
    ]


def counted(labels: Labels) -> Counted:
    """What was counted on real labels, of synthetic ones."""
    authors = np.bincount(labels.author)
    claims = np.bincount(labels.dataset[labels.named])
    claims = claims[claims > 0]
    return Counted(
        models=len(labels),
        claims=int(claims.sum()),
        authors=len(authors) / len(labels),
        lone_authors=float((authors == 1).mean()),
        largest_author=float(authors.max() / len(labels)),
        named=float(labels.named.mean()),
        datasets=float(len(claims) / claims.sum()),
        lone_datasets=float((claims == 1).mean()),
        largest_dataset=float(claims.max() / claims.sum()),
    )


def figures_of(vectors: Floats, labels: Labels, blocks: int = 0) -> dict[str, float]:
    """The figures of vectors (n, d) of unit ``blocks`` (0: of unit norm) of which no two are the same upload.

    Those of pairs that there are none of are left out. None of the vectors is zero.
    """
    count = len(vectors)
    cosines = similarities(vectors.astype(np.float64), vectors.astype(np.float64), blocks)
    data, author = (column[:, None] == column for column in (labels.dataset, labels.author))
    full = ~labels.is_adapter
    both, mixed = full[:, None] & full, full[:, None] ^ full
    above = np.triu(np.ones((count, count), dtype=bool), 1)
    pairs = {
        "across": both & ~data & ~author,
        "author": both & ~data & author,
        "dataset": both & data & ~author,
        "project": both & data & author,
        "adapter_across": mixed & ~data,
        "adapter_dataset": mixed & data,
    }
    found: dict[str, float] = {}
    for name, chosen in pairs.items():
        values = cosines[chosen & above]
        if len(values):
            found[name] = float(values.mean())
            found[f"{name}_spread"] = float(values.std())
    np.fill_diagonal(cosines, -2)
    nearest = cosines.max(axis=1)
    found |= {f"nearest_{percent}": float(np.percentile(nearest, percent)) for percent in (5, 50, 95)}
    found["nearest_same"] = float((labels.dataset[cosines.argmax(axis=1)] == labels.dataset).mean())
    found |= _spectrum(vectors[full]) | _hubness(cosines)
    return {name: round(value, 4) for name, value in found.items()}


def _spectrum(vectors: Floats) -> dict[str, float]:
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    return {
        "dimension": float(variance.sum() ** 2 / (variance**2).sum()),
        "first_ten": float(variance[:10].sum() / variance.sum()),
    }


def _hubness(cosines: NDArray[np.float64], k: int = 10) -> dict[str, float]:
    """Radovanović, Nanopoulos & Ivanović (2010), "Hubs in space": the skew of the k-occurrence."""
    count = len(cosines)
    nearest = np.argpartition(-cosines, k, axis=1)[:, :k]
    times = np.bincount(nearest.ravel(), minlength=count)
    apart = times - times.mean()
    return {
        "hub_skew": float((apart**3).mean() / times.std() ** 3),
        "hub_most": float(times.max() / k),
        "hub_never": float((times == 0).mean()),
    }


def _labels(models: Sequence[Sequence[int]]) -> Labels:
    author, dataset, changed, is_adapter = np.array(models).T
    count = len(models)
    return Labels(
        author=author.astype(np.int32),
        dataset=dataset.astype(np.int32),
        named=np.ones(count, dtype=bool),
        changed=np.where(is_adapter > 0, changed, EVERY_FAMILY).astype(np.uint8),
        original=np.arange(count, dtype=np.int32),
        is_adapter=is_adapter > 0,
    )
