"""How well clusters agree with labels (datasets, authors), each measure with its chance level.

Each outlier counts as a cluster of its own, so that a method does not look better by leaving models out. The same
measures among clustered models only are reported as ``clustered``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt

from query.contract.columns import CHANCE, CLUSTERED_MODELS, P_VALUE
from query.contract.results import Doc
from query.questions.clusters.methods import Floats, shuffled_silhouettes, silhouettes
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import Integers, codes_of

MEASURES = ("ari", "ami", "homogeneity", "completeness")
FEW_WAYS = 20  # permutations of sweeps below which p cannot be small
_MOST_CLOUDS, _LEAST_CLOUDS = 99, 19  # depending on the time they take; 19 are enough for a p of 0.05
_CLOUD_WORK = 4_000_000  # distances to compute for all clouds together
MOST_MODELS = 1_500  # with more models, 19 clouds take minutes
_TIE = 1e-12  # smaller differences come from summing in another order


@dataclass(frozen=True)
class Agreement:
    """One measure and its chance level; undefined numbers are None.

    Attributes:
        labels: the labels that are compared with the clusters (``datasets``, ``authors``, ``tasks``), or the groups
            whose silhouette it is (also ``clusters``).
        measure: ``ari``, ``ami``, ``homogeneity``, ``completeness`` or ``silhouette``.
        among: ``all`` models with a label, each outlier being a cluster of its own; only ``clustered`` models; only
            pairs of models by different authors (``cross_author``), on different datasets (``cross_dataset``) or on one
            dataset (``within_dataset``).
        chance: the mean over permutations.
        p_value: (1 + #≥)/(1 + draws). If sweeps are permuted, a sweep counts as one model for p: labels then keep their
            sizes, so p does not depend on which labels large sweeps have.
        against: the permuted units: whole ``sweeps``, or ``labels`` if every model is a decision of its own. Or
            ``cloud``: comparison with clusters of structureless clouds, which shows whether there are groups, not
            whether they are more than sweeps.
        models: how many models were compared.
    """

    labels: Annotated[str, Doc("What the clusters are compared with: datasets, authors or tasks.")]
    measure: Annotated[str, Doc("Name of the measure.")]
    among: Annotated[
        str,
        Doc(
            "Which models or pairs count: all with a label, those in a cluster, pairs across authors or datasets, "
            "or pairs on one dataset."
        ),
    ]
    value: Annotated[float | None, Doc("Value of the measure.")]
    chance: Annotated[float | None, CHANCE]
    p_value: Annotated[float | None, P_VALUE]
    models: Annotated[int, CLUSTERED_MODELS]
    against: Annotated[
        str,
        Doc(
            "What the value is compared with: shufflings of labels or of whole sweeps, or clouds of points "
            "without groups."
        ),
    ]


def compared(
    labels: str,
    clusters: Integers,
    names: Sequence[str | None],
    draws: int,
    rng: np.random.Generator,
    owners: Sequence[str | None] | None = None,
) -> list[Agreement]:
    """ARI and AMI among all named models, and all four measures among named models in a cluster.

    ARI: Hubert & Arabie (1985). AMI: Vinh, Epps & Bailey (2010), with the arithmetic mean. Homogeneity (each cluster
    has one label) and completeness (each label is in one cluster): Rosenberg & Hirschberg (2007); both rise with the
    number of clusters, so compare them with their chance level.

    ``clusters`` (n,): -1 for an outlier. ``owners`` (n,): a model's author, or its dataset if ``names`` are authors.
    Models of one owner with one name are one decision, so whole sweeps are permuted (``AuthorRuns.permuted``), and the
    chance level includes agreement that arises only because sweeps stay together. By default each model is a decision
    of its own.
    """
    rows = []
    is_named = np.array([name is not None for name in names], dtype=bool)
    for among, measures in (("all", ("ari", "ami")), ("clustered", MEASURES)):
        rows_compared = np.flatnonzero(is_named if among == "all" else is_named & (clusters >= 0))
        codes = codes_of([names[row] for row in rows_compared.tolist()])
        owner_codes = codes_of(
            rows_compared.tolist() if owners is None else [owners[row] for row in rows_compared.tolist()]
        )
        numbers = _four_measures(clusters[rows_compared], codes, owner_codes, draws, rng)
        against = "labels" if owners is None else "sweeps"
        for measure in measures:
            values, p = numbers.get(measure, (None, None))
            rows.append(replace(_row(labels, measure, among, values, len(rows_compared), against), p_value=p))
    return rows


def _four_measures(
    clusters: Integers, labels: Integers, owners: Integers, draws: int, rng: np.random.Generator
) -> dict[str, tuple[Floats, float]]:
    """Each measure as observed, then for every permutation, (1 + draws,), and p; empty if either partition is trivial.

    A permutation keeps the clusters. The cell of an outlier contains one model, so it adds nothing to Σ n(n - 1)/2 and
    Σ n ln n over the cells of the contingency table.
    """
    count = len(labels)
    separate = _outliers_apart(clusters)
    if not (_is_informative(separate) and _is_informative(labels)):
        return {}
    kinds = int(labels.max()) + 1
    clustered = np.flatnonzero(clusters >= 0)
    start = codes_of(clusters[clustered].tolist()) * kinds
    runs = AuthorRuns(owners, labels.tolist())
    sweep_labels, weight = labels[runs.first], 1 / runs.sizes[runs.of_model[clustered]]
    expected = _ExpectedInformation(np.bincount(separate))
    pairs, label_pairs, information, expected_information, entropies, sweep_pairs, sweep_information = np.empty(
        (7, 1 + draws)
    )
    for draw in range(1 + draws):
        drawn_labels = (runs.permuted(sweep_labels, rng) if draw else sweep_labels)[runs.of_model]
        cells: Floats = np.bincount(start + drawn_labels[clustered]).astype(np.float64)
        pairs[draw], information[draw] = (cells * (cells - 1)).sum() / 2, _sum_n_ln_n(cells)
        sizes = np.bincount(drawn_labels)
        label_pairs[draw], entropies[draw] = (sizes * (sizes - 1)).sum() / 2, _entropy_of(sizes)
        expected_information[draw] = expected.with_labels(sizes)
        # The same if every sweep counts as one model. Then a permutation keeps the sizes of labels as well as those of
        # clusters, and every measure rises with one of these sums.
        cells = np.bincount(start + drawn_labels[clustered], weights=weight).astype(np.float64)
        sweep_pairs[draw], sweep_information[draw] = (cells * cells).sum(), _sum_n_ln_n(cells)
    entropy_of_clusters = _entropy(separate)
    information = information / count - np.log(count) + entropy_of_clusters + entropies
    information = np.maximum(information, 0.0)  # rounding can make it negative, and a value above 1
    cluster_pairs = _pairs(separate)
    expected_pairs = cluster_pairs * label_pairs / (count * (count - 1) / 2)
    values = {
        "ari": (pairs - expected_pairs) / ((cluster_pairs + label_pairs) / 2 - expected_pairs),
        "ami": (information - expected_information) / ((entropy_of_clusters + entropies) / 2 - expected_information),
        "homogeneity": information / entropies,
        "completeness": information / entropy_of_clusters,
    }
    p_of_pairs, p_of_information = (p_value(sums[0], sums[1:]) for sums in (sweep_pairs, sweep_information))
    return {
        measure: (np.minimum(value, 1.0), p_of_pairs if measure == "ari" else p_of_information)
        for measure, value in values.items()
    }


class _ExpectedInformation:
    """The mutual information of two partitions, expected over all n! permutations, if one has clusters of ``sizes``.

    A sum over pairs of a cluster and a label (Vinh, Epps & Bailey, 2010, formula 24). A label's part of the sum depends
    only on its size, and is cached, because many permutations of sweeps have labels of the same size.
    """

    def __init__(self, sizes: Integers) -> None:
        self.count = int(sizes.sum())
        self.sizes, self.counts = np.unique(sizes, return_counts=True)
        self._by_size: dict[int, float] = {}

    def with_labels(self, sizes: Integers) -> float:
        """The expected information with labels of these sizes, in nats."""
        distinct_sizes, counts = np.unique(sizes, return_counts=True)
        return sum(
            number * self._part(size) for size, number in zip(distinct_sizes.tolist(), counts.tolist(), strict=True)
        )

    def _part(self, size: int) -> float:
        if size not in self._by_size:
            from scipy.special import gammaln

            n = self.count
            widths = np.minimum(self.sizes, size)
            cluster = np.repeat(self.sizes, widths)
            cell = np.arange(1, len(cluster) + 1) - np.repeat(np.cumsum(widths) - widths, widths)
            is_possible = cell >= cluster + size - n
            cluster, cell = cluster[is_possible], cell[is_possible]
            logs = gammaln([n - size + 1, size + 1, n + 1])
            probability = np.exp(
                gammaln(cluster + 1) + gammaln(n - cluster + 1) + logs[0] + logs[1] - logs[2]
                - gammaln(cell + 1) - gammaln(cluster - cell + 1) - gammaln(size - cell + 1)
                - gammaln(n - cluster - size + cell + 1)
            )  # fmt: skip
            counts = np.repeat(self.counts, widths)[is_possible]
            terms = cell / n * np.log(n * cell / (cluster * size)) * probability
            self._by_size[size] = float(counts @ terms)
        return self._by_size[size]


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
    rows_compared = np.array(
        [i for i, pair in enumerate(zip(names, groups, strict=True)) if None not in pair], dtype=np.intp
    )
    separate = _outliers_apart(clusters[rows_compared])
    codes, group = (
        codes_of([names[row] for row in rows_compared.tolist()]),
        codes_of([groups[row] for row in rows_compared.tolist()]),
    )

    def pairs(*partitions: Integers) -> float:
        """Pairs of models that are together in all ``partitions``, from different groups (or from one)."""
        pairs_within = _pairs(*partitions, group)
        return _pairs(*partitions) - pairs_within if authors is None else pairs_within

    one_group = np.zeros(len(rows_compared), dtype=np.intp)
    all_pairs, same_cluster = pairs(one_group), pairs(separate)
    has_pairs = pairs(codes) > 0 and (authors is None or pairs(codes) < all_pairs)
    if not (_is_informative(separate) and codes.max(initial=0) and has_pairs):
        return _row(labels, "ari", among, None, len(rows_compared), "sweeps"), 0
    if authors is None:
        sweeps = AuthorRuns(group, codes.tolist())
    else:
        units = codes_of([(authors[row], groups[row]) for row in rows_compared.tolist()])
        sweeps = AuthorRuns(units, codes.tolist(), group)
    sweep_labels = codes[sweeps.first]
    values = np.empty(1 + draws)
    for draw in range(1 + draws):
        drawn_labels = (sweeps.permuted(sweep_labels, rng) if draw else sweep_labels)[sweeps.of_model]
        same_name, both_same = pairs(drawn_labels), pairs(separate, drawn_labels)
        expected_pairs = same_cluster * same_name / all_pairs
        room = (same_cluster + same_name) / 2 - expected_pairs
        values[draw] = (both_same - expected_pairs) / room if room > _TIE else 0.0
    return _row(labels, "ari", among, values, len(rows_compared), "sweeps"), sweeps.ways


def silhouette_of(
    labels: str,
    points: Floats,
    names: Sequence[object],
    draws: int,
    rng: np.random.Generator,
    owners: Sequence[str | None] | None = None,
) -> Agreement:
    """The mean silhouette of the named groups with at least two models; a name may be None.

    Groups of one have no cohesion to measure, and among thousands of them one is always near. There is no p for
    ``clusters``, because they were fitted to these vectors; ``against_clouds`` compares them instead. ``owners``: as in
    ``compared``; p is that of the mean silhouette of the sweeps' mean vectors, each counting as one.
    """
    sizes = Counter(names)
    rows_compared = np.array([i for i, name in enumerate(names) if name is not None and sizes[name] > 1], dtype=np.intp)
    groups = codes_of([names[row] for row in rows_compared.tolist()])
    among, against = "clustered" if labels == "clusters" else "all", "labels" if owners is None else "sweeps"
    if len(rows_compared) == 0 or groups.max() == 0:
        return _row(labels, "silhouette", among, None, len(rows_compared), against)
    vectors = points[rows_compared]
    observed = float(silhouettes(vectors, groups).mean())
    owner_codes = codes_of(
        rows_compared.tolist() if owners is None else [owners[row] for row in rows_compared.tolist()]
    )
    runs = AuthorRuns(owner_codes, groups.tolist())
    sweep_labels = groups[runs.first]

    def permuted() -> Integers:
        return runs.permuted(sweep_labels, rng)

    values = np.fromiter(shuffled_silhouettes(vectors, groups, draws, rng, lambda: permuted()[runs.of_model]), float)
    row = _row(labels, "silhouette", among, values, len(rows_compared), against)
    p = row.p_value
    if labels == "clusters":
        p = None
    elif owners is not None:
        means = np.zeros((len(sweep_labels), vectors.shape[1]))
        np.add.at(means, runs.of_model, vectors)
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), _TIE)
        values_of_means = np.fromiter(shuffled_silhouettes(means, sweep_labels, draws, rng, permuted), float)
        p = p_value(values_of_means[0], values_of_means[1:])
    return replace(row, value=observed, p_value=p)


def against_clouds(
    points: Floats, clusters: Integers, method: Callable[[Floats], Integers], draws: int, rng: np.random.Generator
) -> Agreement | None:
    """The mean silhouette of the clusters, compared with clusters found by ``method`` in structureless clouds.

    A cloud is a sample of as many vectors from the normal distribution with their mean and covariance, scaled to unit
    norm. A cloud without clusters counts as 0. This is the test of Liu, Hayes, Nobel & Marron (2008, SigClust), applied
    to the silhouette. None for more than 1,500 models or fewer than two clusters. At most ``draws`` clouds are drawn.
    """

    def height(points: Floats, clusters: Integers) -> float:
        is_clustered = clusters >= 0
        is_divided = clusters.max(initial=-1) >= 1
        return float(silhouettes(points[is_clustered], clusters[is_clustered]).mean()) if is_divided else 0.0

    if len(points) > MOST_MODELS or clusters.max(initial=-1) < 1:
        return None
    observed = height(points, clusters)
    draws = min(draws, max(_LEAST_CLOUDS, min(_MOST_CLOUDS, _CLOUD_WORK // len(points) ** 2)))
    heights = np.array([height(cloud, method(cloud)) for cloud in _clouds(points, draws, rng)])
    chance, p, models = float(heights.mean()), p_value(observed, heights), int((clusters >= 0).sum())
    return Agreement("clusters", "silhouette", "clustered", observed, chance, p, models, "cloud")


def _clouds(points: Floats, draws: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Random combinations of the centred vectors have their covariance in any number of dimensions."""
    mean = points.mean(axis=0)
    centred = (points - mean) / np.sqrt(len(points) - 1)
    for _ in range(draws):
        cloud = mean + rng.standard_normal((len(points), len(points))) @ centred
        yield cloud / np.linalg.norm(cloud, axis=1, keepdims=True)


def p_value(observed: float, drawn_values: npt.NDArray[np.float64]) -> float:
    """(1 + #≥)/(1 + draws); never zero, because the observed order is one of the permutations."""
    return float((1 + (drawn_values >= observed - _TIE).sum()) / (1 + len(drawn_values)))


def _row(labels: str, measure: str, among: str, values: Floats | None, models: int, against: str) -> Agreement:
    if values is None:
        return Agreement(labels, measure, among, None, None, None, models, against)
    observed, drawn_values = float(values[0]), values[1:]
    return Agreement(
        labels, measure, among, observed, float(drawn_values.mean()), p_value(observed, drawn_values), models, against
    )


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
    for partition in codes:
        key = key * (int(partition.max(initial=0)) + 1) + partition
    counts = np.unique(key, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / 2)


def _entropy(codes: Integers) -> float:
    """In nats."""
    return _entropy_of(np.bincount(codes))


def _sum_n_ln_n(cells: Floats) -> float:
    """Over the cells that are not empty."""
    cells = cells[cells > 0]
    return float((cells * np.log(cells)).sum())


def _entropy_of(sizes: Integers) -> float:
    shares = sizes[sizes > 0] / sizes.sum()
    return float(-(shares * np.log(shares)).sum())
