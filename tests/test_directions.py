"""Leading directions: those of the second moment, held or not, in memory that does not grow with its square."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from indexer.errors import AtlasError
from indexer.vectors import directions
from indexer.vectors.candidates import CompressedSearch
from indexer.vectors.compressed import compress
from indexer.vectors.factories import auto_factories, read_factory
from indexer.vectors.recall import sample
from indexer.vectors.segments import Vectors


def decaying(count: int, length: int) -> Vectors:
    """Unit vectors whose spread falls from direction to direction."""
    random = np.random.default_rng(3)
    turn = np.linalg.qr(random.standard_normal((length, 60)))[0].T
    matrix = (random.standard_normal((count, 60)) / np.arange(1, 61)) @ turn
    matrix += 0.001 * random.standard_normal((count, length))
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    return Vectors(np.arange(count, dtype=np.int64), matrix.astype(np.float32))


@pytest.mark.parametrize("held", [True, False])
def test_they_hold_as_much_as_any_directions_can(held, monkeypatch):
    vectors = decaying(500, 200)
    if not held:
        monkeypatch.setattr(directions, "MOMENT_BYTES", 0)
    found = directions.leading_directions(
        lambda: (block.matrix for block in sample([vectors], 500, 0)), 200, 12, seed=0
    )
    assert found.shape == (12, 200)
    np.testing.assert_allclose(found @ found.T, np.eye(12), atol=1e-5)
    most = np.linalg.svd(vectors.matrix.astype(np.float64))[1][:12]
    projected = np.linalg.norm(vectors.matrix @ found.T, axis=0)
    assert (projected**2).sum() == pytest.approx((most**2).sum(), rel=1e-4)
    np.testing.assert_allclose(projected, most, rtol=0.01)


def test_long_vectors_are_trained_on_in_little_memory():
    """6,000 numbers: their second moment would take 144 MB."""
    vectors = decaying(300, 6000)
    tracemalloc.start()
    try:
        made = compress([vectors], "PCA16,SQ8", 0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6
    assert made.recall > 0.9
    assert vectors.ids[7] in CompressedSearch(made.index, made.parameters).candidates(vectors.matrix[7], 5)


def test_directions_that_take_too_much_memory_are_not_tried():
    """`seed` of roberta-base is 55,296 numbers long."""
    with pytest.raises(AtlasError, match=r"PCA1024,SQ8 takes [\d,]+ bytes to be trained"):
        read_factory("PCA1024,SQ8", 55_296).check(100_000, 1 << 40)
    read_factory("PCA256,SQ8", 55_296).check(100_000, 1 << 40)
    ladder = auto_factories(100_000, 55_296, 1 << 40)
    assert any(one.startswith("PCA256") for one in ladder)
    assert not any(one.startswith("PCA1024") for one in ladder)
    assert any(one.startswith("PCA1024") for one in auto_factories(100_000, 4104, 1 << 40))
