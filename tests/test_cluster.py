"""Clusters on planted populations, against brute force, at the edges of an atlas, and on the command line."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.errors import AtlasError
from query.cluster import clusters
from query.clustering import methods
from query.clustering.cloud import _clouds, against_clouds
from query.clustering.members import numbered
from query.clustering.methods import by_best_centres, by_centres, by_density, coordinates, default_size, tried_counts
from query.clustering.sheet import sheet
from query.population import Population
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.world import BASE, DATASETS, make_world


def population(vectors, datasets=None, authors=None, ids=None, **columns):
    """As the atlas hands it over; columns that a test does not care for get plain values."""
    count = len(vectors)
    vectors = np.asarray(vectors, dtype=np.float64).reshape(count, -1 if count else 3)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.arange(1, count + 1) if ids is None else np.asarray(ids)
    authors = authors or [f"author{i}" for i in range(count)]
    plain = {
        "base": "roberta-base",
        "representation": "input",
        "models": [f"{a}/model{i}" for a, i in zip(authors, ids, strict=True)],
        "relations": ["finetune"] * count,
        "is_copy": np.zeros(count, dtype=bool),
        "is_unrelated": np.zeros(count, dtype=bool),
        "group": [None] * count,
        "representative": np.ones(count, dtype=bool),
    }
    return Population(
        vectors=(vectors / np.where(norms == 0, 1, norms)).astype(np.float32),
        ids=ids,
        authors=authors,
        datasets=[frozenset([d] if isinstance(d, str) else d or ()) for d in datasets or [None] * count],
        **(plain | columns),
    )


def planted(sizes, outliers=0, dimensions=60, tightness=0.6, seed=0):
    """Vectors around centres (``tightness``: the cosine of two members) that have a little in common, as all
    fine-tunes have, and others in directions of their own; the cluster of each, -1 for those others; shuffled."""
    draw = np.random.default_rng(seed)
    centres = np.linalg.qr(draw.normal(size=(dimensions, dimensions)))[0]
    centres[: len(sizes)] = math.sqrt(0.8) * centres[: len(sizes)] + math.sqrt(0.2) * centres[-1]
    truth = np.array([*np.repeat(np.arange(len(sizes)), sizes), *[-1] * outliers])
    noise = draw.normal(size=(len(truth), dimensions))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = math.sqrt(tightness) * centres[truth] + math.sqrt(1 - tightness) * noise
    vectors[truth < 0] = centres[len(sizes) : len(sizes) + outliers]
    order = draw.permutation(len(truth))
    return vectors[order], truth[order]


def partition(ids, labels):
    """Sets of ids that share a label; each outlier for itself."""
    groups = {}
    for identity, label in zip(ids, labels, strict=True):
        groups.setdefault(label if label >= 0 else f"alone {identity}", set()).add(int(identity))
    return {frozenset(group) for group in groups.values()}


def names(truth):
    return [f"set{t}" if t >= 0 else None for t in truth]


# ---- what is found ----


@pytest.mark.parametrize(("sizes", "outliers"), [([3, 3], 0), ([8, 5, 4], 4), ([40, 25, 12, 6, 4], 20)])
def test_planted_clusters_and_outliers_are_found_exactly(sizes, outliers):
    vectors, truth = planted(sizes, outliers, tightness=0.75)
    found = clusters(population(vectors, names(truth)), draws=99)
    assert partition(range(1, len(truth) + 1), found.labels.values()) == partition(range(1, len(truth) + 1), truth)
    assert [cluster.size for cluster in found.clusters] == sorted(sizes, reverse=True)
    assert found.to_dict()["ari"] == pytest.approx(1)
    assert found.to_dict()["outliers"] == len(found.outliers) == outliers
    assert found.method == "hdbscan"
    assert found.min_size == 3


@pytest.mark.parametrize("count", [None, 5])
def test_kmeans_finds_planted_clusters_and_their_number(count):
    vectors, truth = planted([30, 12, 9, 6, 4])
    found = clusters(population(vectors, names(truth)), method="kmeans", count=count, draws=19)
    assert partition(found.labels, found.labels.values()) == partition(found.labels, truth)
    assert found.count == 5
    assert found.outliers == []


def test_a_long_sweep_stays_one_cluster():
    """A hundred runs of one uploader that differ in few directions, beside small clusters."""
    draw = np.random.default_rng(1)
    vectors, truth = planted([6] * 6, outliers=10, dimensions=80, tightness=0.75)
    along = np.linalg.qr(draw.normal(size=(80, 6)))[0].T
    noise = draw.normal(size=(100, 6))
    sweep = along[0] + 0.5 * (noise / np.linalg.norm(noise, axis=1, keepdims=True)) @ along
    vectors, truth = np.concatenate([vectors, sweep]), np.concatenate([truth, [6] * 100])
    found = clusters(population(vectors, names(truth)), draws=9)
    assert found.clusters[0].size >= 95
    assert found.clusters[0].share == 1
    assert len(found.clusters) == 7


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
    vectors, truth = planted([10] * 4)
    points = coordinates(vectors.astype(np.float32))
    assert by_best_centres(points, 0)[0].max() + 1 == 4
    one_each = clusters(population(vectors, [f"set{i}" for i in range(40)]), method="kmeans", draws=1)
    assert one_each.count == clusters(population(vectors, names(truth)), method="kmeans", draws=1).count == 4


def test_kmeans_gives_fewer_clusters_where_fewer_vectors_differ():
    vectors = np.repeat(np.eye(3), 4, axis=0)
    found = clusters(population(vectors), method="kmeans", count=6, draws=1)
    assert len(found.clusters) == 3
    assert any("Only 3 clusters" in note for note in found.notes)


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
    tried = tried_counts(models)
    assert tried == sorted(set(tried))
    assert tried[-1] <= max(2, models // 3)
    assert tried[-1] <= min(models, 100)


# ---- numbers and middles ----


@given(st.lists(st.integers(-1, 5), max_size=30))
def test_clusters_are_numbered_by_size_then_by_who_comes_first(found):
    found = np.array(found, dtype=np.intp)
    new = numbered(found)
    assert ((found < 0) == (new < 0)).all()
    old = sorted(set(found[found >= 0].tolist()), key=lambda c: (-(found == c).sum(), np.flatnonzero(found == c)[0]))
    for number, name in enumerate(old):
        assert (new[found == name] == number).all()


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(24)), st.booleans())
def test_other_ids_give_the_same_clusters_with_numbers_by_the_rule(order, by_density):
    vectors, _ = planted([7, 7, 5], outliers=5, tightness=0.75) if by_density else planted([8, 8, 8])
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
    vectors, truth = planted([9, 6], outliers=4, tightness=0.75, seed=3)
    models = population(vectors, names(truth))
    found = clusters(models, draws=1)
    exact = models.vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    cosine = exact @ exact.T
    for cluster in found.clusters:
        rows = [i - 1 for i, number in found.labels.items() if number == cluster.cluster]
        centre = exact[rows].sum(axis=0) / np.linalg.norm(exact[rows].sum(axis=0))
        assert cluster.central == models.models[max(rows, key=lambda row: exact[row] @ centre)]
        assert cluster.central == models.models[max(rows, key=lambda row: np.mean(cosine[row, rows]))]
        pairs = [cosine[i, j] for i, j in itertools.combinations(rows, 2)]
        assert cluster.cohesion == pytest.approx(np.mean(pairs))
    assert [m.model for m in found.members if m.is_central] == [
        m.model for m in found.members if m.model in {cluster.central for cluster in found.clusters}
    ]
    outside = [i - 1 for i, number in found.labels.items() if number < 0]
    isolation = {row: max(cosine[row, other] for other in range(len(exact)) if other != row) for row in outside}
    assert [m.model_id - 1 for m in found.outliers] == sorted(outside, key=lambda row: isolation[row])
    for member in found.outliers:
        assert member.nearest == pytest.approx(isolation[member.model_id - 1])
    assert all(m.nearest is None for m in found.members if m.cluster >= 0)


def test_equal_members_make_the_first_of_them_the_middle():
    found = clusters(population(np.repeat(np.eye(4)[:2], 5, axis=0)), draws=1)
    assert [cluster.central for cluster in found.clusters] == ["author0/model1", "author5/model6"]
    assert [cluster.cohesion for cluster in found.clusters] == pytest.approx([1, 1])


def test_what_is_in_a_cluster_is_counted_and_its_silent_members_get_a_guess():
    vectors = np.eye(9)[[0] * 6 + [1] * 4 + [3, 4, 5]] + 0.01 * np.random.default_rng(0).normal(size=(13, 9))
    vectors[:10, 8] += 0.5
    told = [{"glue", "glue/mrpc"}, "imdb", "glue/mrpc", "glue/mrpc", None, None, *[None] * 4, "imdb", None, "imdb"]
    authors = ["ann", "bob", "ann", "ann", "bob", "cyd", *["dan"] * 4, "eve", "eve", "fay"]
    relations = ["finetune", "adapter", *["finetune"] * 11]
    found = clusters(population(vectors, told, authors, relations=relations), draws=9)
    first, second = found.clusters
    assert first.datasets == {"glue/mrpc": 3, "imdb": 1}
    assert list(first.authors.items()) == [("ann", 3), ("bob", 2), ("cyd", 1)]
    assert first.relations == {"finetune": 5, "adapter": 1}
    assert (first.documented, first.probably, first.share) == (4, "glue/mrpc", 0.75)
    assert first.undocumented == ("bob/model5", "cyd/model6")
    assert (second.size, second.documented, second.probably, second.share) == (4, 0, None, None)
    assert len(second.undocumented) == 4
    assert [member.dataset for member in found.members[:2]] == ["glue/mrpc", "imdb"]
    assert found.members[0].datasets == ("glue", "glue/mrpc")


def test_agreement_is_with_the_dataset_a_model_stands_for():
    vectors, truth = planted([6, 5])
    found = clusters(population(vectors, [{"glue", f"glue/task{t}"} for t in truth]), draws=9)
    assert found.value("datasets", "ari") == pytest.approx(1)
    assert [cluster.datasets for cluster in found.clusters] == [{"glue/task0": 6}, {"glue/task1": 5}]


def test_copies_strangers_and_repeats_are_left_out_and_counted():
    vectors, truth = planted([6, 5], tightness=0.75)
    count = len(truth)
    found = clusters(
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
    assert found.to_dict()["left_out"] == {"copies": 1, "unrelated": 1, "duplicates": 2}
    assert list(found.labels) == [4, *range(6, count + 1)]
    assert found.to_dict()["models"] == count - 4


# ---- clusters of nothing ----


def test_structureless_vectors_make_clusters_that_are_not_believed():
    cloud = np.random.default_rng(0).normal(size=(50, 200))
    found = clusters(population(cloud, [f"set{i % 4}" for i in range(50)]), draws=99)
    assert found.clusters  # a method that must find clusters finds them here too
    (row,) = [row for row in found.agreement if row.against == "cloud"]
    assert row.p_value > 0.05
    assert any("structureless" in note for note in found.notes)


def test_planted_clusters_are_believed():
    vectors, truth = planted([8, 6, 5], outliers=5, tightness=0.75)
    found = clusters(population(vectors, names(truth)), draws=99)
    (row,) = [row for row in found.agreement if row.against == "cloud"]
    assert row.p_value == 0.01
    assert row.chance < row.value == found.to_dict()["silhouette"]
    assert found.notes == ()


def test_a_cloud_has_the_mean_and_the_covariance_of_the_vectors():
    points = 0.02 * np.random.default_rng(0).normal(size=(30, 4)) * [1, 2, 3, 4] + [0, 0, 0, 1]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    drawn = np.concatenate(list(_clouds(points, 2000, np.random.default_rng(1))))
    assert np.linalg.norm(drawn, axis=1) == pytest.approx(1)
    assert drawn.mean(axis=0) == pytest.approx(points.mean(axis=0), abs=0.002)
    assert np.cov(drawn.T)[:3, :3] == pytest.approx(np.cov(points.T)[:3, :3], rel=0.1, abs=2e-5)


def test_clouds_are_not_drawn_where_they_would_take_minutes(monkeypatch):
    points = np.eye(6)
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert against_clouds(points, labels, lambda cloud: labels, 9, np.random.default_rng(0)) is not None
    monkeypatch.setattr("query.clustering.cloud.MOST_MODELS", 5)
    assert against_clouds(points, labels, lambda cloud: labels, 9, np.random.default_rng(0)) is None


# ---- small atlases ----

SMALL = {
    "no model": ([], [], "no model"),
    "one model": (np.eye(1, 5), ["imdb"], "one model"),
    "two models": (np.eye(2, 5), ["imdb", "imdb"], "too few"),
    "two equal models": (np.ones((2, 5)), ["imdb", "squad"], "too few"),
    "five models": (np.random.default_rng(0).normal(size=(5, 40)), ["a", "a", "b", "b", None], ""),
    "all equal": (np.ones((12, 5)), ["imdb", "squad"] * 6, "All vectors are equal"),
    "all apart": (np.eye(12), ["imdb", "squad"] * 6, "denser"),
    "one dataset": (planted([6, 5])[0], ["imdb"] * 11, "no meaning"),
    "no dataset": (planted([6, 5])[0], [None] * 11, "No model names a dataset"),
}


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("method", ["hdbscan", "kmeans"])
@pytest.mark.filterwarnings("error")
def test_small_atlases_get_sensible_answers(case, method):
    vectors, datasets, note = SMALL[case]
    found = clusters(population(vectors, datasets), method=method, draws=19)
    json.dumps(found.to_dict(), allow_nan=False)
    json.dumps(sheet(found), allow_nan=False)
    assert found.to_dict()["models"] == len(datasets)
    assert len(found.to_df()) == len(found.labels) == len(datasets)
    assert sum(cluster.size for cluster in found.clusters) + len(found.outliers) == len(datasets)
    if method == "hdbscan" or "dataset" in case or "equal" in note:
        assert any(note in remark or note in remark.lower() for remark in ("", *found.notes))
    if method == "kmeans" and datasets:
        assert found.clusters
        assert not found.outliers


def test_one_dataset_or_none_has_no_agreement():
    vectors = planted([6, 5])[0]
    for datasets in (["imdb"] * 11, [None] * 11):
        told = clusters(population(vectors, datasets), draws=9).to_dict()
        assert told["ari"] is told["ami"] is told["homogeneity"] is told["completeness"] is None
        assert told["silhouette"] > 0
        assert all(row["value"] is None for row in told["agreement"] if row["labels"] == "datasets")


def test_datasets_of_one_uploader_each_are_pointed_out():
    vectors, truth = planted([6, 5])
    found = clusters(population(vectors, names(truth), [f"author{t}" for t in truth]), draws=9)
    assert found.to_dict()["ari"] == pytest.approx(1)
    assert found.value("datasets", "ari", "cross_author") is None
    assert any("two authors" in note for note in found.notes)
    shared = clusters(population(vectors, names(truth), [f"author{i}" for i in range(11)]), draws=9)
    assert not any("two authors" in note for note in shared.notes)
    alone = clusters(population(vectors, names(truth), ["ann"] * 11), draws=9)
    assert any("one author" in note for note in alone.notes)


# ---- what is offered ----


def test_the_answer_has_the_documented_keys_and_a_row_for_every_model():
    vectors, truth = planted([6, 5], outliers=2, tightness=0.75)
    found = clusters(population(vectors, names(truth)), draws=99)
    told = found.to_dict()
    assert list(told)[:4] == ["clusters", "ari", "ami", "homogeneity"]
    assert {"silhouette", "base", "representation", "method", "models", "outliers", "left_out", "notes"} <= set(told)
    assert list(told["clusters"][0])[:5] == ["cluster", "size", "datasets", "authors", "central"]
    assert [row["model_id"] for row in told["outlier_models"]] == [m.model_id for m in found.outliers]
    rows = {(row["labels"], row["measure"]) for row in told["agreement"]}
    assert rows == {
        *itertools.product(["datasets", "authors"], ["ari", "ami", "homogeneity", "completeness", "silhouette"]),
        ("clusters", "silhouette"),
    }
    frame = found.to_df()
    assert list(frame["cluster"]) == list(found.labels.values())
    assert list(frame["model_id"]) == list(found.labels) == sorted(found.labels)
    assert frame["strength"].between(0, 1).all()
    assert frame["is_central"].sum() == 2


def test_the_same_seed_gives_the_same_answer_and_another_seed_other_draws():
    vectors, truth = planted([9, 7, 5], outliers=6, tightness=0.5)
    models = population(vectors, names(truth), [f"author{i % 5}" for i in range(len(truth))])
    for method in ("hdbscan", "kmeans"):
        first, again, other = (clusters(models, method=method, seed=seed, draws=29).to_dict() for seed in (1, 1, 2))
        assert first == again
        assert [row["chance"] for row in first["agreement"]] != [row["chance"] for row in other["agreement"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "dbscan"}, "hdbscan, kmeans"),
        ({"count": 3}, "--count"),
        ({"method": "kmeans", "min_size": 3}, "--min-size"),
        ({"method": "kmeans", "count": 12}, "12 clusters"),
        ({"method": "kmeans", "count": 1}, "2 or more"),
        ({"min_size": 1}, "2 or more"),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_line(options, message):
    with pytest.raises(AtlasError) as caught:
        clusters(population(planted([6, 5])[0]), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_chance_needs_a_draw():
    with pytest.raises(ValueError, match="draws"):
        clusters(population(planted([6, 5])[0]), draws=0)


def test_min_size_is_kept():
    vectors, _ = planted([8, 5, 3], tightness=0.75)
    sizes = {size: [c.size for c in clusters(population(vectors), min_size=size, draws=1).clusters] for size in (3, 5)}
    assert sizes == {3: [8, 5, 3], 5: [8, 5]}


def test_many_models_start_k_means_fewer_times(monkeypatch):
    started = []
    settled = methods._settled
    monkeypatch.setattr(methods, "_settled", lambda *given: started.append(1) or settled(*given))
    points = coordinates(planted([6, 5])[0].astype(np.float32))
    by_centres(points, 2, 0)
    monkeypatch.setattr(methods, "_MANY", 10)
    by_centres(points, 2, 0)
    assert len(started) == 10 + 3


def test_density_looks_at_one_neighbour_less_than_the_smallest_cluster_has():
    """Models 0.1 rad apart in a row: at three, the nearest counts, and the ends of the row lie as densely as the
    middle. With the usual second neighbour they would lie half as densely."""
    angles = np.array([0, 0.1, 0.2, 0.3, 0.4, 1.0, 1.1, 1.2, 1.3, 1.4])
    labels, strengths = by_density(np.column_stack([np.cos(angles), np.sin(angles)]), 3)
    assert partition(range(10), labels) == {frozenset(range(5)), frozenset(range(5, 10))}
    assert strengths == pytest.approx([1] * 10)


def test_importing_it_waits_for_no_heavy_library():
    code = "import sys, query.cluster; print([m for m in ('sklearn', 'scipy', 'pandas', 'torch') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# ---- on the command line ----


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clustered")
    with LoopbackHub(make_world(folder / "store", per_dataset=5)) as hub:
        shell = Shell(hub.endpoint, folder, {"HF_HOME": str(folder / "hf")})
        ran = shell("index", "build", "--base", BASE, "--workers", "1")
        assert ran.code == 0, ran.err
        yield shell


def test_the_command_finds_the_planted_datasets(shell):
    ran = shell("query", "clusters", "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert told["base"] == BASE
    assert told["ari"] == 1
    assert {name for cluster in told["clusters"] for name in cluster["datasets"]} == set(DATASETS)


def test_the_table_fits_eighty_columns_and_says_everything_once(shell):
    ran = shell("query", "clusters", "--base", BASE, "--method", "kmeans")
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    for text in ("3 clusters", *DATASETS, "cross_author", "against cloud"):
        assert text in ran.out


def test_a_setting_of_the_other_method_is_refused(shell):
    ran = shell("query", "clusters", "--count", "3")
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert "--method kmeans" in ran.err
