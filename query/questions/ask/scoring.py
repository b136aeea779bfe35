"""How likely it is that a score is chance: against sets of texts that no model was trained on, and other models.

A raw score is a cosine between a set of texts and a model. Models differ in their scores for arbitrary texts, and
sets of texts differ in how widely models' scores spread. So a score becomes a z-score twice: among the scores that sets
of reference texts, each of one kind, have with the same model; then among the models. Hits lie above the others, so the
second spread is that of the lower half. A p-value is the share of z-scores of reference sets that are at least as high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The weight of the evidence by vocabulary, compared with that by vectors. On the trained families .7 is best on
# average; from .5 to .85 the average precision moves by .02.
VOCABULARY_WEIGHT = 0.7
# Median and spread over few models are shrunk towards those of reference sets, which count as this many models.
SHRINK = 5
_LOWER = 0.1587  # a standard deviation below the median of a normal distribution


@dataclass(frozen=True)
class Scored:
    """z-scores (sets, models) of sets of texts, and their p-values; NaN for a model without any evidence."""

    z: Floats
    p: Floats


@dataclass(frozen=True)
class Null:
    """The scores of the reference sets with n models, as far as later questions need them.

    Models are compared with the models that have the same kinds of evidence.

    Attributes:
        weights: (kinds,) of the kinds of evidence.
        means: (kinds, n) of the raw scores of each model, NaN for a model without that kind.
        spreads: (kinds, n) likewise.
        patterns: for each class of models with the same kinds: which kinds (kinds,), the spread of its z-scores, and
            the z-scores of all reference sets divided by it, ascending.
    """

    weights: Floats
    means: Floats
    spreads: Floats
    patterns: tuple[tuple[NDArray[np.bool_], float, Floats], ...]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays by name, to be stored."""
        arrays: dict[str, NDArray[Any]] = {"weights": self.weights, "means": self.means, "spreads": self.spreads}
        for index, (kinds, spread, ordered) in enumerate(self.patterns):
            arrays |= {f"kinds {index}": kinds, f"spread {index}": np.array([spread]), f"ordered {index}": ordered}
        return arrays

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Null:
        """The inverse of ``arrays``."""
        indices = range(sum(name.startswith("kinds ") for name in arrays))
        return cls(
            arrays["weights"],
            arrays["means"],
            arrays["spreads"],
            tuple(
                (arrays[f"kinds {index}"], float(arrays[f"spread {index}"][0]), arrays[f"ordered {index}"])
                for index in indices
            ),
        )


def score(null: Null, raw: Sequence[Floats]) -> Scored:
    """z-scores and p-values of sets of texts, all kinds of evidence together.

    ``raw``: for each kind the raw scores (a, models) of the sets, NaN in a whole column for a model without this kind.
    """
    z_of_kinds = [
        standardised(kind_scores, mean, spread)
        for kind_scores, mean, spread in zip(raw, null.means, null.spreads, strict=True)
    ]
    z, has_kind = _sum(z_of_kinds, null.weights), _present(null.means)
    p = np.full(z.shape, np.nan)
    for kinds, spread, ordered in null.patterns:
        is_same_kind = (has_kind == kinds[:, None]).all(axis=0)
        z[:, is_same_kind] /= spread
        p[:, is_same_kind] = tail(ordered, z[:, is_same_kind])
    return Scored(z, p)


def null_of(raw: Sequence[Floats], weights: Sequence[float]) -> Null:
    """From the raw scores (r, models) of the reference sets for each kind, NaN in a column for a model without it."""
    moments = [_moments(raw_scores) for raw_scores in raw]

    def leave_one_out(raw_scores: Floats) -> Floats:
        """z-scores of each set among the others."""
        count = len(raw_scores) - 1
        mean = (raw_scores.sum(axis=0) - raw_scores) / max(count, 1)
        square = (np.square(raw_scores).sum(axis=0) - raw_scores**2) / max(count, 1)
        return standardised(raw_scores, mean, _spread(square - mean**2, count))

    with ThreadPoolExecutor() as pool:
        z = _sum(list(pool.map(leave_one_out, raw)), weights)
    means = np.stack([mean for mean, _ in moments])
    has_kind = _present(means)
    patterns = []
    # The sum of two kinds has another spread than one alone.
    for kinds in np.unique(has_kind, axis=1).T:
        if kinds.any():
            class_z = z[:, (has_kind == kinds[:, None]).all(axis=0)]
            spread = float(np.std(class_z)) or 1.0
            patterns.append((kinds, spread, np.sort(class_z, axis=None) / spread))
    return Null(np.array(weights), means, np.stack([spread for _, spread in moments]), tuple(patterns))


def _present(means: Floats) -> NDArray[np.bool_]:
    """(kinds, models) which kinds of evidence a model has."""
    return ~np.isnan(means)


def _moments(raw: Floats) -> tuple[Floats, Floats]:
    """(models,) means and spreads of raw scores (r, models)."""
    mean = raw.mean(axis=0)
    square = np.square(raw).mean(axis=0)
    return mean, _spread(square - mean**2, len(raw))


def _spread(variance: Floats, count: int) -> Floats:
    """Standard deviations from variances with divisor ``count``."""
    return np.maximum(np.sqrt(np.maximum(variance, 0) * count / max(count - 1, 1)), 1e-9)


def standardised(raw: Floats, mean: Floats, spread: Floats) -> Floats:
    """z-scores (a, models) of raw scores, see above, by the mean and spread of the reference sets with each model."""
    z = np.full(raw.shape, np.nan)
    scores = (raw - mean) / spread
    has_evidence = ~np.isnan(scores).any(axis=0)
    if not has_evidence.any():
        return z
    known_scores = scores[:, has_evidence]
    models = known_scores.shape[1]
    median, low = np.quantile(known_scores, [0.5, _LOWER], axis=1, keepdims=True)
    lower = median - low
    centre = models / (models + SHRINK) * median
    z[:, has_evidence] = (known_scores - centre) / np.sqrt((models * lower**2 + SHRINK) / (models + SHRINK))
    return z


def tail(ordered: Floats, z: Floats) -> Floats:
    """The share of the ascending ``ordered`` that is at least ``z``: (1 + number) / (1 + size)."""
    higher = len(ordered) - np.searchsorted(ordered, z, side="left")
    return (1 + higher) / (1 + len(ordered))


def standing_out(p: Floats, rate: float) -> int:
    """How many of the smallest p-values stand out at this false discovery rate (Benjamini & Hochberg, 1995)."""
    ordered = np.sort(p[~np.isnan(p)])
    within = np.flatnonzero(ordered * len(ordered) / np.arange(1, len(ordered) + 1) <= rate)
    return int(within[-1]) + 1 if len(within) else 0


def _sum(kinds: Sequence[Floats], weights: Sequence[float] | Floats) -> Floats:
    """The weighted sum of the kinds that a model has."""
    total = sum(weight * np.nan_to_num(z) for z, weight in zip(kinds, weights, strict=True))
    has_evidence = np.any([~np.isnan(z) for z in kinds], axis=0)
    return np.where(has_evidence, total, np.nan)
