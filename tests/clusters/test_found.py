"""Which clusters are found, how they are numbered, and what their numbers are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query.questions.clusters.methods import by_best_centres, by_centres, coordinates, default_size, tried_counts
from query.questions.clusters.study import clusters, numbered
from tests.clusters.populations import clustered_vectors, names, partition, population


@pytest.mark.parametrize(("sizes", "outliers"), [([3, 3], 0), ([8, 5, 4], 4), ([40, 25, 12, 6, 4], 20)])
def test_known_clusters_and_outliers_are_found_exactly(sizes, outliers):
    vectors, truth = clustered_vectors(sizes, outliers, tightness=0.75)
    result = clusters(population(vectors, names(truth)), draws=99)
    assert partition(range(1, len(truth) + 1), result.labels.values()) == partition(range(1, len(truth) + 1), truth)
    assert [cluster.size for cluster in result.clusters] == sorted(sizes, reverse=True)
    assert result.to_dict()["ari"] == pytest.approx(1)
    assert result.to_dict()["outliers"] == result.outliers == outliers
    assert result.method == "hdbscan"
    assert result.min_size == 3


@pytest.mark.parametrize("count", [None, 5])
def test_kmeans_finds_known_clusters_and_their_number(count):
    vectors, truth = clustered_vectors([30, 12, 9, 6, 4])
    result = clusters(population(vectors, names(truth)), method="kmeans", count=count, draws=19)
    assert partition(result.labels, result.labels.values()) == partition(result.labels, truth)
    assert result.count == 5
    assert result.outlier_models == []


def test_a_long_sweep_stays_one_cluster():
    """A hundred runs of one uploader that differ in few directions, and small clusters."""
    draw = np.random.default_rng(1)
    vectors, truth = clustered_vectors([6] * 6, outliers=10, dimensions=80, tightness=0.75)
    along = np.linalg.qr(draw.normal(size=(80, 6)))[0].T
    noise = draw.normal(size=(100, 6))
    sweep = along[0] + 0.5 * (noise / np.linalg.norm(noise, axis=1, keepdims=True)) @ along
    vectors, truth = np.concatenate([vectors, sweep]), np.concatenate([truth, [6] * 100])
    result = clusters(population(vectors, names(truth)), draws=9)
    assert result.clusters[0].size >= 95
    assert result.clusters[0].share == 1
    assert len(result.clusters) == 7


def test_spherical_kmeans_reaches_the_best_of_all_partitions():
    points = coordinates(np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32))
    best = max(
        sum(np.linalg.norm(points[[i for i in range(8) if labels[i] == group]].sum(axis=0)) for group in range(3))
        for labels in itertools.product(range(3), repeat=8)
    )
    labels, cosines = by_centres(points, 3, seed=0)
    assert cosines.sum() == pytest.approx(best)
    assert sum(np.linalg.norm(points[labels == group].sum(axis=0)) for group in range(3)) == pytest.approx(best)


def test_the_number_of_clusters_is_chosen_without_looking_at_the_datasets():
    vectors, truth = clustered_vectors([10] * 4)
    points = coordinates(vectors.astype(np.float32))
    assert by_best_centres(points, 0)[0].max() + 1 == 4
    by_own_label = clusters(population(vectors, [f"set{i}" for i in range(40)]), method="kmeans", draws=1)
    assert by_own_label.count == clusters(population(vectors, names(truth)), method="kmeans", draws=1).count == 4


def test_kmeans_gives_fewer_clusters_where_fewer_vectors_differ():
    vectors = np.repeat(np.eye(3), 4, axis=0)
    result = clusters(population(vectors), method="kmeans", count=6, draws=1)
    assert len(result.clusters) == 3
    assert any("Only 3 clusters" in note for note in result.notes)


@pytest.mark.parametrize("shape", [(9, 40), (40, 9), (5, 5), (1, 7)])
def test_coordinates_keep_every_cosine(shape):
    vectors = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    points = coordinates(vectors)
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    assert points @ points.T == pytest.approx(exact @ exact.T, abs=1e-12)
    assert points.shape == (shape[0], min(shape))


def test_the_smallest_cluster_grows_slowly():
    assert [default_size(n) for n in (0, 1, 68, 340, 1_000, 10_000)] == [3, 3, 3, 3, 5, 11]


@given(st.integers(1, 5000))
def test_numbers_of_clusters_to_try_are_sensible(models):
    counts = tried_counts(models)
    assert counts == sorted(set(counts))
    assert counts[-1] <= max(2, models // 3)
    assert counts[-1] <= min(models, 100)


# ---- numbers and middles ----


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_clusters_are_numbered_by_size_then_by_first_member(codes):
    codes = np.array(codes, dtype=np.intp)
    numbers = numbered(codes)
    assert ((codes < 0) == (numbers < 0)).all()
    old = sorted(set(codes[codes >= 0].tolist()), key=lambda c: (-(codes == c).sum(), np.flatnonzero(codes == c)[0]))
    for number, name in enumerate(old):
        assert (numbers[codes == name] == number).all()


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(24)), st.booleans())
def test_other_ids_give_the_same_clusters_with_numbers_by_the_rule(order, by_density):
    vectors, _ = (
        clustered_vectors([7, 7, 5], outliers=5, tightness=0.75) if by_density else clustered_vectors([8, 8, 8])
    )
    options = {"draws": 1} if by_density else {"draws": 1, "method": "kmeans", "count": 3}
    plain = clusters(population(vectors), **options)
    moved = clusters(population(vectors[order]), **options)
    before = partition(range(24), plain.labels.values())
    assert before == partition(order, moved.labels.values())
    first = [min(i for i, c in moved.labels.items() if c == number) for number in range(len(moved.clusters))]
    sizes = [cluster.size for cluster in moved.clusters]
    assert list(zip([-size for size in sizes], first, strict=True)) == sorted(
        zip([-size for size in sizes], first, strict=True)
    )


def test_middle_cohesion_and_isolation_are_those_of_a_double_loop():
    vectors, truth = clustered_vectors([9, 6], outliers=4, tightness=0.75, seed=3)
    models = population(vectors, names(truth))
    result = clusters(models, draws=1)
    exact = models.vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    cosine = exact @ exact.T
    for cluster in result.clusters:
        rows = [i - 1 for i, number in result.labels.items() if number == cluster.cluster]
        centre = exact[rows].sum(axis=0) / np.linalg.norm(exact[rows].sum(axis=0))
        assert cluster.central == models.models[max(rows, key=lambda row: exact[row] @ centre)]
        assert cluster.central == models.models[max(rows, key=lambda row: np.mean(cosine[row, rows]))]
        pairs = [cosine[i, j] for i, j in itertools.combinations(rows, 2)]
        assert cluster.cohesion == pytest.approx(np.mean(pairs))
    assert [m.model for m in result.members if m.is_central] == [
        m.model for m in result.members if m.model in {cluster.central for cluster in result.clusters}
    ]
    outside = [i - 1 for i, number in result.labels.items() if number < 0]
    isolation = {row: max(cosine[row, other] for other in range(len(exact)) if other != row) for row in outside}
    assert [m.model_id - 1 for m in result.outlier_models] == sorted(outside, key=lambda row: isolation[row])
    for member in result.outlier_models:
        assert member.nearest == pytest.approx(isolation[member.model_id - 1])
    assert all(m.nearest is None for m in result.members if m.cluster >= 0)


def test_equal_members_make_the_first_of_them_the_middle():
    result = clusters(population(np.repeat(np.eye(4)[:2], 5, axis=0)), draws=1)
    assert [cluster.central for cluster in result.clusters] == ["author0/model1", "author5/model6"]
    assert [cluster.cohesion for cluster in result.clusters] == pytest.approx([1, 1])


def test_what_is_in_a_cluster_is_counted_and_its_silent_members_get_a_guess():
    vectors = np.eye(9)[[0] * 6 + [1] * 4 + [3, 4, 5]] + 0.01 * np.random.default_rng(0).normal(size=(13, 9))
    vectors[:10, 8] += 0.5
    named = [{"glue", "glue/mrpc"}, "imdb", "glue/mrpc", "glue/mrpc", None, None, *[None] * 4, "imdb", None, "imdb"]
    authors = ["ann", "bob", "ann", "ann", "bob", "cyd", *["dan"] * 4, "eve", "eve", "fay"]
    relations = ["finetune", "adapter", *["finetune"] * 11]
    result = clusters(population(vectors, named, authors, relations=relations), draws=9)
    first, second = result.clusters
    assert first.datasets == {"glue/mrpc": 3, "imdb": 1}
    assert list(first.authors.items()) == [("ann", 3), ("bob", 2), ("cyd", 1)]
    assert first.relations == {"finetune": 5, "adapter": 1}
    assert (first.documented, first.probably, first.share) == (4, "glue/mrpc", 0.75)
    assert first.undocumented == ("bob/model5", "cyd/model6")
    assert (second.size, second.documented, second.probably, second.share) == (4, 0, None, None)
    assert len(second.undocumented) == 4
    assert [member.dataset for member in result.members[:2]] == ["glue/mrpc", "imdb"]
    assert result.members[0].datasets == ("glue", "glue/mrpc")


def test_agreement_is_with_the_dataset_a_model_stands_for():
    vectors, truth = clustered_vectors([6, 5])
    result = clusters(population(vectors, [{"glue", f"glue/task{t}"} for t in truth]), draws=9)
    assert result.value("datasets", "ari") == pytest.approx(1)
    assert [cluster.datasets for cluster in result.clusters] == [{"glue/task0": 6}, {"glue/task1": 5}]


def test_copies_unrelated_models_and_duplicates_are_left_out_and_counted():
    vectors, truth = clustered_vectors([6, 5], tightness=0.75)
    count = len(truth)
    result = clusters(
        population(
            vectors,
            names(truth),
            is_copy=np.arange(count) == 0,
            is_unrelated=np.arange(count) == 1,
            group=[None, None, 7, 7, 7, *[None] * (count - 5)],
            representative=np.array([i not in (2, 4) for i in range(count)]),
        ),
        draws=1,
    )
    assert result.to_dict()["left_out"] == {
        "copies": 1,
        "untrained": 0,
        "unrelated": 1,
        "duplicates": 2,
        "sampled": 0,
        "without": 0,
    }
    assert list(result.labels) == [4, *range(6, count + 1)]
    assert result.to_dict()["models"] == count - 4
