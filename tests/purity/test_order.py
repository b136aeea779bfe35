"""Neighbours in order are those of double precision, though most similarities are computed in single precision."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.vectors.table import VectorTable
from query.shared.statistics.neighbours import neighbour_order


def population(count: int, apart: float, rng: np.random.Generator) -> np.ndarray:
    """Blocks of unit norm, zero here and there; similarities to one of the models lie ``apart`` of each other."""
    blocks = rng.standard_normal((count, 6, 20))
    blocks[0] = 0
    blocks[0, :, 0] = 1
    place = 0.3 + apart * rng.permutation(count)[:, None]
    blocks[1:, :, 0] = 0
    blocks[1:] /= np.linalg.norm(blocks[1:], axis=2, keepdims=True)
    blocks[1:] *= np.sqrt(1 - place[1:, :, None] ** 2)
    blocks[1:, :, 0] = place[1:]
    blocks[-count // 4 :, 2] = 0
    blocks[-count // 8 :] = blocks[-count // 8]  # equal ones
    return blocks.reshape(count, -1).astype(np.float32)


def in_double(vectors: np.ndarray) -> np.ndarray:
    """The order by definition: sorted by similarity to 2^-32, then by place."""
    double = vectors.astype(np.float64)
    changed = vectors.reshape(len(vectors), 6, -1).any(axis=2).astype(int)
    similarity = double @ double.T / np.maximum(changed @ changed.T, 4)
    steps = np.rint(similarity * 2.0**32)
    return np.stack([np.lexsort((np.arange(len(row)), -row)) for row in steps])


# So near that every list is crowded with near ties, that some are, and that hardly any is.
@pytest.mark.parametrize("apart", [2e-8, 4e-7, 1e-4])
def test_the_order_is_that_of_double_precision(apart, monkeypatch):
    monkeypatch.setattr("query.shared.statistics.neighbours._PANEL", 50 * 120)
    vectors = population(200, apart, np.random.default_rng(2))
    expected = in_double(vectors)
    np.testing.assert_array_equal(neighbour_order(VectorTable(vectors, 6)), expected)


def test_single_precision_alone_would_be_another_order(monkeypatch):
    vectors = population(200, 2e-8, np.random.default_rng(2))
    monkeypatch.setattr("query.shared.statistics.neighbours._Exact.settle", lambda *arguments: None)
    assert (neighbour_order(VectorTable(vectors, 6)) != in_double(vectors)).any()


def test_requested_ranks_are_in_order_and_all_others_are_present():
    vectors = population(300, 4e-7, np.random.default_rng(3))
    reach = np.random.default_rng(4).integers(0, 300, 300)
    order, expected = neighbour_order(VectorTable(vectors, 6), reach), in_double(vectors)
    for found, wanted, places in zip(order, expected, reach, strict=True):
        np.testing.assert_array_equal(found[:places], wanted[:places])
        assert set(found.tolist()) == set(range(300))
