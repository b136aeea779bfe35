"""A synthetic population of fine-tunes: who made which model on which data, and their vectors (representation ``input``).

A block of 114 numbers of a model is, before it is scaled to unit norm,

    √S · (g · common + √(1 − g²) · (√h · domain + √(1 − h) · dataset)) + √(1 − S) · (√r · recipe + √(1 − r) · own)

where every direction is a unit vector drawn from a normal distribution with a decaying spectrum: ``common`` for all
models, one for each ``domain`` of data sets, one for each ``dataset``, one for each author's ``recipe`` on a data set,
one ``own`` for each model. S and r vary from model to model, g from data set to data set (see ``facts.Law``).
The vector of model i depends on the seed and on i alone, so any part of a population can be drawn by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.scale.facts import (
    ADAPTER_FAMILIES,
    ADAPTERS,
    AUTHOR_EXPONENT,
    BLOCK,
    COPIES,
    DATASET_DISCOUNT,
    DATASET_STRENGTH,
    FAMILIES,
    LANGUAGES,
    LARGEST_AUTHOR,
    LAW,
    LAYERS,
    LICENCES,
    NAMES_DATASET,
    NEW_PROJECT,
    REPEATS,
    Law,
)

Integers = NDArray[np.int32]
Floats = NDArray[np.float32]
EVERY_FAMILY = (1 << len(FAMILIES)) - 1

# Purposes of streams of random numbers; part of their seeds.
_COMMON, _DOMAIN, _DATASET, _RECIPE, _OWN, _TRAIT, _TURN = range(7)


@dataclass(frozen=True)
class Labels:
    """Columns of n models.

    ``dataset``: what a model was tuned on, ``named``: whether its card says so. ``changed``: bit f is set if the
    matrices of family f are changed; 0 for a copy of the base. ``original``: the model whose upload it repeats, else
    itself.
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
    # Authors, whose numbers of models follow a power law, until there are ``count`` models.
    sizes = np.arange(1, max(2, int(LARGEST_AUTHOR * count)) + 1)
    chances = sizes**-AUTHOR_EXPONENT
    drawn = rng.choice(sizes, count, p=chances / chances.sum())
    drawn = drawn[: int(np.searchsorted(np.cumsum(drawn), count)) + 1]
    drawn[-1] -= drawn.sum() - count
    author = np.repeat(np.arange(len(drawn)), drawn)
    # A model continues the project of one of its author's earlier models, or starts another.
    first = np.searchsorted(author, author)
    place = np.arange(count) - first
    is_new = (place == 0) | (rng.random(count) < NEW_PROJECT)
    project = np.cumsum(is_new) - 1
    earlier = first + (rng.random(count) * np.maximum(place, 1)).astype(np.int64)
    for model in np.flatnonzero(~is_new):  # in order: an earlier model may continue a project itself
        project[model] = project[earlier[model]]
    projects = int(project.max()) + 1
    dataset = _datasets(projects, rng)[project]
    named = (rng.random(projects) < NAMES_DATASET)[project]
    is_adapter = rng.random(count) < ADAPTERS
    kinds = rng.choice([bits for _, bits in ADAPTER_FAMILIES], count, p=[share for share, _ in ADAPTER_FAMILIES])
    changed = np.where(is_adapter, kinds, EVERY_FAMILY)
    # Random order; some models repeat an earlier upload, and others are copies of the base.
    order = rng.permutation(count)
    chance = rng.random(count)
    original = np.arange(count)
    repeats = np.flatnonzero(chance < REPEATS)
    repeats = repeats[repeats > 0]
    original[repeats] = rng.integers(0, repeats)
    for repeat in repeats:
        original[repeat] = original[original[repeat]]
    source = order[original]  # a repeat has the labels of what it repeats
    is_copy = (chance > 1 - COPIES)[original]
    return Labels(
        author=author[order].astype(np.int32),
        dataset=dataset[source].astype(np.int32),
        named=named[source],
        changed=np.where(is_copy, 0, changed[source]).astype(np.uint8),
        original=original.astype(np.int32),
        is_adapter=is_adapter[source] & ~is_copy,
    )


def _datasets(projects: int, rng: np.random.Generator) -> Integers:
    """The data set of each project, by a Pitman–Yor process (Pitman & Yor, 1997).

    The next project takes data set k with a probability proportional to n_k − discount, a new one with a probability
    proportional to strength + discount · (data sets so far).
    """
    chosen: list[int] = []
    sizes: list[int] = []
    for number, chance in enumerate(rng.random(projects).tolist()):
        if chance * (number + DATASET_STRENGTH) < DATASET_STRENGTH + DATASET_DISCOUNT * len(sizes):
            chosen.append(len(sizes))
            sizes.append(1)
            continue
        while True:  # proposed with n_k, accepted with (n_k − discount) / n_k
            proposed = chosen[int(rng.random() * number)]
            if rng.random() * sizes[proposed] < sizes[proposed] - DATASET_DISCOUNT:
                break
        chosen.append(proposed)
        sizes[proposed] += 1
    return np.array(chosen, dtype=np.int32)


