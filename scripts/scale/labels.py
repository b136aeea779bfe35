"""Who made which model on which data: the part of a synthetic population that is not vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scripts.scale.facts import (
    ADAPTER_FAMILIES,
    ADAPTERS,
    AUTHOR_EXPONENT,
    COPIES,
    DATASET_DISCOUNT,
    DATASET_STRENGTH,
    FAMILIES,
    LARGEST_AUTHOR,
    NAMES_DATASET,
    NEW_PROJECT,
    REPEATS,
)

Integers = NDArray[np.int32]
EVERY_FAMILY = (1 << len(FAMILIES)) - 1


@dataclass(frozen=True)
class Labels:
    """Entry i of every column is the same model.

    ``dataset``: what it was tuned on, ``named``: whether its card says so. ``changed``: bit f is set where the matrices
    of family f are changed; none in a copy of the base. ``original``: the model whose upload it repeats, else itself.
    """

    author: Integers
    dataset: Integers
    named: NDArray[np.bool_]
    changed: NDArray[np.uint8]
    original: Integers
    is_adapter: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.author)

    @cached_property
    def project(self) -> Integers:
        """A number for each (author, data set)."""
        pairs = np.stack([self.author, self.dataset], axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].ravel().astype(np.int32)


def draw_labels(count: int, seed: int) -> Labels:
    """Labels of ``count`` models in random order, with the distributions of ``facts``."""
    rng = np.random.default_rng([seed, 1])
    author = np.repeat(*_author_sizes(count, rng))
    project = _projects(author, rng)
    projects = int(project.max()) + 1
    dataset = _datasets(projects, rng)[project]
    named = (rng.random(projects) < NAMES_DATASET)[project]
    is_adapter = rng.random(count) < ADAPTERS
    kinds = rng.choice([bits for _, bits in ADAPTER_FAMILIES], count, p=[share for share, _ in ADAPTER_FAMILIES])
    changed = np.where(is_adapter, kinds, EVERY_FAMILY)
    order = rng.permutation(count)
    chance = rng.random(count)
    original = np.arange(count)
    repeats = np.flatnonzero(chance < REPEATS)
    repeats = repeats[repeats > 0]
    original[repeats] = rng.integers(0, repeats)  # of an earlier model; of a repeat, what that one repeats
    for repeat in repeats:
        original[repeat] = original[original[repeat]]
    told = order[original]  # a repeat says of itself what is true of what it repeats
    is_copy = (chance > 1 - COPIES)[original]
    return Labels(
        author=author[order].astype(np.int32),
        dataset=dataset[told].astype(np.int32),
        named=named[told],
        changed=np.where(is_copy, 0, changed[told]).astype(np.uint8),
        original=original.astype(np.int32),
        is_adapter=is_adapter[told] & ~is_copy,
    )


def _author_sizes(count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Authors' numbers and how many models each has: a power law, cut where the models are ``count``."""
    sizes = np.arange(1, max(2, int(LARGEST_AUTHOR * count)) + 1)
    chances = sizes**-AUTHOR_EXPONENT
    drawn = rng.choice(sizes, count, p=chances / chances.sum())
    authors = int(np.searchsorted(np.cumsum(drawn), count)) + 1
    drawn = drawn[:authors]
    drawn[-1] -= drawn.sum() - count
    return np.arange(authors, dtype=np.int32), drawn.astype(np.int32)


def _projects(author: Integers, rng: np.random.Generator) -> Integers:
    """A model goes on with what its author did in an earlier one, chosen at random, or begins something new."""
    count = len(author)
    first = np.searchsorted(author, author)  # authors ascend
    place = np.arange(count) - first
    is_new = (place == 0) | (rng.random(count) < NEW_PROJECT)
    project = np.cumsum(is_new) - 1
    earlier = first + (rng.random(count) * np.maximum(place, 1)).astype(np.int64)
    for model in np.flatnonzero(~is_new):  # in order, so that what is gone on with is settled
        project[model] = project[earlier[model]]
    return project.astype(np.int32)


def _datasets(projects: int, rng: np.random.Generator) -> Integers:
    """The data set of each project, by a Pitman–Yor process (Pitman & Yor, 1997).

    The next project takes data set k with a chance in proportion to n_k − discount, a new one in proportion to
    strength + discount · (data sets so far).
    """
    chosen: list[int] = []
    sizes: list[int] = []
    for number, chance in enumerate(rng.random(projects).tolist()):
        if chance * (number + DATASET_STRENGTH) < DATASET_STRENGTH + DATASET_DISCOUNT * len(sizes):
            chosen.append(len(sizes))
            sizes.append(1)
            continue
        while True:  # proposed by n_k, accepted by (n_k − discount) / n_k
            proposed = chosen[int(rng.random() * number)]
            if rng.random() * sizes[proposed] < sizes[proposed] - DATASET_DISCOUNT:
                break
        chosen.append(proposed)
        sizes[proposed] += 1
    return np.array(chosen, dtype=np.int32)
