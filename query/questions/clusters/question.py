"""The question `clusters`: groups of a base's fine-tunes, with caveats."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from indexer.console.option import Option
from query.contract.options import Base, Representation, Seed
from query.contract.registry import Invocation, Tool, question
from query.models.population import notes_on_sampled, read_population, tasks_of
from query.questions.clusters import study
from query.questions.clusters.result import Clusters

if TYPE_CHECKING:
    from query.models.reader import AtlasReader


def _command(
    call: Invocation,
    base: str | None,
    method: Literal["hdbscan", "kmeans"],
    min_size: int | None,
    count: int | None,
    by: Annotated[
        str,
        Option(
            "Rows of CSV and JSON lines. task: also compare clusters with tasks, overall and within datasets.",
            choices=("cluster", "model", "task"),
        ),
    ] = "cluster",
    **options: Any,
) -> None:
    with call.opened() as atlas:
        answer = atlas.clusters(
            base, method=method, min_size=min_size, count=count, by="task" if by == "task" else "dataset", **options
        )
        call.show(answer, rows=answer.to_rows(by))


@question(
    example="clusters --base roberta-base --method kmeans --count 20",
    agents=Tool(
        "Group the fine-tunes of a base by their vectors, and measure how well groups and datasets agree.",
        ("base", "representation", "method", "min_size", "count"),
    ),
    command=_command,
)
def clusters(
    atlas: AtlasReader,
    base: Base = None,
    *,
    representation: Representation = "input",
    method: Annotated[Literal["hdbscan", "kmeans"], Option("Clustering method.")] = "hdbscan",
    min_size: Annotated[int | None, Option("Size of the smallest cluster (hdbscan).", least=2)] = None,
    count: Annotated[int | None, Option("Number of clusters (kmeans).", least=2)] = None,
    seed: Seed = 0,
    draws: int = 1000,
    by: Literal["dataset", "task"] = "dataset",
) -> Clusters:
    """Group the fine-tunes of a base by their vectors, and measure how well groups, datasets and authors agree.

    Note:
        ``method``: hdbscan (``min_size``: smallest cluster) or kmeans (``count``: number of clusters).
        ``draws``: permutations for each chance level.
        ``by``: task to compare clusters with tasks too (``query.models.population.tasks_of``), also among models of
            a dataset.

    Returns:
        See :func:`query.questions.clusters.study.clusters`.

    Raises:
        AtlasError: an option of the other method was given.
        ValueError: draws < 1.
    """
    population = read_population(atlas, base, representation)
    tasks = tasks_of(atlas, population) if by == "task" else None
    answer = study.clusters(
        population, method=method, min_size=min_size, count=count, seed=seed, draws=draws, tasks=tasks
    )
    return replace(answer, notes=(*answer.notes, *notes_on_sampled(atlas, population)))
