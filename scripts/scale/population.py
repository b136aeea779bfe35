"""Vectors of representation ``input`` for a synthetic population, drawn by a hierarchical law, a block at a time.

A block of 114 numbers of a model is, before it is scaled to unit norm,

    √S · (g · common + √(1 − g²) · (√h · domain + √(1 − h) · dataset)) + √(1 − S) · (√r · recipe + √(1 − r) · own)

where every direction is a unit vector drawn from a normal distribution with a decaying spectrum: ``common`` to all
models, one for each ``domain`` of data sets, one for each ``dataset``, one for each author's ``recipe`` on a data set,
one ``own`` to each model. S and r vary from model to model, g from data set to data set (see ``facts.Law``).
Whatever belongs to model i depends on the seed and on i alone, so any stretch can be drawn without the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from scripts.scale.facts import BLOCK, FAMILIES, LAW, LAYERS, Law
from scripts.scale.labels import Labels

Floats = NDArray[np.float32]

# What a stream of random numbers is for; part of its seed.
_COMMON, _DOMAIN, _DATASET, _RECIPE, _OWN, _TRAIT, _TURN = range(7)

# Directions of data sets and recipes that are kept: 16 KB each.
_KEPT = 20_000

STRETCH = 2_048


class Population:
    """The vectors that belong to ``labels``; ``layers`` of six families make a vector of layers · 6 · 114 numbers."""

    def __init__(self, labels: Labels, seed: int, layers: int = LAYERS, law: Law = LAW) -> None:
        self.labels = labels
        self.seed = seed
        self.layers = layers
        self.law = law
        self.blocks = layers * len(FAMILIES)
        self.length = self.blocks * BLOCK
        self._direction = lru_cache(maxsize=_KEPT)(self._drawn_direction)

    def stretches(self, size: int = STRETCH) -> Iterator[tuple[int, Floats]]:
        """All vectors in order, (at most ``size``, length) at a time, each with the number of its first model."""
        for start in range(0, len(self.labels), size):
            yield start, self.vectors(start, min(start + size, len(self.labels)))

    def vectors(self, start: int, stop: int) -> Floats:
        """(stop − start, length): unit norm, zeros for a copy of the base, zero blocks where nothing was changed."""
        models = self.labels.original[start:stop]
        blocks = self._mixed(models)
        blocks = np.matmul(blocks.transpose(1, 0, 2), self._turns).transpose(1, 0, 2)
        families = (self.labels.changed[models, None] >> np.arange(len(FAMILIES))) & 1
        changed = np.tile(families.astype(np.float32), self.layers)
        lengths = np.linalg.norm(blocks, axis=2) * np.sqrt(np.maximum(changed.sum(axis=1), 1))[:, None]
        return np.asarray((blocks * (changed / lengths)[:, :, None]).reshape(len(models), -1), dtype=np.float32)

    def _mixed(self, models: NDArray[np.int32]) -> Floats:
        """(n, blocks, 114), not yet of unit norm."""
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
            project = labels.project[model]
            if self._members[project] > 1:
                rest += np.float32(np.sqrt(alike)) * self._direction(_RECIPE, int(project))
            else:
                rest /= np.float32(np.sqrt(1 - alike))
            mixed[row] = root * self._of_dataset(int(labels.dataset[model])) + np.sqrt(1 - root**2) * rest
        return mixed

    def _of_dataset(self, dataset: int) -> Floats:
        """(blocks, 114): what models tuned on a data set have in common."""
        return self._direction(_TRAIT, dataset)

    def _drawn_direction(self, kind: int, number: int) -> Floats:
        rng = self._rng(kind, number)
        if kind != _TRAIT:
            return self._unit(rng)
        law = self.law
        common = np.tile(law.common, self.layers) + law.spread_dataset * rng.standard_normal()
        domain = int(rng.random() * max(1.0, self._datasets / law.domains))
        common = np.clip(common, 0.05, 0.98)[:, None].astype(np.float32)
        rest = np.float32(np.sqrt(law.domain)) * self._direction(_DOMAIN, domain)
        rest = rest + np.float32(np.sqrt(1 - law.domain)) * self._unit(self._rng(_DATASET, number))
        return common * self._direction(_COMMON, 0) + np.sqrt(1 - common**2) * rest

    def _unit(self, rng: np.random.Generator) -> Floats:
        """(blocks, 114): a direction in every block."""
        drawn = rng.standard_normal((self.blocks, BLOCK), dtype=np.float32) * self._scale
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def _rng(self, kind: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 2, kind, number])

    @cached_property
    def _scale(self) -> Floats:
        """Root of the variance along each principal direction of a block."""
        return (np.arange(1, BLOCK + 1) ** (-self.law.decay / 2)).astype(np.float32)

    @cached_property
    def _turns(self) -> Floats:
        """(blocks, 114, 114): a rotation for each block; a sketch's coordinates are no principal directions."""
        drawn = self._rng(_TURN, 0).standard_normal((self.blocks, BLOCK, BLOCK))
        return np.linalg.qr(drawn)[0].astype(np.float32)

    @cached_property
    def _members(self) -> NDArray[np.int64]:
        return np.bincount(self.labels.project)

    @cached_property
    def _datasets(self) -> int:
        return int(self.labels.dataset.max()) + 1