def dataset_id(dataset: int) -> str:
    """A data set's id on the Hub."""
    return f"collection-{dataset % 211}/texts-{dataset}"


def draw_card(draw: random.Random, dataset: int | None, card: dict[str, Any], tags: list[str]) -> None:
    """Add a licence and a language, with the shares that they have on the Hub, and the data set to a card and its tags."""
    licence, language = (
        draw.choices([value for _, value in shares], [share for share, _ in shares])[0]
        for shares in (LICENCES, LANGUAGES)
    )
    if licence:
        card["license"] = licence
        tags.append(f"license:{licence}")
    if language:
        card["language"] = [language]
        tags.append(language)
    if dataset is not None:
        card["datasets"] = [dataset_id(dataset)]
        tags.append(f"dataset:{dataset_id(dataset)}")


class Population:
    """Draws the vectors of ``labels``: ``layers`` of six families make a vector of layers · 6 · 114 numbers."""

    def __init__(self, labels: Labels, seed: int, layers: int = LAYERS, law: Law = LAW) -> None:
        self.labels = labels
        self.seed = seed
        self.layers = layers
        self.law = law
        self.blocks = layers * len(FAMILIES)
        self._direction = lru_cache(maxsize=20_000)(self._drawn_direction)  # 16 KB each
        self._members = np.bincount(labels.project)
        self._domains = max(1.0, (int(labels.dataset.max()) + 1) / law.domains)
        # Root of the variance along each principal direction of a block.
        self._scale = (np.arange(1, BLOCK + 1) ** (-law.decay / 2)).astype(np.float32)
        # A rotation for each block, because the coordinates of a sketch are not principal directions.
        turns = self._rng(_TURN, 0).standard_normal((self.blocks, BLOCK, BLOCK))
        self._turns = np.linalg.qr(turns)[0].astype(np.float32)

    def vectors(self, start: int, stop: int) -> Floats:
        """(stop − start, length): unit norm, zeros for a copy of the base, zero blocks where nothing was changed."""
        models = self.labels.original[start:stop]
        blocks = np.matmul(self._mixed(models).transpose(1, 0, 2), self._turns).transpose(1, 0, 2)
        families = (self.labels.changed[models, None] >> np.arange(len(FAMILIES))) & 1
        changed = np.tile(families.astype(np.float32), self.layers)
        lengths = np.linalg.norm(blocks, axis=2) * np.sqrt(np.maximum(changed.sum(axis=1), 1))[:, None]
        return np.asarray((blocks * (changed / lengths)[:, :, None]).reshape(len(models), -1), dtype=np.float32)

    def _mixed(self, models: Integers) -> Floats:
        """(n, blocks, 114) by the formula above, not yet of unit norm."""
        labels, law = self.labels, self.law
        share = np.tile(np.sqrt(law.shared), self.layers)
        mean = float(np.sqrt(np.mean(law.shared)))
        mixed = np.empty((len(models), self.blocks, BLOCK), dtype=np.float32)
        for row, model in enumerate(models.tolist()):
            rng = self._rng(_OWN, model)
            trained = 1 + law.spread_model / mean * rng.standard_normal()
            trained *= law.adapter if labels.is_adapter[model] else 1.0
            root = np.clip(share * trained, 0.02, 0.98)[:, None].astype(np.float32)
            alike = rng.beta(*law.recipe)
            rest = np.float32(np.sqrt(1 - alike)) * self._unit(rng)
            project = int(labels.project[model])
            if self._members[project] > 1:
                rest += np.float32(np.sqrt(alike)) * self._direction(_RECIPE, project)
            else:
                rest /= np.float32(np.sqrt(1 - alike))
            mixed[row] = root * self._direction(_TRAIT, int(labels.dataset[model])) + np.sqrt(1 - root**2) * rest
        return mixed

    def _drawn_direction(self, kind: int, number: int) -> Floats:
        """(blocks, 114) unit directions; a ``_TRAIT`` is what models tuned on one data set have in common."""
        rng = self._rng(kind, number)
        if kind != _TRAIT:
            return self._unit(rng)
        law = self.law
        common = np.tile(law.common, self.layers) + law.spread_dataset * rng.standard_normal()
        domain = int(rng.random() * self._domains)
        common = np.clip(common, 0.05, 0.98)[:, None].astype(np.float32)
        rest = np.float32(np.sqrt(law.domain)) * self._direction(_DOMAIN, domain)
        rest = rest + np.float32(np.sqrt(1 - law.domain)) * self._unit(self._rng(_DATASET, number))
        return common * self._direction(_COMMON, 0) + np.sqrt(1 - common**2) * rest

    def _unit(self, rng: np.random.Generator) -> Floats:
        drawn = rng.standard_normal((self.blocks, BLOCK), dtype=np.float32) * self._scale
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def _rng(self, kind: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 2, kind, number])
