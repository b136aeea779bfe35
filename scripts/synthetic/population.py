"""A synthetic population of fine-tunes: who made which model on which data, and their vectors (representation ``input``).

A block of 114 numbers of a model is, before it is scaled to unit norm,

    √S · (g · common + √(1 − g²) · (√h · domain + √(1 − h) · dataset)) + √(1 − S) · (√r · recipe + √(1 − r) · own)

where every direction is a unit vector drawn from a normal distribution with a decaying spectrum: ``common`` for all
models, one for each ``domain`` of data sets, one for each ``dataset``, one for each author's ``recipe`` on a data set,
one ``own`` for each model. S and r vary from model to model, g from data set to data set (see ``Law``).
The vector of model i depends on the seed and on i alone, so any part of a population can be drawn by itself.

The constants reproduce statistics of real models, from two sources. *Hub*: 1,255 rows of the listing of four bases (2022),
and 2,290 fine-tunes of BERT with the data sets that their cards name (2023). *Family*: 68 distinct, really trained
fine-tunes and adapters of a small RoBERTa, by eight authors on eleven data sets (`make demo`), whose vectors and labels are
kept in ``real.json`` as figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]
Floats = NDArray[np.float32]

FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
LAYERS = 12
BLOCK = 114


# Hub: labels of the two listings (2022, 2023). A model that names a data set makes a claim. One sweep of 918 models
# without a data set weighs on the second.
HUB_MODELS = 1_255  # of the smaller listing
HUB_LABELS = {
    "authors": (0.323, 0.243),
    "lone_authors": (0.600, 0.685),
    "largest_author": (0.088, 0.401),
    "named": (0.314, 0.171),
    "datasets": (0.411, 0.182),
    "lone_datasets": (0.549, 0.635),
    "largest_dataset": (0.076, 0.399),
}

# Hub: of 405 authors 60 % have one model, 14 % two, 7 % three: 1/s² is 61, 15 and 7 %. The largest accounts hold 9 %
# (AdapterHub, 2022) and 40 % (a single sweep of 918, 2023) of all; drawn sizes stop at a tenth.
AUTHOR_EXPONENT = 2.0
LARGEST_AUTHOR = 0.1

# Hub: authors with 2, 3–4, 5–9, 10–30 models that name data sets name 1.6, 1.5–2.0, 2.7–4.2, 2.8–6.7 distinct ones.
NEW_PROJECT = 0.4

# Hub: 55 and 64 % of the named data sets are named by one model, 184 of them in 448 claims and 74 in 406, the largest
# holds 8 and 40 %: a Pitman–Yor process with these two parameters, drawn once for each project; few are named.
DATASET_DISCOUNT = 0.8
DATASET_STRENGTH = 3.0

# Hub: 392 of 2,290 (2023), five models in six name no data set; a sweep either names its data set in all models or in none.
NAMES_DATASET = 1 / 6

# Hub: 110 of 475 models of roberta-base.
ADAPTERS = 0.23

# Family: which matrices nine adapters change; most (and PEFT's default) query and value, a third of all.
ADAPTER_FAMILIES = ((0.6, 0b000101), (0.2, 0b000111), (0.1, 0b001111), (0.1, 0b111111))

# Family: 2 repeated uploads and 2 copies of the base in 75. These were put there on purpose, so this is an assumption.
REPEATS = 0.02
COPIES = 0.01

# Hub: downloads are log-normal (mean and deviation of ln(1 + downloads)); a row has 1,160 bytes, ten files, nine tags.
LOG_DOWNLOADS = (3.03, 2.47)
FILES = (
    ".gitattributes", "README.md", "config.json", "merges.txt", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json", "training_args.bin", "vocab.json",
)  # fmt: skip
TASKS = (
    (0.36, "text-classification", "RobertaForSequenceClassification"),
    (0.27, "fill-mask", "RobertaForMaskedLM"),
    (0.16, "question-answering", "RobertaForQuestionAnswering"),
    (0.12, "token-classification", "RobertaForTokenClassification"),
    (0.09, "feature-extraction", "RobertaModel"),
)
LICENCES = ((0.57, None), (0.25, "apache-2.0"), (0.13, "mit"), (0.05, "cc-by-4.0"))
LANGUAGES = ((0.70, None), (0.20, "en"), (0.03, "es"), (0.03, "de"), (0.02, "id"), (0.02, "ja"))

# Energy held by the top 1, 2, 4, 8 singular values of real deltas, by family, and ‖δW‖/‖W‖ (REPRESENTATIONS).
ENERGY = (
    (0.35, 0.47, 0.57, 0.66),
    (0.26, 0.38, 0.49, 0.61),
    (0.44, 0.60, 0.70, 0.77),
    (0.51, 0.67, 0.75, 0.81),
    (0.33, 0.47, 0.57, 0.64),
    (0.51, 0.66, 0.75, 0.81),
)
RELATIVE_NORM = (0.005, 0.011)


@dataclass(frozen=True)
class Law:
    """How the vectors are drawn, fitted to the family: all figures are cosines or their squares.

    ``shared`` (by family): the share of a block that models of one data set have in common; ``spread_model``: the
    deviation of its root from model to model (how much and how well each was trained), ``adapter`` the factor by which
    an adapter has less of it. ``common`` (by family): the cosine of a data set's direction with the one that all data
    sets share, ``spread_dataset`` its deviation from data set to data set. ``domain``: what data sets of a domain have
    in common of the rest, ``domains``: how many data sets there are for each domain. ``recipe``: beta distribution of what a model has
    in common with those of the same author on the same data. ``decay``: the i-th of a block's 114 principal directions
    has the variance i^-decay.
    """

    shared: tuple[float, ...] = (0.64, 0.42, 0.59, 0.57, 0.62, 0.53)
    spread_model: float = 0.098
    adapter: float = 0.25
    common: tuple[float, ...] = (0.73, 0.63, 0.55, 0.55, 0.63, 0.56)
    spread_dataset: float = 0.069
    domain: float = 0.65
    domains: float = 1.1
    recipe: tuple[float, float] = (0.37, 0.37)
    decay: float = 0.36


LAW = Law()

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
    """Labels of ``count`` models in random order, with the distributions of the constants above."""
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
