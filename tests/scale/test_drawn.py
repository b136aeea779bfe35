"""Labels and vectors as they are drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scripts.scale.facts import BLOCK, LAW
from scripts.scale.labels import EVERY_FAMILY, Labels, draw_labels
from scripts.scale.population import Population
from tests.scale.labelled import labels_of


def test_labels_depend_on_the_seed_and_add_up():
    labels = draw_labels(3_000, 5)
    again = draw_labels(3_000, 5)
    assert all(np.array_equal(getattr(labels, name), getattr(again, name)) for name in Labels.__dataclass_fields__)
    assert not np.array_equal(labels.author, draw_labels(3_000, 6).author)
    repeats = np.flatnonzero(labels.original != np.arange(3_000))
    assert 30 < len(repeats) < 90
    assert (labels.original[repeats] < repeats).all()
    assert (labels.original[labels.original] == labels.original).all()
    for column in (labels.dataset, labels.named, labels.changed):
        assert np.array_equal(column[repeats], column[labels.original[repeats]])
    assert ((labels.changed == EVERY_FAMILY) | labels.is_adapter | (labels.changed == 0)).all()
    assert 10 < (labels.changed == 0).sum() < 60
    # A project is one author's on one data set, and named as a whole.
    pairs = {
        (a, d): {p}
        for a, d, p in zip(labels.author.tolist(), labels.dataset.tolist(), labels.project.tolist(), strict=True)
    }
    assert len(pairs) == labels.project.max() + 1


def test_the_largest_author_and_data_set_grow_with_the_atlas_and_stay_a_tenth():
    sizes = np.bincount(draw_labels(50_000, 1).author)
    assert sizes.max() <= 5_000
    assert np.sort(sizes)[-10:].min() > 200


def test_vectors_do_not_depend_on_how_they_are_cut():
    population = Population(draw_labels(300, 2), 2, layers=2)
    whole = population.vectors(0, 300)
    pieces = np.concatenate([block for _, block in Population(population.labels, 2, layers=2).stretches(47)])
    assert np.allclose(whole, pieces, atol=1e-6)
    labels = population.labels
    lengths = np.linalg.norm(whole.astype(np.float64), axis=1)
    assert lengths[labels.changed > 0] == pytest.approx(1, abs=1e-5)
    assert not whole[labels.changed == 0].any()
    blocks = np.linalg.norm(whole.reshape(300, 2, 6, BLOCK), axis=3)
    for model in range(300):
        changed = [bool(labels.changed[model] >> family & 1) for family in range(6)]
        assert (blocks[model] > 0).tolist() == [changed, changed]
        equal = blocks[model][blocks[model] > 0]
        assert equal == pytest.approx(np.full(len(equal), 1 / math.sqrt(max(1, len(equal)))), abs=1e-5)
    repeats = np.flatnonzero(labels.original != np.arange(300))
    assert len(repeats)
    assert np.allclose(whole[repeats], whole[labels.original[repeats]], atol=1e-6)


def test_the_law_gives_the_cosines_that_it_says():
    law = replace(
        LAW, spread_model=0.0, spread_dataset=0.0, domain=0.0, recipe=(1e-3, 1e3), decay=0.0,
        shared=(0.7, 0.5, 0.6, 0.4, 0.8, 0.6), common=(0.9, 0.7, 0.6, 0.5, 0.8, 0.7),
    )  # fmt: skip
    labels = labels_of(author=range(200), dataset=[0] * 60 + list(range(1, 141)))
    vectors = Population(labels, 3, 12, law).vectors(0, 200).astype(np.float64)
    same = vectors[:60] @ vectors[:60].T
    other = vectors[60:] @ vectors[60:].T
    assert same[np.triu_indices(60, 1)].mean() == pytest.approx(np.mean(law.shared), abs=0.01)
    expected = np.mean(np.array(law.shared) * np.square(law.common))
    assert other[np.triu_indices(140, 1)].mean() == pytest.approx(expected, abs=0.01)
