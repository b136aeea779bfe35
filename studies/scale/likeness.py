"""Whether synthetic labels and vectors are like real ones: the same figures of both, compared.

The synthetic vectors are drawn for the labels of the real ones (who made which model on which data, which matrices an
adapter changes), so that only the vectors are compared; several times, to show the variation between draws.
``real.json`` has the labels and figures of the demo's models, without vectors and names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.centre import ADAPTER, FULL
from indexer.vectors.stored import with_unit_blocks
from query.shared.statistics.likeness import similarities
from scripts.synthetic.population import (
    EVERY_FAMILY,
    HUB_LABELS,
    HUB_MODELS,
    LAW,
    Floats,
    Labels,
    Law,
    Population,
    draw_labels,
)
from studies.vectors import centred

# The synthetic figure is the mean of this many draws.
DRAWS = 12

# Figures of vectors, their meaning, and by how much the synthetic figure may differ.
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

# The same of labels. Real listings differ, so synthetic figures must lie between them or this close to one.
LABEL_FIGURES = {
    "authors": ("authors ÷ models", 0.05),
    "lone_authors": ("share of authors with one model", 0.05),
    "largest_author": ("share of models that the largest account holds", 0.05),
    "named": ("share of models that name a data set", 0.05),
    "datasets": ("data sets ÷ claims", 0.05),
    "lone_datasets": ("share of data sets that one model names", 0.06),
    "largest_dataset": ("share of claims that the largest data set holds", 0.05),
}


def real_vectors() -> tuple[Labels, int, dict[str, float]]:
    """Labels, number of layers, and figures of real models."""
    kept = json.loads(Path(__file__).with_name("real.json").read_text(encoding="utf-8"))
    author, dataset, changed, is_adapter = np.array(kept["models"]).T
    labels = Labels(
        author=author.astype(np.int32),
        dataset=dataset.astype(np.int32),
        named=np.ones(len(author), dtype=bool),
        changed=np.where(is_adapter > 0, changed, EVERY_FAMILY).astype(np.uint8),
        original=np.arange(len(author), dtype=np.int32),
        is_adapter=is_adapter > 0,
    )
    return labels, kept["layers"], kept["figures"]


def compare_vectors(law: Law = LAW, seed: int = 0) -> list[dict[str, Any]]:
    """A row for each figure of the real vectors and of synthetic ones with the same labels."""
    labels, layers, figures = real_vectors()
    groups = np.where(labels.is_adapter, ADAPTER, FULL).tolist()
    drawn = []
    for number in range(DRAWS):
        population = Population(labels, seed + number, layers, law)
        unit = with_unit_blocks(population.vectors(0, len(labels)), population.blocks)
        # Centred by themselves, as real ones are when they are published.
        vectors = centred(unit, groups, labels.author.astype(str).tolist(), population.blocks)
        drawn.append(figures_of(vectors, labels, population.blocks))
    return [_compared(name, meaning, bound, [figures[name]], drawn) for name, (meaning, bound) in FIGURES.items()]


def compare_labels(seed: int = 0) -> list[dict[str, Any]]:
    """A row for each figure of the labels of two real listings and of synthetic ones."""
    drawn = [figures_of_labels(draw_labels(HUB_MODELS, seed + number)) for number in range(DRAWS)]
    return [
        _compared(name, meaning, bound, HUB_LABELS[name], drawn) for name, (meaning, bound) in LABEL_FIGURES.items()
    ]


def _compared(
    name: str, meaning: str, bound: float, real: Sequence[float], drawn: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """``synthetic``: the mean of the draws; ``bound``: how far it may lie outside of the real figures."""
    values = [figures[name] for figures in drawn]
    low, high, mean = min(real), max(real), float(np.mean(values))
    return {
        "name": name, "meaning": meaning, "low": low, "high": high, "synthetic": mean,
        "deviation": float(np.std(values, ddof=1)), "bound": bound, "is_like": low - bound <= mean <= high + bound,
    }  # fmt: skip


def figures_of_labels(labels: Labels) -> dict[str, float]:
    """The figures of LABEL_FIGURES."""
    authors = np.bincount(labels.author)
    claims = np.bincount(labels.dataset[labels.named])
    claims = claims[claims > 0]
    return {
        "authors": len(authors) / len(labels),
        "lone_authors": float((authors == 1).mean()),
        "largest_author": float(authors.max() / len(labels)),
        "named": float(labels.named.mean()),
        "datasets": float(len(claims) / claims.sum()),
        "lone_datasets": float((claims == 1).mean()),
        "largest_dataset": float(claims.max() / claims.sum()),
    }


def figures_of(vectors: Floats, labels: Labels, blocks: int = 0) -> dict[str, float]:
    """The figures of FIGURES, of vectors (n, d) of distinct models, which are not zero.

    ``blocks``: the number of unit blocks of a vector, 0 if the whole vector has unit norm. Figures of pairs that do not
    occur are left out.
    """
    cosines = similarities(vectors.astype(np.float64), vectors.astype(np.float64), blocks)
    data, author = (column[:, None] == column for column in (labels.dataset, labels.author))
    full = ~labels.is_adapter
    both, mixed = full[:, None] & full, full[:, None] ^ full
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
        values = cosines[np.triu(chosen, 1)]
        if len(values):
            found |= {name: float(values.mean()), f"{name}_spread": float(values.std())}
    np.fill_diagonal(cosines, -2)
    nearest = cosines.max(axis=1)
    found |= {f"nearest_{percent}": float(np.percentile(nearest, percent)) for percent in (5, 50, 95)}
    found["nearest_same"] = float((labels.dataset[cosines.argmax(axis=1)] == labels.dataset).mean())
    centred = vectors[full].astype(np.float64) - vectors[full].mean(axis=0, dtype=np.float64)
    variance = np.linalg.svd(centred, compute_uv=False) ** 2
    found["dimension"] = float(variance.sum() ** 2 / (variance**2).sum())
    found["first_ten"] = float(variance[:10].sum() / variance.sum())
    return {name: round(value, 4) for name, value in (found | hubness(cosines)).items()}


def hubness(cosines: NDArray[np.floating[Any]], k: int = 10) -> dict[str, float]:
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
