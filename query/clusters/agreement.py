"""How well clusters agree with labels (datasets, authors), each measure with its chance level.

Each outlier counts as a cluster of its own, so that a method does not look better by leaving models out. The same
measures among clustered models only are reported as ``clustered``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from query.clusters.methods import Floats, shuffled_silhouettes, silhouettes
from query.statistics.authors import AuthorRuns
from query.statistics.neighbours import Integers, codes_of

MEASURES = ("ari", "ami", "homogeneity", "completeness")
FEW_WAYS = 20  # permutations of sweeps below which p cannot be small
_MOST_CLOUDS, _LEAST_CLOUDS = 99, 19  # depending on the time they take; 19 are enough for a p of 0.05
_CLOUD_WORK = 4_000_000  # distances to compute for all clouds together
MOST_MODELS = 1_500  # with more models, 19 clouds take minutes
_TIE = 1e-12  # smaller differences come from summing in another order


@dataclass(frozen=True)
class Agreement:
    """One measure and its chance level; undefined numbers are None.

    ``labels``: what is compared with the clusters (``datasets``, ``authors``, ``tasks``), or the groups whose
    silhouette it is (also ``clusters``).
    ``measure``: ``ari``, ``ami``, ``homogeneity``, ``completeness`` or ``silhouette``.
    ``among``: ``all`` models with a label, each outlier being a cluster of its own; only ``clustered`` models; only
    pairs of models by different authors (``cross_author``), on different datasets (``cross_dataset``) or on one dataset
    (``within_dataset``).
    ``chance``: the mean over permutations; ``p_value``: (1 + #≥)/(1 + draws). ``against``: what was permuted,
    ``labels`` freely or whole ``sweeps``; or ``cloud``: comparison with clusters of structureless clouds.
    ``models``: how many took part.
    """

    labels: str
    measure: str
    among: str
    value: float | None
    chance: float | None
    p_value: float | None
    models: int
    against: str


def compared(
    labels: str, clusters: Integers, names: Sequence[str | None], draws: int, rng: np.random.Generator
) -> list[Agreement]:
    """ARI and AMI among all named models, and all four measures among named models in a cluster.

    ``clusters`` (n,): -1 for an outlier. ARI: Hubert & Arabie (1985). AMI: Vinh, Epps & Bailey (2010), with the
    arithmetic mean. Homogeneity (each cluster holds one label) and completeness (each label is in one cluster):
    Rosenberg & Hirschberg (2007); both rise with the number of clusters, so compare them with their chance level.
    The names are permuted freely among the models. Models of one author on one dataset are not independent;
    ``compared_across`` takes that into account.
    """
    rows = []
    named = np.array([name is not None for name in names], dtype=bool)
    for among, measures in (("all", ("ari", "ami")), ("clustered", MEASURES)):
        part = np.flatnonzero(named if among == "all" else named & (clusters >= 0))
        codes = codes_of([names[row] for row in part.tolist()])
        numbers = _four_measures(clusters[part], codes, draws, rng)
        rows += [_row(labels, measure, among, numbers.get(measure), len(part), "labels") for measure in measures]
    return rows


def _four_measures(clusters: Integers, labels: Integers, draws: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Each measure as observed, then for every permutation, (1 + draws,); empty if either partition is trivial.

    A permutation keeps all sizes, so it changes only Σ n(n - 1)/2 and Σ n ln n over the cells of the contingency
    table. The cells of an outlier hold one model and contribute to neither.
    """
    from scipy.sparse import coo_array
    from sklearn.metrics.cluster import expected_mutual_information

    count = len(labels)
    separate = _outliers_apart(clusters)
    if not (_is_informative(separate) and _is_informative(labels)):
        return {}
    kinds = int(labels.max()) + 1
    inside = np.flatnonzero(clusters >= 0)
    start = codes_of(clusters[inside].tolist()) * kinds
    pairs, information = np.empty(1 + draws), np.empty(1 + draws)
    for draw in range(1 + draws):
        dealt = rng.permutation(labels) if draw else labels
        cells = np.bincount(start + dealt[inside])
        cells = cells[cells > 1].astype(np.float64)
        pairs[draw] = (cells * (cells - 1)).sum() / 2
        information[draw] = (cells * np.log(cells)).sum()
    entropy_of_clusters, entropy_of_labels = _entropy(separate), _entropy(labels)
    information = information / count - np.log(count) + entropy_of_clusters + entropy_of_labels
    information = np.maximum(information, 0.0)  # rounding can make it negative, and a value above 1
    contingency = coo_array((np.ones(count, dtype=np.int64), (separate, labels))).tocsr()
    expected = float(expected_mutual_information(contingency, count))
    of_clusters, of_labels = _pairs(separate), _pairs(labels)
    by_chance = of_clusters * of_labels / (count * (count - 1) / 2)
    values = {
        "ari": (pairs - by_chance) / ((of_clusters + of_labels) / 2 - by_chance),
        "ami": (information - expected) / ((entropy_of_clusters + entropy_of_labels) / 2 - expected),
        "homogeneity": information / entropy_of_labels,
        "completeness": information / entropy_of_clusters,
    }
    return {measure: np.minimum(value, 1.0) for measure, value in values.items()}


def compared_across(
    labels: str,
    among: str,
    clusters: Integers,
    names: Sequence[str | None],
    groups: Sequence[str | None],
    draws: int,
    rng: np.random.Generator,
    authors: Sequence[str] | None = None,
) -> tuple[Agreement, int]:
    """ARI over pairs of models from different ``groups``, and the number of different permutations.

    With authors as ``groups`` and datasets as ``names``: among pairs of models by different authors, do those in one
    cluster share a dataset? A sweep of one uploader adds no pair, however large it is. With the roles exchanged: do
    models of one author lie together even if their datasets differ? With N pairs from different groups, P of them in
    one cluster, Q with one name and A with both, the value is (A - PQ/N) / ((P + Q)/2 - PQ/N), which over all pairs is
    the ARI. Its mean under chance need not be zero. Whole sweeps are permuted (``AuthorRuns.permuted``).

    With ``authors`` over pairs of models from *one* group instead. With tasks as ``names`` and datasets as ``groups``:
    among pairs of models on one dataset, do those in one cluster share a task? Names are permuted within groups, those
    of an author's sweeps in one group together.
    """
    part = np.array([i for i, pair in enumerate(zip(names, groups, strict=True)) if None not in pair], dtype=np.intp)
    separate = _outliers_apart(clusters[part])
    codes, group = codes_of([names[row] for row in part.tolist()]), codes_of([groups[row] for row in part.tolist()])

    def pairs(*partitions: Integers) -> float:
        """Pairs of models that are together in all ``partitions``, from different groups (or from one)."""
        inside = _pairs(*partitions, group)
        return _pairs(*partitions) - inside if authors is None else inside

    everyone = np.zeros(len(part), dtype=np.intp)
    everything, together = pairs(everyone), pairs(separate)
    has_pairs = pairs(codes) > 0 and (authors is None or pairs(codes) < everything)
    if not (_is_informative(separate) and codes.max(initial=0) and has_pairs):
        return _row(labels, "ari", among, None, len(part), "sweeps"), 0
    if authors is None:
        sweeps = AuthorRuns(group, codes.tolist())
    else:
        units = codes_of([(authors[row], groups[row]) for row in part.tolist()])
        sweeps = AuthorRuns(units, codes.tolist(), group)
    carried = codes[sweeps.first]
    values = np.empty(1 + draws)
    for draw in range(1 + draws):
        dealt = (sweeps.permuted(carried, rng) if draw else carried)[sweeps.of_model]
        alike, both = pairs(dealt), pairs(separate, dealt)
        by_chance = together * alike / everything
        room = (together + alike) / 2 - by_chance
        values[draw] = (both - by_chance) / room if room > _TIE else 0.0
    return _row(labels, "ari", among, values, len(part), "sweeps"), sweeps.ways


def silhouette_of(
    labels: str, points: Floats, names: Sequence[object], draws: int, rng: np.random.Generator
) -> Agreement:
    """The mean silhouette of the named groups with at least two models; a name may be None.

    Groups of one have no cohesion to measure, and among thousands of them one is always near. There is no p for
    ``clusters``, because they were fitted to these vectors; ``against_clouds`` compares them instead.
    """
    sizes = Counter(names)
    part = np.array([i for i, name in enumerate(names) if name is not None and sizes[name] > 1], dtype=np.intp)
    groups = codes_of([names[row] for row in part.tolist()])
    among = "clustered" if labels == "clusters" else "all"
    if len(part) == 0 or groups.max() == 0:
        return _row(labels, "silhouette", among, None, len(part), "labels")
    observed = float(silhouettes(points[part], groups).mean())
    values = np.fromiter(shuffled_silhouettes(points[part], groups, draws, rng), dtype=np.float64)
    row = _row(labels, "silhouette", among, values, len(part), "labels")
    p_value = None if labels == "clusters" else row.p_value
    return Agreement(labels, "silhouette", among, observed, row.chance, p_value, len(part), "labels")


def against_clouds(
    points: Floats, clusters: Integers, method: Callable[[Floats], Integers], draws: int, rng: np.random.Generator
) -> Agreement | None:
    """The mean silhouette of the clusters, compared with clusters found by ``method`` in structureless clouds.

    A cloud is a sample of as many vectors from the normal distribution with their mean and covariance, scaled to unit
    norm. A cloud without clusters counts as 0. This is the test of Liu, Hayes, Nobel & Marron (2008, SigClust), applied
    to the silhouette. None for more than 1,500 models or fewer than two clusters. At most ``draws`` clouds are drawn.
    """

    def height(points: Floats, clusters: Integers) -> float:
        placed = clusters >= 0
        is_divided = clusters.max(initial=-1) >= 1
        return float(silhouettes(points[placed], clusters[placed]).mean()) if is_divided else 0.0

    if len(points) > MOST_MODELS or clusters.max(initial=-1) < 1:
        return None
    observed = height(points, clusters)
    draws = min(draws, max(_LEAST_CLOUDS, min(_MOST_CLOUDS, _CLOUD_WORK // len(points) ** 2)))
    drawn = np.array([height(cloud, method(cloud)) for cloud in _clouds(points, draws, rng)])
    chance, p, models = float(drawn.mean()), p_value(observed, drawn), int((clusters >= 0).sum())
    return Agreement("clusters", "silhouette", "clustered", observed, chance, p, models, "cloud")


def _clouds(points: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Random combinations of the centred vectors have their covariance in any number of dimensions."""
    mean = points.mean(axis=0)
    centred = (points - mean) / np.sqrt(len(points) - 1)
    for _ in range(draws):
        cloud = mean + rng.standard_normal((len(points), len(points))) @ centred
        yield cloud / np.linalg.norm(cloud, axis=1, keepdims=True)


def p_value(observed: float, drawn: npt.NDArray[np.float64]) -> float:
    """(1 + #≥)/(1 + draws); never zero, because the observed order is one of the permutations."""
    return float((1 + (drawn >= observed - _TIE).sum()) / (1 + len(drawn)))


def _row(labels: str, measure: str, among: str, values: Floats | None, models: int, against: str) -> Agreement:
    if values is None:
        return Agreement(labels, measure, among, None, None, None, models, against)
    observed, drawn = float(values[0]), values[1:]
    return Agreement(labels, measure, among, observed, float(drawn.mean()), p_value(observed, drawn), models, against)


def _outliers_apart(clusters: Integers) -> Integers:
    """Codes in which every outlier has a cluster of its own."""
    return codes_of([f"outlier {row}" if code < 0 else int(code) for row, code in enumerate(clusters)])


def _is_informative(codes: Integers) -> bool:
    """Whether the partition puts some models together and some apart."""
    groups = len(np.unique(codes))
    return 1 < groups < len(codes)


def _pairs(*codes: Integers) -> float:
    """Number of pairs of models that are together in all of these partitions."""
    key = np.zeros(len(codes[0]), dtype=np.int64)
    for one in codes:
        key = key * (int(one.max(initial=0)) + 1) + one
    counts = np.unique(key, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / 2)


def _entropy(codes: Integers) -> float:
    """In nats."""
    shares = np.bincount(codes) / len(codes)
    return float(-(shares * np.log(shares)).sum())
