"""Labels and vectors of synthetic models: how they are drawn, and that they are like real ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scripts.synthetic.population import BLOCK, EVERY_FAMILY, FAMILIES, LAW, Labels, Population, draw_labels
from studies.scale import likeness


def labels_of(author, dataset) -> Labels:
    count = len(list(author))
    return Labels(
        author=np.array(list(author), dtype=np.int32),
        dataset=np.array(list(dataset), dtype=np.int32),
        named=np.ones(count, dtype=bool),
        changed=np.full(count, EVERY_FAMILY, dtype=np.uint8),
        original=np.arange(count, dtype=np.int32),
        is_adapter=np.zeros(count, dtype=bool),
    )


def test_labels_depend_on_the_seed_and_repeats_share_them():
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
    sizes = np.bincount(draw_labels(50_000, 1).author)
    assert sizes.max() <= 5_000
    assert np.sort(sizes)[-10:].min() > 200


def test_parts_of_a_population_are_those_of_the_whole():
    population = Population(draw_labels(300, 2), 2, layers=2)
    whole = population.vectors(0, 300)
    other = Population(population.labels, 2, layers=2)
    pieces = np.concatenate([other.vectors(start, min(start + 47, 300)) for start in range(0, 300, 47)])
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


def test_the_law_gives_the_cosines_it_promises():
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


def test_synthetic_models_are_like_real_ones():
    rows = likeness.compare_labels(seed=100) + likeness.compare_vectors(seed=100)
    assert {row["name"] for row in rows} == {*likeness.FIGURES, *likeness.LABEL_FIGURES}
    assert not [row for row in rows if not row["is_like"]]


@pytest.mark.parametrize(
    ("change", "shows_in"),
    [
        ({"shared": tuple(0.3 for _ in FAMILIES)}, "dataset"),
        ({"adapter": 1.0}, "adapter_dataset"),
        ({"decay": 3.0}, "across_spread"),
    ],
)
def test_vectors_of_another_law_are_not_like_real_ones(change, shows_in, monkeypatch):
    monkeypatch.setattr(likeness, "DRAWS", 4)
    rows = {row["name"]: row for row in likeness.compare_vectors(replace(LAW, **change))}
    assert not rows[shows_in]["is_like"]


def test_the_figures_of_vectors_against_a_calculation_by_hand():
    # Two data sets at a right angle; two authors; each model a mixture of its data set's direction and its own.
    labels = labels_of(author=[0, 0, 1, 1] * 3, dataset=[0, 0, 0, 1, 1, 1] * 2)
    vectors = np.zeros((12, 14), dtype=np.float32)
    vectors[np.arange(12), labels.dataset] = np.sqrt(0.6)
    vectors[np.arange(12), 2 + np.arange(12)] = np.sqrt(0.4)
    labels = replace(labels, is_adapter=np.arange(12) >= 10)
    figures = likeness.figures_of(vectors, labels)
    expected = {
        "dataset": 0.6, "project": 0.6, "across": 0.0, "author": 0.0, "adapter_dataset": 0.6, "adapter_across": 0.0,
        "dataset_spread": 0.0, "nearest_5": 0.6, "nearest_95": 0.6, "nearest_same": 1.0,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    gram = 0.6 * (labels.dataset[:10, None] == labels.dataset[:10]) + 0.4 * np.eye(10)
    centring = np.eye(10) - 0.1
    variance = np.linalg.eigvalsh(centring @ gram @ centring)
    assert figures["dimension"] == pytest.approx(variance.sum() ** 2 / (variance**2).sum(), rel=1e-3)
    # One vector between twelve that are at right angles is the nearest of each.
    cosines = np.zeros((13, 13))
    cosines[0, 1:] = cosines[1:, 0] = 0.5
    np.fill_diagonal(cosines, -2)
    found = likeness.hubness(cosines, k=1)
    assert found["hub_most"] == 12
    times = np.bincount([1, *([0] * 12)], minlength=13)
    assert found["hub_skew"] == pytest.approx(((times - 1) ** 3).mean() / times.std() ** 3)
