"""How likely it is that a score is chance: against sets of texts that no model was trained on, and other models.

A raw score is a cosine between a set of texts and a model. Models differ in what a set of arbitrary texts scores, and
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
    """z-scores (sets, models) of the sets asked about, and their p-values; NaN for a model without any evidence."""

    z: Floats
    p: Floats


@dataclass(frozen=True)
class Null:
    """The scores of the reference sets with n models, as far as later questions need them.

    ``weights`` (kinds,) of the kinds of evidence. ``means`` and ``spreads`` (kinds, n) of the raw scores of each model,
    NaN for a model without that kind. ``patterns``: models are compared with those that have the same kinds; for each
    such class which kinds (kinds,), the spread of its z-scores, and the z-scores of all reference sets, divided by it,
    ascending.
    """

    weights: Floats
    means: Floats
    spreads: Floats
    patterns: tuple[tuple[NDArray[np.bool_], float, Floats], ...]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As arrays by name, to be stored."""
        found: dict[str, NDArray[Any]] = {"weights": self.weights, "means": self.means, "spreads": self.spreads}
        for place, (kinds, spread, ordered) in enumerate(self.patterns):
            found |= {f"kinds {place}": kinds, f"spread {place}": np.array([spread]), f"ordered {place}": ordered}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Null:
        """The inverse of ``arrays``."""
        places = range(sum(name.startswith("kinds ") for name in arrays))
        return cls(
            arrays["weights"],
            arrays["means"],
            arrays["spreads"],
            tuple(
                (arrays[f"kinds {one}"], float(arrays[f"spread {one}"][0]), arrays[f"ordered {one}"]) for one in places
            ),
        )


def score(null: Null, asked: Sequence[Floats]) -> Scored:
    """z-scores and p-values of sets of texts, all kinds of evidence together.

    ``asked``: for each kind the raw scores (a, models) of the sets that are asked about, NaN in a whole column for a
    model without this kind.
    """
    of_kinds = [
        standardised(one, mean, spread) for one, mean, spread in zip(asked, null.means, null.spreads, strict=True)
    ]
    z, present = _sum(of_kinds, null.weights), _present(null.means)
    p = np.full(z.shape, np.nan)
    for kinds, spread, ordered in null.patterns:
        same = (present == kinds[:, None]).all(axis=0)
        z[:, same] /= spread
        p[:, same] = tail(ordered, z[:, same])
    return Scored(z, p)


def null_of(raw: Sequence[Floats], weights: Sequence[float]) -> Null:
    """From the raw scores (r, models) of the reference sets for each kind, NaN in a column for a model without it."""
    moments = [_moments(one) for one in raw]

    def left_out(one: Floats) -> Floats:
        """z-scores of each set among the others."""
        count = len(one) - 1
        mean = (one.sum(axis=0) - one) / max(count, 1)
        square = (np.square(one).sum(axis=0) - one**2) / max(count, 1)
        return standardised(one, mean, _spread(square - mean**2, count))

    with ThreadPoolExecutor() as pool:
        z = _sum(list(pool.map(left_out, raw)), weights)
    means = np.stack([mean for mean, _ in moments])
    present = _present(means)
    patterns = []
    # The sum of two kinds has another spread than one alone.
    for kinds in np.unique(present, axis=1).T:
        if kinds.any():
            own = z[:, (present == kinds[:, None]).all(axis=0)]
            spread = float(np.std(own)) or 1.0
            patterns.append((kinds, spread, np.sort(own, axis=None) / spread))
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


def standardised(asked: Floats, mean: Floats, spread: Floats) -> Floats:
    """z-scores (a, models) of raw scores, see above, by the mean and spread of the reference sets with each model."""
    z = np.full(asked.shape, np.nan)
    everyone = (asked - mean) / spread
    have = ~np.isnan(everyone).any(axis=0)
    if not have.any():
        return z
    found = everyone[:, have]
    models = found.shape[1]
    median, low = np.quantile(found, [0.5, _LOWER], axis=1, keepdims=True)
    lower = median - low
    centre = models / (models + SHRINK) * median
    z[:, have] = (found - centre) / np.sqrt((models * lower**2 + SHRINK) / (models + SHRINK))
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
    total = sum(weight * np.nan_to_num(one) for one, weight in zip(kinds, weights, strict=True))
    has = np.any([~np.isnan(one) for one in kinds], axis=0)
    return np.where(has, total, np.nan)
