"""Which few models together may have made one, by their stored factors: what a merge's parents are looked for with.

One after another the parents of a merge are hard to tell from their relatives, which explain nearly as much; together
they leave less than any others do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from query.lineage.candidates import Candidate, FactorStore
from query.lineage.thresholds import Limits

Floats = NDArray[np.float64]

# Of the candidates those that fit best alone or fit what is left, and of the groups of each size those kept to grow.
MOST_LIKELY = 24
MOST_KEPT = 64


def best_group(
    store: FactorStore,
    candidates: Sequence[Candidate],
    deltas: Mapping[str, NDArray[np.float32]],
    left: Mapping[str, NDArray[np.float32]],
    limits: Limits,
) -> tuple[list[Candidate], float]:
    """The group of up to ``limits.most_parents`` whose weighted sum leaves least of ``deltas``, and that share.

    ``left``: what those that were read do not account for. One recipe for all matrices, no weight outside of what a
    parent may have. Grown one by one, the best few of each size kept.
    """
    likely: dict[int, Candidate] = {}
    for rest in (deltas, left):
        _, fitted = store.fit(candidates, rest)
        likely |= {int(place): candidates[place] for place in np.argsort(-fitted, kind="stable")[:MOST_LIKELY]}
    chosen = list(likely.values())
    gram, right, total = store.products(chosen, deltas)
    least = 1.0
    best: tuple[int, ...] = ()
    kept: list[tuple[int, ...]] = [()]
    for _ in range(min(limits.most_parents, len(chosen))):
        larger = [(*group, one) for group in kept for one in range(len(chosen)) if one not in group]
        grown = sorted({tuple(sorted(group)) for group in larger})
        members = np.array(grown)
        weights, shares = _solved(gram, right, total, members)
        is_fit = ((weights >= limits.least_weight) & (weights <= limits.most_weight)).all(axis=1)
        shares = np.where(is_fit, shares, np.inf)
        order = np.argsort(shares, kind="stable")[:MOST_KEPT]
        kept = [grown[place] for place in order if np.isfinite(shares[place])]
        if not kept:
            break
        if shares[order[0]] < least:
            best, least = kept[0], float(shares[order[0]])
    return [chosen[member] for member in best], least


def _solved(gram: Floats, right: Floats, total: float, members: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Least squares of each group (groups, size): its weights, and the share that it leaves."""
    inner = gram[members[:, :, None], members[:, None, :]]
    scale = np.sqrt(np.maximum(np.diagonal(inner, axis1=1, axis2=2), 1e-300))
    # A little on the diagonal: two copies of one model make no singular matrix, and share the weight.
    inner = inner / (scale[:, :, None] * scale[:, None, :]) + 1e-9 * np.eye(members.shape[1])
    sought = right[members] / scale
    found = np.linalg.solve(inner, sought[:, :, None])[:, :, 0]
    return found / scale, 1 - (found * sought).sum(axis=1) / total
