"""Clusters of similar models, and how well they agree with datasets and with authors.

Clusters are found from the vectors themselves, never from a map of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from indexer.console.messages import say
from indexer.errors import AtlasError, Call, Text
from query.models.population import Population, distinct, leading_datasets
from query.questions.clusters.agreement import (
    FEW_WAYS,
    Agreement,
    against_clouds,
    compared,
    compared_across,
    silhouette_of,
)
from query.questions.clusters.methods import (
    OUTLIER,
    Floats,
    by_best_centres,
    by_centres,
    by_density,
    coordinates,
    default_size,
)
from query.questions.clusters.result import Cluster, Clusters, Member
from query.shared.statistics import likeness
from query.shared.statistics.authors import UNCONVINCING
from query.shared.statistics.neighbours import Integers, members_of

METHODS = ("hdbscan", "kmeans")
_SLOW = 3_000  # with more models, a message says that it takes a while
_EQUAL = 1 - 1e-9  # cohesion of a cluster of equal vectors
_BLOCK = 1 << 23  # similarities in memory at a time
_TIE = 1e-12  # smaller differences of cosines come from summing in another order


def clusters(
    population: Population,
    *,
    method: str = "hdbscan",
    min_size: int | None = None,
    count: int | None = None,
    seed: int = 0,
    draws: int = 1000,
    tasks: Sequence[str | None] | None = None,
) -> Clusters:
    """Cluster the distinct models of ``population``, and compare with datasets and authors.

    A model counts under one dataset (``population.leading_datasets``). Models that name none are clustered, but do not
    count in the agreement with datasets.

    Args:
        population: the models.
        method: ``hdbscan`` or ``kmeans``.
        min_size: for hdbscan, the size of the smallest cluster.
        count: for kmeans, the number of clusters, by default chosen by silhouette.
        seed: for the starts of k-means and the permutations.
        draws: permutations for each chance level.
        tasks: of every model of the population (``population.tasks_of``); then clusters are compared with them, too.

    Raises:
        AtlasError: an unknown method, a setting of the other method, or more clusters than models.
        ValueError: draws < 1.
    """
    if draws < 1:
        raise ValueError("draws must be at least 1")
    subset = distinct(population)
    models = len(subset.ids)
    if method not in METHODS:
        raise AtlasError(f"Unknown clustering method {method!r} (choose {' or '.join(METHODS)}).", "")
    if method == "hdbscan" and count is not None:
        raise AtlasError("`count` does not apply to hdbscan.", Text("Omit it, or use ", Call(method="kmeans"), "."))
    if method == "kmeans" and min_size is not None:
        raise AtlasError("`min_size` does not apply to kmeans.", Text("Omit it, or use ", Call(method="hdbscan"), "."))
    if count is not None and count > models:
        raise AtlasError(f"{models} models cannot form {count} clusters.", "Lower `count`, or omit it.")
    if min(min_size or 2, count or 2) < 2:
        raise AtlasError("The smallest cluster and the number of clusters must be at least 2.", "")
    if models > _SLOW:
        say(f"clustering {models:,} models and measuring chance: a minute or more")
    points = coordinates(likeness.points(subset.table))
    find: Callable[[Floats], tuple[Integers, Floats]]
    if method == "hdbscan":
        min_size = min_size or default_size(models)
        find = partial(by_density, min_size=min_size)
    else:
        find = partial(by_centres, count=count, seed=seed) if count else partial(by_best_centres, seed=seed)
    codes, strengths = find(points)
    codes = numbered(codes)
    groups, members = described(subset, points, codes, strengths)
    if tasks is not None:
        task_of = dict(zip(population.ids.tolist(), tasks, strict=True))
        members = tuple(replace(member, task=task_of[member.model_id]) for member in members)
    if method == "kmeans":  # clouds are divided into as many clusters
        find = partial(by_centres, count=len(groups), seed=seed)
        count = count or len(groups)
    agreement, ways = _agreement(members, points, codes, find, draws, seed, tasks is not None)
    result = Clusters(
        base=subset.base,
        representation=subset.representation,
        method=method,
        min_size=min_size,
        count=count,
        clusters=groups,
        members=members,
        agreement=agreement,
        left_out=subset.left_out,
        by="dataset" if tasks is None else "task",
    )
    return replace(result, notes=(*_notes_on_clusters(result, draws), *_notes_on_labels(result, ways)))


def _agreement(
    members: tuple[Member, ...],
    points: Floats,
    codes: Integers,
    find: Callable[[Floats], tuple[Integers, Floats]],
    draws: int,
    seed: int,
    with_tasks: bool,
) -> tuple[tuple[Agreement, ...], int]:
    """All rows, and the number of permutations of sweeps for the comparison across authors.

    Every row has a random stream of its own, so that adding a row does not change the others.
    """
    streams = iter(np.random.default_rng(seed).spawn(12))
    datasets = [member.dataset for member in members]
    authors = [member.author for member in members]
    across_authors, ways = compared_across("datasets", "cross_author", codes, datasets, authors, draws, next(streams))
    across_datasets, _ = compared_across("authors", "cross_dataset", codes, authors, datasets, draws, next(streams))
    cluster_or_none = [member.cluster if member.cluster >= 0 else None for member in members]
    rows = [
        *compared("datasets", codes, datasets, draws, next(streams), authors),
        across_authors,
        *compared("authors", codes, authors, draws, next(streams), datasets),
        across_datasets,
        silhouette_of("datasets", points, datasets, draws, next(streams), authors),
        silhouette_of("authors", points, authors, draws, next(streams), datasets),
        silhouette_of("clusters", points, cluster_or_none, draws, next(streams)),
    ]
    cloud = against_clouds(points, codes, lambda cloud: find(cloud)[0], draws, next(streams))
    rows += [cloud] if cloud else []
    if with_tasks:
        tasks = [member.task for member in members]
        rows += compared("tasks", codes, tasks, draws, next(streams), authors)
        for among, groups in (("cross_author", authors), ("cross_dataset", datasets)):
            rows.append(compared_across("tasks", among, codes, tasks, groups, draws, next(streams))[0])
        within = compared_across("tasks", "within_dataset", codes, tasks, datasets, draws, next(streams), authors)
        rows.append(within[0])
    return tuple(rows), ways


def _notes_on_clusters(clusters: Clusters, draws: int) -> list[str]:
    """Caveats about the clusters."""
    models, groups = len(clusters.members), clusters.clusters
    cloud = next((row for row in clusters.agreement if row.against == "cloud"), None)
    if models < 2:
        return ["There is only one model to cluster." if models else "There is no model to cluster."]
    if clusters.min_size is not None and models < clusters.min_size:
        return [
            Text(
                f"{models} models are too few for clusters of at least {clusters.min_size}; try ", Call(min_size=2), "."
            )
        ]
    if not groups:
        return [
            Text("No group of models is denser than its surroundings; ", Call(method="kmeans"), " divides them anyway.")
        ]
    if len(groups) == 1 and (groups[0].cohesion or 0.0) > _EQUAL:
        return ["All vectors are equal and form one cluster."]
    if clusters.count is not None and len(groups) < clusters.count:
        return [f"Only {len(groups)} clusters, because only {len(groups)} vectors are distinct."]
    may_be_chance = 1 / (1 + draws) <= UNCONVINCING and all(
        _is_chance(r) for r in clusters.agreement if r.labels == "datasets"
    )
    if cloud is not None and may_be_chance and _is_chance(cloud):
        return [
            f"The clusters are no more cohesive (silhouette {cloud.value:.2f}) than clusters found in structureless "
            f"random data ({cloud.chance:.2f} on average, p {cloud.p_value:.2f}), so they may not be real groups."
        ]
    return []


def _is_chance(row: Agreement) -> bool:
    return row.p_value is None or row.p_value > UNCONVINCING


def _notes_on_labels(clusters: Clusters, ways: int) -> list[str]:
    """The reasons why numbers of the agreement are missing or limited."""
    sweeps = {(member.dataset, member.author) for member in clusters.members if member.dataset is not None}
    datasets = {dataset for dataset, _ in sweeps}
    authors = {member.author for member in clusters.members}
    if len(clusters.members) < 2:
        return []
    notes = []
    if not datasets:
        notes.append("No model names a dataset, so agreement with datasets cannot be measured.")
    elif len(datasets) == 1:
        notes.append(f"The only dataset named is {next(iter(datasets))}, so agreement with datasets has no meaning.")
    if len(authors) == 1:
        notes.append("All models are by one author, so agreement with authors has no meaning.")
    elif 1 < len(datasets) == len(sweeps):
        notes.append("No dataset has models by two authors, so clusters of datasets may be clusters of uploaders.")
    elif 0 < ways < FEW_WAYS:
        notes.append(
            f"Authors' sweeps can be permuted in only {ways} ways, so p of datasets is at least {1 / ways:.2g}."
        )
    return notes


# ---- clusters and members


def numbered(codes: Integers) -> Integers:
    """The same clusters, numbered from 0 by size, ties by first member; -1 stays -1."""
    names, first, sizes = np.unique(codes, return_index=True, return_counts=True)
    order = sorted((-size, start, name) for name, start, size in zip(names, first, sizes, strict=True) if name >= 0)
    number = {int(name): rank for rank, (_, _, name) in enumerate(order)} | {OUTLIER: OUTLIER}
    return np.array([number[int(name)] for name in codes], dtype=np.intp)


def described(
    population: Population, points: Floats, codes: Integers, strengths: Floats
) -> tuple[tuple[Cluster, ...], tuple[Member, ...]]:
    """All clusters and all members. ``codes``: numbered clusters; ``points``: unit vectors with the same cosines."""
    datasets = leading_datasets(population.datasets)
    clustered = np.flatnonzero(codes >= 0)
    clusters = []
    centrals = set()
    for number, members_in in enumerate(members_of(codes[clustered]) if len(clustered) else []):
        rows = clustered[members_in]
        # The most central member, and the mean cosine over all pairs.
        total = points[rows].sum(axis=0)
        cosines = points[rows] @ total
        central = int(rows[np.flatnonzero(cosines >= cosines.max() - _TIE * len(rows))[0]])
        centrals.add(central)
        size = len(rows)
        dataset_counts = _counted([name for row in rows if (name := datasets[row]) is not None])
        documented = sum(dataset_counts.values())
        clusters.append(
            Cluster(
                cluster=number,
                size=size,
                datasets=dataset_counts,
                authors=_counted([population.authors[row] for row in rows]),
                central=population.models[central],
                cohesion=float((total @ total - size) / (size * (size - 1))) if size > 1 else None,
                documented=documented,
                probably=next(iter(dataset_counts), None),
                share=next(iter(dataset_counts.values())) / documented if documented else None,
                undocumented=tuple(population.models[row] for row in rows if datasets[row] is None),
                relations=_counted([population.relations[row] for row in rows]),
                members=tuple(population.models[row] for row in rows),
            )
        )
    nearest = _nearest(points, np.flatnonzero(codes < 0))
    members = tuple(
        Member(
            model_id=int(population.ids[row]),
            model=population.models[row],
            author=population.authors[row],
            relation=population.relations[row],
            dataset=datasets[row],
            datasets=tuple(sorted(population.datasets[row])),
            cluster=int(codes[row]),
            strength=float(np.clip(strengths[row], 0, 1)),
            is_central=row in centrals,
            nearest=nearest.get(row),
        )
        for row in range(len(codes))
    )
    return tuple(clusters), members


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))


def _nearest(points: Floats, rows: Integers) -> dict[int, float]:
    """For each of ``rows`` the highest cosine with any other model; empty if there is only one model."""
    if len(points) < 2:
        return {}
    nearest: dict[int, float] = {}
    step = max(1, _BLOCK // len(points))
    for start in range(0, len(rows), step):
        tile = rows[start : start + step]
        cosines = points[tile] @ points.T
        cosines[np.arange(len(tile)), tile] = -np.inf
        nearest |= zip(tile.tolist(), cosines.max(axis=1).tolist(), strict=True)
    return nearest
