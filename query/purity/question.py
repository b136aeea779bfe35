"""Purity of a base's fine-tunes, and what qualifies it: the question as a user asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from query.population import family_trees, notes_on_sampled, read_population, tasks_of
from query.purity import study

if TYPE_CHECKING:
    from query.purity.result import PurityResult
    from query.reader import AtlasReader


def purity(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    representation: str = "input",
    k: int | None = None,
    draws: int | None = None,
    seed: int = 0,
    kin: bool = True,
    confusions: bool = False,
    within: Sequence[str] = (),
    by: Literal["dataset", "task"] = "dataset",
) -> PurityResult:
    """Whether models tuned on the same dataset are close to each other; see :func:`query.purity.study.purity`.

    Purity, chance and intervals are shares from 0 to 1. ``k``: the number of neighbours; by default as many as
    share a dataset with the model. ``draws``: permutations for p; by default all, if they are few, else 1,000, and
    more if hardly any of them reaches the observed purity. ``kin``: whether models of the same family tree count,
    which are close whatever they were tuned on. ``confusions``: also compute which datasets are mistaken for which.
    ``within``: also the chance level if only models of the same head, language, author, length (of the longest
    input, see ``trace``), norm (of δW, to a factor of two), seed (of the factors of adapters) or dataset exchange
    labels; a note says which habits go with the labels. ``by``: task to ask whether models of one task
    (``query.population.tasks_of``) are close; then the chance level within dataset says whether they are closer
    than their data make them. Raises AtlasError if the base or representation is unknown, or the atlas has no
    lineage for ``kin=False``; ValueError on k < 1 or draws < 1.
    """
    population = read_population(atlas, base, representation, documented=by == "dataset")
    if by == "task":
        within = (*within, "dataset")
        tasks = [frozenset(filter(None, [task])) for task in tasks_of(atlas, population)]
        population = replace(population, datasets=tasks)
    trees = None if kin else family_trees(atlas, population)
    strata = study.strata_of(atlas, population, within)
    found = study.purity(
        population, k=k, draws=draws, seed=seed, trees=trees, confusions=confusions, within=strata, by=by
    )
    habits = [name for name in study.HABITS if (name, by) != ("head", "task")]  # a head shows the task
    noted = study.habits_with_labels(population, study.strata_of(atlas, population, habits))
    return replace(found, on_sampled=notes_on_sampled(atlas, population), on_habits=noted)
