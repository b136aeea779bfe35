"""Clusters of a base's fine-tunes, and what qualifies them: the question as a user asks it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from query.clusters import study
from query.population import notes_on_sampled, read_population, tasks_of

if TYPE_CHECKING:
    from query.clusters.result import Clusters
    from query.reader import AtlasReader


def clusters(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    representation: str = "input",
    method: Literal["hdbscan", "kmeans"] = "hdbscan",
    min_size: int | None = None,
    count: int | None = None,
    seed: int = 0,
    draws: int = 1000,
    by: Literal["dataset", "task"] = "dataset",
) -> Clusters:
    """Groups of similar models, and how they agree with datasets; see :func:`query.clusters.study.clusters`.

    ``method``: hdbscan (``min_size``: smallest cluster) or kmeans (``count``: number of clusters). ``draws``:
    permutations for each chance level. ``by``: task to compare clusters with tasks too
    (``query.population.tasks_of``), also among models on one dataset. Raises AtlasError for an option of the other
    method, ValueError on draws < 1.
    """
    population = read_population(atlas, base, representation)
    tasks = tasks_of(atlas, population) if by == "task" else None
    found = study.clusters(
        population, method=method, min_size=min_size, count=count, seed=seed, draws=draws, tasks=tasks
    )
    return replace(found, notes=(*found.notes, *notes_on_sampled(atlas, population)))
