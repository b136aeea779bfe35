"""Spearman's ρ with an interval by bootstrap over authors, all draws at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Above so many points a draw keeps the ranks of the whole: their table of comparisons would not fit.
MOST_RANKED = 3000


def spearman(
    left: Floats, right: Floats, authors: NDArray[Any], random: np.random.Generator, draws: int = 1000
) -> tuple[float, float, float]:
    """ρ of two tables (models, values), and the ends of its 95 % interval.

    Whole authors are drawn again (models, where there is one author), and every draw is ranked anew: with w_j copies of
    point j the rank of point i is Σ_j w_j [x_j < x_i] + (Σ_j w_j [x_j = x_i] + 1) / 2.
    """
    names, groups = np.unique(authors, return_inverse=True)
    if len(names) == 1:
        groups = np.arange(len(authors))
    count = int(groups.max()) + 1
    copies = random.multinomial(count, np.full(count, 1 / count), size=draws)[:, groups]
    each = left.shape[1]
    weights = np.concatenate([np.ones((1, left.size)), np.repeat(copies, each, axis=1)]).astype(float)
    ranks = [_ranks(one.ravel(), weights) for one in (left, right)]
    total = weights.sum(axis=1, keepdims=True)
    centred = [one - (weights * one).sum(axis=1, keepdims=True) / total for one in ranks]
    products = (weights * centred[0] * centred[1]).sum(axis=1)
    sizes = np.sqrt(np.prod([(weights * one**2).sum(axis=1) for one in centred], axis=0))
    found = np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return float(found[0]), float(low), float(high)


def _ranks(values: Floats, weights: Floats) -> Floats:
    """(draws, n): mean ranks of ``values`` (n,) in each draw."""
    if len(values) > MOST_RANKED:
        from scipy.stats import rankdata

        return np.broadcast_to(rankdata(values), weights.shape)
    below = (values[:, None] < values[None, :]).astype(float)
    equal = (values[:, None] == values[None, :]).astype(float)
    found: Floats = weights @ below + (weights @ equal + 1) / 2
    return found
