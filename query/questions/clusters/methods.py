"""Two ways to cluster unit vectors, by density (HDBSCAN) and by centres (spherical k-means), and silhouettes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from indexer.console.messages import say
from query.shared.statistics.neighbours import Integers, codes_of

Floats = npt.NDArray[np.float64]

OUTLIER = -1
_SMALLEST = 3  # models in a cluster of the default size
_EQUAL = 1e-9  # unit vectors whose cosine is this close to 1 are equal
_MANY = 1_000  # with more models, k-means makes fewer starts
_STARTS, _STARTS_OF_MANY = 10, 3
_MOST_ROUNDS = 100
_MOST_CENTRES = 100  # largest number of clusters that k-means tries
_WORK = 2_000_000  # similarities summed in one draw; with more models, a draw uses a sample of them
_BLOCK = 4_000_000  # similarities of models and groups in memory at a time
_LEAST = 1e-12  # smaller distances are zero


def coordinates(vectors: npt.NDArray[np.float32]) -> Floats:
    """(n, min(n, d)): the vectors in double precision, with unit norm, rotated into as few dimensions as possible.

    n vectors span at most n dimensions: the triangular factor of a QR decomposition of their transpose has the same
    inner products up to rounding, and only n × n numbers.
    """
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    if not 0 < len(exact) < exact.shape[1]:
        return exact
    triangle: Floats = np.asarray(np.linalg.qr(exact.T, mode="r"))
    return triangle.T


def default_size(models: int) -> int:
    """HDBSCAN's smallest cluster: half the cube root of the number of models, but at least three.

    That is 3 up to 340 models, 5 at 1,000 and 11 at 10,000. Of the sizes 2 to 15, three found planted clusters
    of 20 to 200 models best (with clusters of Zipf's sizes, of one size, with related clusters, with adapters); at
    1,000 three to five did equally well, and for 10,000 the table of clusters should stay readable.
    """
    return max(_SMALLEST, round(math.cbrt(models) / 2))


def by_density(points: Floats, min_size: int) -> tuple[Integers, Floats]:
    """Clusters of at least ``min_size`` (≥ 2) models, -1 for an outlier, and each model's strength (0 to 1).

    HDBSCAN (Campello, Moulavi & Sander, 2013) on Euclidean distances, which between unit vectors rise with the angle.
    Its settings were chosen by agreement with planted clusters (20 to 10,000 models) and with the datasets of the demo
    family (all models, and 40 subsamples, in six representations):

    - Density is estimated from the neighbour number ``min_size`` - 1 (the model itself is the first): one less than
      usual, because most datasets of an atlas have few models. On the demo, agreement (ARI) was .73 instead of .67 in
      ``input`` and .80 instead of .70 in ``delta``; on 20 to 1,000 planted models, between .05 worse and .04 better.
    - Clusters are selected by excess of mass. Selecting leaves of the tree agrees equally well for small clusters, but
      splits one uploader's long sweep (planted: ARI .04 instead of 1.0). The drawback: if the vectors first fall into
      two distant halves (``spectrum``: adapters and the rest), these two are the answer.
    - ``brute``: with more than some tens of dimensions, trees do not help. 10,000 × 4104 take 30 s on one core, and
      2,000 × 4104 take 1.6 s instead of 73 with the default k-d tree. Memory: 16 n² bytes (1.6 GB at 10,000).

    HDBSCAN never finds a single cluster, because it needs a drop of density between two. Vectors that are all equal
    are returned as one cluster.
    """
    from sklearn.cluster import HDBSCAN

    if len(points) < min_size:
        return np.full(len(points), OUTLIER, dtype=np.intp), np.zeros(len(points))
    if (points @ points[0]).min() > 1 - _EQUAL:
        return np.zeros(len(points), dtype=np.intp), np.ones(len(points))
    clustering = HDBSCAN(
        min_cluster_size=min_size,
        min_samples=max(1, min_size - 1),
        algorithm="brute",
        cluster_selection_method="eom",
        copy=True,
    ).fit(points)
    return clustering.labels_.astype(np.intp), np.asarray(clustering.probabilities_, dtype=np.float64)


def by_centres(points: Floats, count: int, seed: int) -> tuple[Integers, Floats]:
    """At most ``count`` clusters without outliers, and the cosine of each model with its cluster's centre.

    Spherical k-means (Dhillon & Modha, 2001): centres are unit vectors, and the sum of all cosines is maximised; the
    best of several k-means++ starts (ten; three with more than 1,000 models). On the demo it agrees better with the
    datasets than ordinary k-means (ARI .86 instead of .80 at their true number). If fewer vectors are distinct, there
    are fewer clusters.
    """
    from sklearn.cluster import kmeans_plusplus

    best, highest = (np.zeros(len(points), dtype=np.intp), np.ones(len(points))), -math.inf
    if count < 2:
        return best
    for start in range(_STARTS if len(points) <= _MANY else _STARTS_OF_MANY):
        state = int(np.random.SeedSequence([seed, count, start]).generate_state(1)[0])
        solution = _converged(points, kmeans_plusplus(points, count, random_state=state)[0])
        if solution[1].sum() > highest + _EQUAL:
            best, highest = solution, solution[1].sum()
    return codes_of(best[0].tolist()), best[1]


def _converged(points: Floats, centres: Floats) -> tuple[Integers, Floats]:
    """Alternate assignment and averaging until nothing changes; the centre of an empty cluster stays unchanged."""
    rows = np.arange(len(points))
    assigned = np.full(len(points), OUTLIER, dtype=np.intp)
    for _ in range(_MOST_ROUNDS):
        cosines = points @ centres.T
        nearest = cosines.argmax(axis=1)
        if np.array_equal(nearest, assigned):
            break
        assigned = nearest
        sums = _membership(assigned, len(centres)) @ points
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > _EQUAL, sums / np.maximum(lengths, _EQUAL), centres)
    return assigned, cosines[rows, assigned]


def tried_counts(models: int) -> list[int]:
    """Numbers of clusters to try, each about a fifth larger than the last, up to a third of the models or 100."""
    counts, last = [], 2
    while last <= min(models // 3, _MOST_CENTRES):
        counts.append(last)
        last = max(last + 1, round(last * 1.2))
    return counts or [min(2, models)]


def by_best_centres(points: Floats, seed: int) -> tuple[Integers, Floats]:
    """Spherical k-means with the number of clusters that has the highest mean silhouette (Rousseeuw, 1987).

    Datasets play no part in choosing the number, because agreement with them is measured afterwards.
    """
    if len(points) > _MANY:
        say(f"k-means: trying numbers of clusters up to {_MOST_CENTRES} for {len(points):,} models, some minutes")
    best, highest = by_centres(points, 1, seed), -math.inf
    for count in tried_counts(len(points)):
        solution = by_centres(points, count, seed)
        height = float(silhouettes(points, solution[0]).mean()) if solution[0].max(initial=0) else -1.0
        if height > highest:
            best, highest = solution, height
    return best


# ---- silhouettes (Rousseeuw, 1987)
#
# The distance is 1 - cosine, which for unit vectors is half the squared Euclidean distance. The mean distance of a
# model to a group then needs only the sum of the group's vectors: n × groups numbers instead of an n × n table.


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
        tile = slice(start, start + step)
        result[tile] = _heights(sums @ points[tile].T, groups[tile], sizes)
    return result


def shuffled_silhouettes(
    points: Floats,
    groups: Integers,
    draws: int,
    rng: np.random.Generator,
    permuted: Callable[[], Integers] | None = None,
) -> Iterator[float]:
    """The mean silhouette of the observed groups, then of ``draws`` permutations: ``permuted()``, by default random.

    If n² is above two million, the mean is over a random sample of models, the same in every draw, compared with the
    groups of all models: the test stays exact, and 1,000 draws take some seconds at n = 10,000.
    """
    count = len(points)
    sampled = np.sort(rng.permutation(count)[: max(1, min(count, _WORK // count))])
    similarity = points @ points[sampled].T
    permuted = permuted or (lambda: rng.permutation(groups))
    for draw in range(draws + 1):
        labels = permuted() if draw else groups
        yield float(_heights(_membership(labels) @ similarity, labels[sampled], np.bincount(labels)).mean())


def _heights(sums: Floats, groups: Integers, sizes: Integers) -> Floats:
    """Silhouettes of models, given ``sums`` (groups, models): their summed similarities with each group."""
    columns = np.arange(len(groups))
    within = 1 - (sums[groups, columns] - 1) / np.maximum(sizes[groups] - 1, 1)
    means = sums / sizes[:, None]
    means[groups, columns] = -np.inf
    between = 1 - means.max(axis=0)
    larger = np.maximum(within, between)
    heights = np.where(larger > _LEAST, (between - within) / np.maximum(larger, _LEAST), 0.0)
    return np.where(sizes[groups] > 1, heights, 0.0)


def _membership(groups: Integers, count: int | None = None) -> npt.NDArray[np.float64]:
    """(``count``, n), sparse: 1 if a model belongs to a group; by default as many groups as there are."""
    from scipy.sparse import csr_array

    # Row by row, as the array stores it: made of coordinates it takes four times as long, a thousand times for a test.
    sizes = np.bincount(groups, minlength=count or 0)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    return csr_array((np.ones(len(groups)), np.argsort(groups, kind="stable"), starts), shape=(len(sizes), len(groups)))
