"""Groups of like models, and how far they agree with datasets and with authors.

Clusters are found in the space of the vectors themselves, never in a picture of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from indexer.console.messages import say
from indexer.errors import AtlasError
from query.clusters.agreement import FEW_WAYS, Agreement, compared, compared_across, silhouette_of
from query.clusters.found import Clusters
from query.clusters.members import Member, described, numbered
from query.clusters.methods import by_best_centres, by_centres, by_density, coordinates, default_size
from query.clusters.null_model import against_clouds
from query.clusters.silhouette import Floats
from query.population import Population, distinct
from query.statistics import likeness
from query.statistics.neighbours import Integers

METHODS = ("hdbscan", "kmeans")
_SLOW = 3_000  # models beyond which a person waits long enough to be told
_EQUAL = 1 - 1e-9  # cohesion of a cluster of equal vectors
_UNCONVINCING = 0.05  # p above which a number may be chance


def clusters(
    population: Population,
    *,
    method: str = "hdbscan",
    min_size: int | None = None,
    count: int | None = None,
    seed: int = 0,
    draws: int = 1000,
) -> Clusters:
    """Cluster the distinct models of ``population``, and compare with datasets and authors.

    ``method``: ``hdbscan`` (``min_size``: smallest cluster) or ``kmeans`` (``count``: how many clusters, chosen
    by silhouette where it is not given). ``draws``: permutations behind each chance level. A model counts under
    one dataset (``population.leading_datasets``); models that name none are clustered but take no part in
    agreement with datasets. Raises AtlasError on an unknown method, a setting of the other method, or more
    clusters than models; ValueError on draws < 1.
    """
    if draws < 1:
        raise ValueError("draws must be at least 1")
    kept = distinct(population)
    models = len(kept.ids)
    _check(method, min_size, count, models)
    if models > _SLOW:
        say(f"clustering {models:,} models and measuring chance: a minute or more")
    if method == "hdbscan":
        min_size = min_size or default_size(models)
    points = coordinates(likeness.points(kept.vectors, kept.blocks))
    find = _finder(min_size, count, seed)
    found, strengths = find(points)
    found = numbered(found)
    groups, members = described(kept, points, found, strengths)
    if method == "kmeans":
        find = partial(by_centres, count=len(groups), seed=seed)
        count = len(groups) if count is None else count
    agreement, ways = _agreement(members, points, found, find, draws, seed)
    result = Clusters(
        base=kept.base,
        representation=kept.representation,
        method=method,
        min_size=min_size,
        count=count,
        clusters=groups,
        members=members,
        agreement=agreement,
        left_out=kept.left_out,
    )
    return replace(result, notes=(*_notes_on_clusters(result, draws), *_notes_on_labels(result, ways)))


def _check(method: str, min_size: int | None, count: int | None, models: int) -> None:
    if method not in METHODS:
        raise AtlasError(f"{method!r} is not a way to cluster.", f"Choose one of: {', '.join(METHODS)}.")
    if method == "hdbscan" and count is not None:
        raise AtlasError("hdbscan finds the number of clusters itself.", "Leave `count` out, or use `method='kmeans'`.")
    if method == "kmeans" and min_size is not None:
        raise AtlasError("kmeans knows no smallest cluster.", "Leave `min_size` out, or use `method='hdbscan'`.")
    if count is not None and count > models:
        raise AtlasError(f"{models} models cannot make {count} clusters.", "Lower `count`, or leave it out.")
    if min(min_size or 2, count or 2) < 2:
        raise AtlasError("A cluster of one, and one cluster of all, are no clusters.", "Ask for 2 or more.")


def _finder(min_size: int | None, count: int | None, seed: int) -> Callable[[Floats], tuple[Integers, Floats]]:
    if min_size is not None:
        return partial(by_density, min_size=min_size)
    return partial(by_centres, count=count, seed=seed) if count else partial(by_best_centres, seed=seed)


def _agreement(
    members: tuple[Member, ...],
    points: Floats,
    found: Integers,
    find: Callable[[Floats], tuple[Integers, Floats]],
    draws: int,
    seed: int,
) -> tuple[tuple[Agreement, ...], int]:
    """All rows, and how many moves of sweeps the comparison across authors could choose from.

    Every row draws from a stream of its own, so that one more row changes no other.
    """
    streams = iter(np.random.default_rng(seed).spawn(8))
    datasets = [member.dataset for member in members]
    authors = [member.author for member in members]
    across_authors, ways = compared_across("datasets", "cross_author", found, datasets, authors, draws, next(streams))
    across_datasets, _ = compared_across("authors", "cross_dataset", found, authors, datasets, draws, next(streams))
    placed = [member.cluster if member.cluster >= 0 else None for member in members]
    rows = [
        *compared("datasets", found, datasets, draws, next(streams)),
        across_authors,
        *compared("authors", found, authors, draws, next(streams)),
        across_datasets,
        silhouette_of("datasets", points, datasets, draws, next(streams)),
        silhouette_of("authors", points, authors, draws, next(streams)),
        silhouette_of("clusters", points, placed, draws, next(streams)),
    ]
    cloud = against_clouds(points, found, lambda cloud: find(cloud)[0], draws, next(streams))
    return (*rows, *([cloud] if cloud else [])), ways


def _notes_on_clusters(clusters: Clusters, draws: int) -> list[str]:
    """What must be known before the clusters are read."""
    models, groups = len(clusters.members), clusters.clusters
    cloud = next((row for row in clusters.agreement if row.against == "cloud"), None)
    if models < 2:
        return ["There is one model to cluster." if models else "There is no model to cluster."]
    if clusters.min_size is not None and models < clusters.min_size:
        return [f"{models} models are too few for a cluster of {clusters.min_size}; there is `min_size=2`."]
    if not groups:
        return ["No group of models is denser than its surroundings; `method='kmeans'` divides them all the same."]
    if len(groups) == 1 and (groups[0].cohesion or 0.0) > _EQUAL:
        return ["All vectors are equal: one cluster."]
    if clusters.count is not None and len(groups) < clusters.count:
        return [f"Only {len(groups)} clusters: no more than {len(groups)} vectors are different."]
    can_tell = 1 / (1 + draws) <= _UNCONVINCING and all(
        _is_chance(r) for r in clusters.agreement if r.labels == "datasets"
    )
    if cloud is not None and can_tell and _is_chance(cloud):
        return [
            f"The clusters hold together (silhouette {cloud.value:.2f}) no better than what is found in structureless "
            f"clouds ({cloud.chance:.2f} on average, p {cloud.p_value:.2f}): they may be no groups at all."
        ]
    return []


def _is_chance(row: Agreement) -> bool:
    return row.p_value is None or row.p_value > _UNCONVINCING


def _notes_on_labels(clusters: Clusters, ways: int) -> list[str]:
    """Why a number of the agreement is missing, or says less than it seems to."""
    held = {(member.dataset, member.author) for member in clusters.members if member.dataset is not None}
    datasets = {dataset for dataset, _ in held}
    authors = {member.author for member in clusters.members}
    if len(clusters.members) < 2:
        return []
    notes = []
    if not datasets:
        notes.append("No model names a dataset: there is nothing for the clusters to agree with.")
    elif len(datasets) == 1:
        notes.append(f"All that name a dataset name {next(iter(datasets))}: agreement with datasets has no meaning.")
    if len(authors) == 1:
        notes.append("All models are by one author: agreement with authors has no meaning.")
    elif 1 < len(datasets) == len(held):
        notes.append("No dataset has models by two authors: clusters of datasets may be clusters of uploaders.")
    elif 0 < ways < FEW_WAYS:
        notes.append(f"Only {ways} ways to exchange authors' sweeps: p of cross_author is at least {1 / ways:.2g}.")
    return notes
