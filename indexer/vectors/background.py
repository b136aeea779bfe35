"""The background of a similarity: the share of pairs of unrelated models that are at least as similar.

Kept as points of the distribution, dense towards the high end, where an answer is looked up. The share of a point is
(1 + pairs at least as similar)/(1 + pairs): never zero, because another pair might be more similar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fewer pairs say too little for a share to be given.
FEWEST_PAIRS = 200

# Points of a distribution: the highest one by one, then ever farther apart.
_ONE_BY_ONE = 16
_POINTS = 120


@dataclass(frozen=True, eq=False)
class Background:
    """One distribution: ``similarities`` (p,) descending, and the ``shares`` (p,) of pairs at least so similar."""

    pairs: int
    similarities: NDArray[np.float32]
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, similarities: NDArray[np.floating]) -> Background | None:
        """From the similarities of pairs of unrelated models; None where they are too few."""
        count = len(similarities)
        if count < FEWEST_PAIRS:
            return None
        ordered = np.sort(similarities)[::-1]
        spread = np.geomspace(_ONE_BY_ONE, count, _POINTS).round().astype(np.int64)
        # The low half evenly, too: there the ranks of a geometric series lie far apart.
        ranks = np.unique(
            np.concatenate([np.arange(1, _ONE_BY_ONE + 1), spread, np.linspace(1, count, 41).astype(int)])
        )
        points = ordered[ranks - 1].astype(np.float32)
        # Of equal similarities the last rank counts.
        last = np.append(points[1:] < points[:-1], True)
        return cls(count, points[last], (1.0 + ranks[last]) / (1.0 + count))

    def share(self, similarity: float) -> float:
        """The share of unrelated pairs at least as similar, between the points by a straight line."""
        return float(self.shares_at(np.array([similarity]))[0])

    def shares_at(self, similarities: NDArray[np.floating]) -> NDArray[np.float64]:
        """The same of many."""
        beyond = 1.0 / (1.0 + self.pairs)
        return np.interp(-similarities, -self.similarities, self.shares, left=beyond, right=1.0)
