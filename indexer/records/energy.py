"""Energy of a matrix: Σ σ², and how many singular values it takes to hold a share of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

RANK_THRESHOLDS = (50, 80, 90, 95, 99)  # per cent of the energy; the columns rank_50 … of the deltas table


def rank_at(values: ArrayLike, threshold: float, norm: float | None = None) -> int | None:
    """As :func:`ranks_at` for one share."""
    return ranks_at(values, (threshold,), norm)[0]


def ranks_at(values: ArrayLike, thresholds: Sequence[float], norm: float | None = None) -> list[int | None]:
    """For each share of the energy the smallest r for which the first r ``values`` hold it.

    ``values`` are singular values in descending order. ``norm`` is the Frobenius norm of the matrix, where
    they are not all of them. 0 where there is no energy; None where the values at hand do not hold so much.
    Raises ValueError when a threshold is not in (0, 1].
    """
    for threshold in thresholds:
        if not 0 < threshold <= 1:
            raise ValueError(f"a share of energy lies in (0, 1], not {threshold}")
    numbers = np.asarray(values, dtype=np.float64)
    largest = float(numbers[0]) if len(numbers) else 0.0
    if largest == 0:
        return [0 if not norm else None for _ in thresholds]
    energy = np.square(numbers / largest).cumsum()
    total = float(energy[-1]) if norm is None else (norm / largest) ** 2
    before = energy.searchsorted([threshold * total for threshold in thresholds], side="left").tolist()
    return [rank + 1 if rank < len(numbers) else None for rank in before]
