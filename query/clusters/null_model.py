"""What a method makes of vectors without groups: the chance level of clusters that were drawn around the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from query.clusters.agreement import Agreement, p_value
from query.clusters.silhouette import Floats, silhouettes
from query.statistics.neighbours import Integers

Method = Callable[[Floats], Integers]

_MOST, _LEAST = 99, 19  # clouds to draw, as the time allows; nineteen can give a p of 0.05
_WORK = 4_000_000  # distances to look at in all
MOST_MODELS = 1_500  # beyond, nineteen clouds take minutes


def against_clouds(
    points: Floats, clusters: Integers, method: Method, draws: int, rng: np.random.Generator
) -> Agreement | None:
    """The mean silhouette of the clusters beside that of clusters found the same way in structureless clouds.

    A cloud: as many vectors from the normal distribution with the mean and the covariance of these, scaled to
    unit norm; one hump, in the same directions. A cloud in which no cluster is found counts as 0. This is the
    question of Liu, Hayes, Nobel & Marron (2008, SigClust) asked of the silhouette. None beyond 1,500 models,
    and where fewer than two clusters were found. At most ``draws`` clouds are drawn.
    """
    placed = clusters >= 0
    if len(points) > MOST_MODELS or clusters.max(initial=-1) < 1:
        return None
    observed = float(silhouettes(points[placed], clusters[placed]).mean())
    draws = min(draws, max(_LEAST, min(_MOST, _WORK // len(points) ** 2)))
    drawn = np.array([_height(cloud, method(cloud)) for cloud in _clouds(points, draws, rng)])
    return Agreement(
        "clusters", "silhouette", "clustered", observed, float(drawn.mean()), p_value(observed, drawn),
        int(placed.sum()), "cloud",
    )  # fmt: skip


def _clouds(points: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Random combinations of the centred vectors have their covariance, whatever the number of dimensions."""
    mean = points.mean(axis=0)
    centred = (points - mean) / np.sqrt(len(points) - 1)
    for _ in range(draws):
        cloud = mean + rng.standard_normal((len(points), len(points))) @ centred
        yield cloud / np.linalg.norm(cloud, axis=1, keepdims=True)


def _height(points: Floats, clusters: Integers) -> float:
    placed = clusters >= 0
    if clusters.max(initial=-1) < 1:
        return 0.0
    return float(silhouettes(points[placed], clusters[placed]).mean())
