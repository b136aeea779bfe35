"""The background of a similarity: the share of pairs of unrelated models that are at least as similar.

Stored as points of the distribution, dense towards the high end, where answers lie. The share of a point is
(1 + pairs at least as similar)/(1 + pairs): never zero, because another pair might be more similar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# With fewer pairs no share is given.
FEWEST_PAIRS = 200

# Points of a distribution: the highest are consecutive, the others ever farther apart.
_CONSECUTIVE = 16
_POINTS = 120


@dataclass(frozen=True, eq=False)
class Background:
    """One distribution: ``similarities`` (p,) descending, and the ``shares`` (p,) of pairs at least as similar."""

    pairs: int
    similarities: NDArray[np.float32]
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, similarities: NDArray[np.floating]) -> Background | None:
        """From the similarities of pairs of unrelated models; None if there are too few."""
        count = len(similarities)
        if count < FEWEST_PAIRS:
            return None
        ordered = np.sort(similarities)[::-1]
        spread = np.geomspace(_CONSECUTIVE, count, _POINTS).round().astype(np.int64)
        # Evenly spaced points as well, because the ranks of a geometric series are far apart at the low end.
        ranks = np.unique(
            np.concatenate([np.arange(1, _CONSECUTIVE + 1), spread, np.linspace(1, count, 41).astype(int)])
        )
        points = ordered[ranks - 1].astype(np.float32)
        # Of equal similarities keep the last rank.
        last = np.append(points[1:] < points[:-1], True)
        return cls(count, points[last], (1.0 + ranks[last]) / (1.0 + count))

    def share(self, similarities: NDArray[np.floating] | float) -> NDArray[np.float64]:
        """The shares of unrelated pairs at least as similar, interpolated linearly between the points."""
        beyond = 1.0 / (1.0 + self.pairs)
        return np.interp(-np.asarray(similarities), -self.similarities, self.shares, left=beyond, right=1.0)
