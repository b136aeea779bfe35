"""Places in the plane: PCA against the covariance's eigenvectors, neighbourhoods against chance, and the edges."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from indexer.errors import AtlasError
from query.questions.map.projection import METHODS, project
from tests.halves import a_few


def unit(raw):
    raw = np.asarray(raw, dtype=np.float64)
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def clustered(groups=6, members=14, length=48, noise=0.7, seed=0):
    """Unit vectors around random centres, in mixed order, and the group of each."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(groups), members))
    centres = rng.normal(size=(groups, length))
    return unit(centres[labels] + noise * rng.normal(size=(len(labels), length))), labels


def nearest(points, k):
    """The k nearest by brute force."""
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1)[:, :k]


# both solvers, more vectors than numbers and the other way round
@pytest.mark.parametrize(("count", "length"), [(30, 200), (200, 30), (90, 120), (300, 80)])
def test_pca_is_that_of_the_covariance(count, length):
    rng = np.random.default_rng(count)
    vectors = unit(rng.normal(size=(count, length)) * np.linspace(3, 0.5, length))
    covariance = np.cov(vectors.astype(np.float64), rowvar=False)
    values, directions = np.linalg.eigh(covariance)
    placed = project(vectors, "pca")
    assert placed.method == "pca"
    assert placed.explained_variance == pytest.approx(values[::-1][:2] / np.trace(covariance), rel=1e-4)
    for axis in range(2):
        direction = directions[:, -1 - axis]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])  # its largest loading is positive
        expected = (vectors - vectors.mean(axis=0)).astype(np.float64) @ direction
        np.testing.assert_allclose(placed.positions[:, axis], expected, atol=2e-4)


def test_pca_does_not_depend_on_the_order_of_the_models():
    vectors, _ = clustered()
    order = np.random.default_rng(1).permutation(len(vectors))
    np.testing.assert_allclose(
        project(vectors, "pca").positions[order], project(vectors[order], "pca").positions, atol=1e-5
    )


@pytest.fixture(autouse=True)
def quick(request):
    """The slow tests are those of UMAP."""
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("umap_alone")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["umap", "tsne"])
def test_neighbourhoods_are_kept(method):
    vectors, labels = clustered()
    placed = project(vectors, method)
    assert placed.method == method
    assert placed.explained_variance is None
    near = nearest(placed.positions, 8)
    assert (labels[near] == labels[:, None]).mean() > 0.97  # by chance .16
    true = nearest(vectors.astype(np.float64), 8)
    kept = np.mean([len(set(a) & set(b)) / 8 for a, b in zip(near, true, strict=True)])
    chance = 8 / (len(vectors) - 1)
    assert kept > 5 * chance


@pytest.mark.parametrize("method", a_few(METHODS, set(METHODS) - {"umap"}))
def test_the_same_vectors_give_the_same_places(method):
    vectors, _ = clustered(members=6)
    first = project(vectors, method, seed=3).positions
    with threadpool_limits(2):
        assert np.array_equal(project(vectors, method, seed=3).positions, first)


@pytest.mark.parametrize("method", a_few(["umap", "tsne"], {"tsne"}))
def test_maps_are_turned_alike(method):
    vectors, _ = clustered(members=6, seed=2)
    placed, plane = project(vectors, method), project(vectors, "pca").positions
    np.testing.assert_allclose(placed.positions.mean(axis=0), 0, atol=1e-4)
    covariance = np.cov(placed.positions.T)
    assert covariance[0, 0] > covariance[1, 1]
    assert abs(covariance[0, 1]) < 1e-3 * covariance[1, 1]
    assert (placed.positions * plane).sum(axis=0).min() >= 0


@pytest.mark.parametrize("method", a_few(METHODS, set(METHODS) - {"umap"}))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_few_models_are_placed_by_pca(method, count):
    placed = project(unit(np.random.default_rng(count).normal(size=(count, 20))), method)
    assert placed.method == "pca"
    assert placed.positions.shape == (count, 2)
    assert np.isfinite(placed.positions).all()
    assert len({tuple(place) for place in placed.positions.round(4).tolist()}) == count
    assert (placed.explained_variance is None) == (count < 2)


def test_up_to_three_models_keep_their_distances():
    vectors = unit(np.random.default_rng(0).normal(size=(3, 20)))
    places = project(vectors, "umap").positions
    for i in range(3):
        for j in range(3):
            chord = np.linalg.norm(vectors[i].astype(np.float64) - vectors[j])
            assert np.linalg.norm(places[i] - places[j]) == pytest.approx(chord, abs=1e-5)


@pytest.mark.parametrize("method", a_few(METHODS, set(METHODS) - {"umap"}))
def test_equal_vectors_lie_in_one_place(method):
    rng = np.random.default_rng(0)
    vectors = unit(np.concatenate([np.repeat(rng.normal(size=(1, 30)), 25, axis=0), rng.normal(size=(9, 30))]))
    places = project(vectors, method).positions.round(4)
    assert len({tuple(place) for place in places.tolist()}) == 10
    alike = project(np.repeat(vectors[:1], 8, axis=0), method)
    assert alike.explained_variance is None
    assert not alike.positions.any()


@pytest.mark.parametrize("method", a_few(METHODS, set(METHODS) - {"umap"}))
def test_vectors_in_one_plane_are_shown_as_they_lie(method):
    angles = np.linspace(0, 2, 40)
    vectors = np.zeros((40, 12), dtype=np.float32)
    vectors[:, 3], vectors[:, 7] = np.cos(angles), np.sin(angles)
    placed = project(vectors, method)
    assert placed.method == "pca"
    assert sum(placed.explained_variance) == pytest.approx(1)


def test_what_cannot_be_placed():
    vectors, _ = clustered(members=2)
    with pytest.raises(AtlasError, match="umap, tsne, pca"):
        project(vectors, "isomap")
    vectors[1, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        project(vectors, "pca")


def test_umap_that_is_missing_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(AtlasError, match="studies"):
        project(clustered(members=3)[0], "umap")
    assert project(clustered(members=3)[0], "tsne").method == "tsne"


@pytest.mark.slow
def test_what_umap_compiles_is_kept_for_the_next_process():
    umap = pytest.importorskip("umap")
    project(clustered()[0], "umap")
    for function in (umap.umap_.smooth_knn_dist, umap.umap_.compute_membership_strengths):
        stats = function.stats
        assert stats.cache_path, function
        assert sum(stats.cache_hits.values()) + sum(stats.cache_misses.values()) >= 1
