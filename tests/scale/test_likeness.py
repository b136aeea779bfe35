"""Synthetic models are like real ones, and others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scripts.scale import likeness
from scripts.scale.facts import FAMILIES, LAW
from tests.scale.labelled import labels_of


@pytest.mark.parametrize("seed", [0, 100])
def test_synthetic_models_are_like_real_ones(seed):
    rows = likeness.compare_labels(seed=seed) + likeness.compare(likeness.real_figures(), seed=seed)
    assert {row.name for row in rows} == {*likeness.FIGURES, *likeness.LABEL_FIGURES}
    unlike = [(row.name, row.low, row.high, row.synthetic, row.bound) for row in rows if not row.is_like]
    assert not unlike


@pytest.mark.parametrize(
    ("change", "shows_in"),
    [
        ({"shared": tuple(0.3 for _ in FAMILIES)}, "dataset"),
        ({"common": tuple(0.0 for _ in FAMILIES)}, "across"),
        ({"recipe": (0.01, 1.0)}, "project"),
        ({"adapter": 1.0}, "adapter_dataset"),
        ({"decay": 3.0}, "across_spread"),
    ],
)
def test_vectors_of_another_law_are_not_like_real_ones(change, shows_in):
    rows = {row.name: row for row in likeness.compare(likeness.real_figures(), 4, replace(LAW, **change))}
    assert not rows[shows_in].is_like


def test_the_figures_of_planted_vectors():
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
    # Ten full models, five of each data set: one large axis (0.6·10/4 + 0.4) and eight of 0.4 … by hand from the Gram matrix.
    gram = 0.6 * (labels.dataset[:10, None] == labels.dataset[:10]) + 0.4 * np.eye(10)
    centring = np.eye(10) - 0.1
    variance = np.linalg.eigvalsh(centring @ gram @ centring)
    assert figures["dimension"] == pytest.approx(variance.sum() ** 2 / (variance**2).sum(), rel=1e-3)


def test_hubness_counts_how_often_a_model_is_near_others():
    # One vector in the middle of twelve that are at right angles: everybody's nearest.
    cosines = np.zeros((13, 13))
    cosines[0, 1:] = cosines[1:, 0] = 0.5
    np.fill_diagonal(cosines, -2)
    found = likeness._hubness(cosines, k=1)
    assert found["hub_most"] == 12
    assert found["hub_never"] >= 11 / 13
    times = np.bincount([1, *([0] * 12)], minlength=13)
    assert found["hub_skew"] == pytest.approx(((times - 1) ** 3).mean() / times.std() ** 3)
