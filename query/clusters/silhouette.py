"""Silhouettes (Rousseeuw, 1987) of groups of unit vectors, also with shuffled labels.

The distance is 1 - cosine, which for unit vectors is half the squared Euclidean distance. The mean distance of a model
to a group then needs only the sum of the group's vectors: n × groups numbers instead of an n × n table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from query.statistics.neighbours import Integers

Floats = npt.NDArray[np.float64]

_WORK = 2_000_000  # similarities summed in one draw; with more models, a draw uses a sample of them
_BLOCK = 4_000_000  # similarities of models and groups in memory at a time
_LEAST = 1e-12  # smaller distances are zero


def silhouettes(points: Floats, groups: Integers) -> Floats:
    """(n,): (b - a) / max(a, b) for every model; 0 for a model alone in its group.

    a: mean distance to the others of its group; b: to the nearest other group. ``points`` (n, d): unit vectors;
    ``groups`` (n,): codes from 0 of at least two groups.
    """
    result = np.empty(len(points))
    sizes = np.bincount(groups)
    sums = _membership(groups) @ points
    step = max(1, _BLOCK // len(sizes))
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        result[part] = _heights(sums @ points[part].T, groups[part], sizes)
    return result


def shuffled_silhouettes(points: Floats, groups: Integers, draws: int, rng: np.random.Generator) -> Iterator[float]:
    """The mean silhouette of the observed groups, then of ``draws`` random permutations of them.

    If n² is above two million, the mean is over a random sample of models, the same in every draw, compared with the
    groups of all models: the test stays exact, and 1,000 draws take some seconds at n = 10,000.
    """
    count = len(points)
    scored = np.sort(rng.permutation(count)[: max(1, min(count, _WORK // count))])
    similarity = points @ points[scored].T
    sizes = np.bincount(groups)
    for draw in range(draws + 1):
        dealt = rng.permutation(groups) if draw else groups
        yield float(_heights(_membership(dealt) @ similarity, dealt[scored], sizes).mean())


def _heights(sums: Floats, own: Integers, sizes: Integers) -> Floats:
    """Silhouettes of models, given ``sums`` (groups, models): their summed similarities with each group."""
    everyone = np.arange(len(own))
    within = 1 - (sums[own, everyone] - 1) / np.maximum(sizes[own] - 1, 1)
    means = sums / sizes[:, None]
    means[own, everyone] = -np.inf
    between = 1 - means.max(axis=0)
    larger = np.maximum(within, between)
    heights = np.where(larger > _LEAST, (between - within) / np.maximum(larger, _LEAST), 0.0)
    return np.where(sizes[own] > 1, heights, 0.0)


def _membership(groups: Integers) -> npt.NDArray[np.float64]:
    """(groups, n), sparse: 1 if a model belongs to a group."""
    from scipy.sparse import csr_array

    count = len(groups)
    return csr_array((np.ones(count), (groups, np.arange(count))), shape=(int(groups.max()) + 1, count))
