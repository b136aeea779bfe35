"""How far clusters agree with labels (datasets, authors), beside what chance gives.

Partitions in, numbers out: no vectors but for silhouettes, no atlas. An outlier is a cluster of its own: not to
place a model is an answer too, and a method that leaves half of the models out must not look better for it. What
the placed models say alone stands beside it (``clustered``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from query.clusters.silhouette import Floats, shuffled_silhouettes, silhouettes
from query.statistics.author_runs import AuthorRuns
from query.statistics.neighbours import Integers, codes_of

MEASURES = ("ari", "ami", "homogeneity", "completeness")
FEW_WAYS = 20  # moves of sweeps, below which p cannot be small
_TIE = 1e-12  # two values that differ by less are the same sum in another order


@dataclass(frozen=True)
class Agreement:
    """One number of a report on clusters, and its chance level.

    ``labels``: what the clusters are compared with (``datasets``, ``authors``), or whose silhouette it is
    (``clusters`` too). ``measure``: ``ari``, ``ami``, ``homogeneity``, ``completeness`` or ``silhouette``.
    ``among``: ``all`` models with a label, each outlier a cluster of its own; only the ``clustered`` ones;
    ``cross_author`` (``cross_dataset``): pairs of models by different authors (on different datasets) alone.
    ``chance``: the mean over permutations, and ``p_value`` (1 + #≥)/(1 + draws). ``against``: what was permuted,
    ``labels`` freely or whole ``sweeps``; or ``cloud``, where the comparison is with the clusters of structureless
    clouds. Undefined numbers are None. ``models``: how many took part.
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
    """ARI and AMI among all models with a name, and all four measures among those in a cluster.

    ``clusters`` (n,): -1 for an outlier. ARI: Hubert & Arabie (1985); AMI: Vinh, Epps & Bailey (2010), with the
    arithmetic mean; homogeneity and completeness: Rosenberg & Hirschberg (2007), of which the first says how
    far a cluster holds one label only, the second how far a label is in one cluster only. Both rise with the
    number of clusters whatever these are: read them beside their chance. The names are permuted freely among
    the models; but models of one author on one dataset are hardly independent, hence ``compared_across``.
    """
    rows = []
    named = np.array([name is not None for name in names], dtype=bool)
    for among, measures in (("all", ("ari", "ami")), ("clustered", MEASURES)):
        part = np.flatnonzero(named if among == "all" else named & (clusters >= 0))
        codes = codes_of([names[row] for row in part.tolist()])
        numbers = _four_measures(clusters[part], codes, draws, rng)
        for measure in measures:
            rows.append(_row(labels, measure, among, numbers.get(measure), len(part), "labels"))
    return rows


def _four_measures(clusters: Integers, labels: Integers, draws: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Each measure as observed, then of every permutation, (1 + draws,); none where one side says nothing.

    A permutation leaves the sizes alone, and so everything but Σ n(n - 1)/2 and Σ n ln n over the cells of the
    contingency table. The cells of an outlier hold one model and add nothing to either.
    """
    from sklearn.metrics.cluster import expected_mutual_information

    count = len(labels)
    separate = _outliers_apart(clusters)
    if not (_says_something(separate) and _says_something(labels)):
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
    information = np.maximum(information, 0.0)  # against rounding, as the last line is
    cells = _table(separate, labels)
    expected = float(expected_mutual_information(cells, count))
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
) -> tuple[Agreement, int]:
    """ARI counted over pairs of different groups alone, and how many moves its permutations choose from.

    With authors as ``groups`` and datasets as ``names``: of two models by different authors, are those in one
    cluster those on one dataset? One uploader's sweep, however large and alike, adds no pair. With the roles
    exchanged: does an author's hand show where the dataset is another? With N pairs of different groups, P of
    them in one cluster, Q of one name and A both, the value is (A - PQ/N) / ((P + Q)/2 - PQ/N), which over all
    pairs is the ARI. Its mean under chance need not be zero. Permuted are whole sweeps (``AuthorRuns.permuted``).
    """
    part = np.array([i for i, pair in enumerate(zip(names, groups, strict=True)) if None not in pair], dtype=np.intp)
    separate = _outliers_apart(clusters[part])
    codes, group = codes_of([names[row] for row in part.tolist()]), codes_of([groups[row] for row in part.tolist()])
    everything = len(part) * (len(part) - 1) / 2 - _pairs(group)
    together = _pairs(separate) - _pairs(separate, group)
    if not (_says_something(separate) and codes.max() and _pairs(codes) - _pairs(codes, group)):
        return _row(labels, "ari", among, None, len(part), "sweeps"), 0
    sweeps = AuthorRuns(group, codes.tolist())
    carried = codes[sweeps.first]
    values = np.empty(1 + draws)
    for draw in range(1 + draws):
        dealt = (sweeps.permuted(carried, rng) if draw else carried)[sweeps.of_model]
        alike = _pairs(dealt) - _pairs(dealt, group)
        both = _pairs(separate, dealt) - _pairs(separate, dealt, group)
        by_chance = together * alike / everything
        room = (together + alike) / 2 - by_chance
        values[draw] = (both - by_chance) / room if room > _TIE else 0.0
    return _row(labels, "ari", among, values, len(part), "sweeps"), sweeps.ways


def silhouette_of(
    labels: str, points: Floats, names: Sequence[object], draws: int, rng: np.random.Generator
) -> Agreement:
    """The mean silhouette of named groups of at least two; None for a model without a name.

    Groups of one have no cohesion to measure, and among thousands of them some one is always near. A small p
    says nothing of clusters, which were drawn around these very vectors: that is what ``cloud`` is for.
    """
    sizes: dict[object, int] = {}
    for name in names:
        sizes[name] = sizes.get(name, 0) + 1
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


def p_value(observed: float, drawn: npt.NDArray[np.float64]) -> float:
    """(1 + #≥)/(1 + draws): never zero, for the data as they are are one of the permutations."""
    return float((1 + (drawn >= observed - _TIE).sum()) / (1 + len(drawn)))


def _row(labels: str, measure: str, among: str, values: Floats | None, models: int, against: str) -> Agreement:
    if values is None:
        return Agreement(labels, measure, among, None, None, None, models, against)
    observed, drawn = float(values[0]), values[1:]
    return Agreement(labels, measure, among, observed, float(drawn.mean()), p_value(observed, drawn), models, against)


def _outliers_apart(clusters: Integers) -> Integers:
    """Codes with a cluster of its own for every outlier."""
    return codes_of([f"outlier {row}" if code < 0 else int(code) for row, code in enumerate(clusters)])


def _says_something(codes: Integers) -> bool:
    """Whether some models are kept together and some apart."""
    groups = len(np.unique(codes))
    return 1 < groups < len(codes)


def _pairs(*codes: Integers) -> float:
    """Pairs of models that are together in all of these partitions."""
    key = np.zeros(len(codes[0]), dtype=np.int64)
    for one in codes:
        key = key * (int(one.max(initial=0)) + 1) + one
    counts = np.unique(key, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / 2)


def _entropy(codes: Integers) -> float:
    """In nats."""
    shares = np.bincount(codes) / len(codes)
    return float(-(shares * np.log(shares)).sum())


def _table(left: Integers, right: Integers) -> npt.NDArray[np.int64]:
    """(groups of left, groups of right), sparse: how many models are of both."""
    from scipy.sparse import coo_array

    return coo_array((np.ones(len(left), dtype=np.int64), (left, right))).tocsr()
