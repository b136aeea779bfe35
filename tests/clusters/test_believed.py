"""Clusters of nothing, of little, and which clusters are reported."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from indexer.errors import AtlasError
from query.questions.clusters import methods
from query.questions.clusters.agreement import _clouds, against_clouds
from query.questions.clusters.methods import by_centres, by_density, coordinates
from query.questions.clusters.study import clusters
from tests.clusters.populations import clustered_vectors, names, partition, population
from tests.conftest import Shell
from tests.console.speaking import at_terminal, plain_lines
from tests.tiny_hub import BASE, DATASETS


def test_structureless_vectors_make_clusters_that_are_not_believed():
    cloud = np.random.default_rng(0).normal(size=(50, 200))
    result = clusters(population(cloud, [f"set{i % 4}" for i in range(50)]), draws=99)
    assert result.clusters  # a method that must find clusters finds them here too
    (row,) = [row for row in result.agreement if row.against == "cloud"]
    assert row.p_value > 0.05
    assert any("structureless" in note for note in result.notes)


def test_known_clusters_are_believed():
    vectors, truth = clustered_vectors([8, 6, 5], outliers=5, tightness=0.75)
    result = clusters(population(vectors, names(truth)), draws=99)
    (row,) = [row for row in result.agreement if row.against == "cloud"]
    assert row.p_value == 0.01
    assert row.chance < row.value == result.to_dict()["silhouette"]
    assert result.notes == ()


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
    monkeypatch.setattr("query.questions.clusters.agreement.MOST_MODELS", 5)
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
    "one dataset": (clustered_vectors([6, 5])[0], ["imdb"] * 11, "no meaning"),
    "no dataset": (clustered_vectors([6, 5])[0], [None] * 11, "No model names a dataset"),
}


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("method", ["hdbscan", "kmeans"])
@pytest.mark.filterwarnings("error")
def test_small_atlases_get_sensible_answers(case, method):
    vectors, datasets, note = SMALL[case]
    result = clusters(population(vectors, datasets), method=method, draws=19)
    json.dumps(result.to_dict(), allow_nan=False)
    json.dumps(result.table(), allow_nan=False)
    assert result.to_dict()["models"] == len(datasets)
    assert len(result.to_df()) == len(result.labels) == len(datasets)
    assert sum(cluster.size for cluster in result.clusters) + result.outliers == len(datasets)
    if method == "hdbscan" or "dataset" in case or "equal" in note:
        assert any(note in remark or note in remark.lower() for remark in ("", *result.notes))
    if method == "kmeans" and datasets:
        assert result.clusters
        assert not result.outliers


def test_one_dataset_or_none_has_no_agreement():
    vectors = clustered_vectors([6, 5])[0]
    for datasets in (["imdb"] * 11, [None] * 11):
        as_json = clusters(population(vectors, datasets), draws=9).to_dict()
        assert as_json["ari"] is as_json["ami"] is as_json["homogeneity"] is as_json["completeness"] is None
        assert as_json["silhouette"] > 0
        assert all(row["value"] is None for row in as_json["agreement"] if row["labels"] == "datasets")


def test_datasets_of_one_uploader_each_are_pointed_out():
    vectors, truth = clustered_vectors([6, 5])
    result = clusters(population(vectors, names(truth), [f"author{t}" for t in truth]), draws=9)
    assert result.to_dict()["ari"] == pytest.approx(1)
    assert result.value("datasets", "ari", "cross_author") is None
    assert any("two authors" in note for note in result.notes)
    shared = clusters(population(vectors, names(truth), [f"author{i}" for i in range(11)]), draws=9)
    assert not any("two authors" in note for note in shared.notes)
    alone = clusters(population(vectors, names(truth), ["ann"] * 11), draws=9)
    assert any("one author" in note for note in alone.notes)


# ---- what is offered ----


def test_the_answer_has_the_documented_keys_and_a_row_for_every_model():
    vectors, truth = clustered_vectors([6, 5], outliers=2, tightness=0.75)
    result = clusters(population(vectors, names(truth)), draws=99)
    as_json = result.to_dict()
    assert {
        "clusters",
        "ari",
        "ami",
        "homogeneity",
        "silhouette",
        "base",
        "representation",
        "method",
        "models",
        "outliers",
        "left_out",
        "notes",
    } <= set(as_json)
    assert list(as_json["clusters"][0])[:5] == ["cluster", "size", "datasets", "authors", "central"]
    assert [row["model_id"] for row in as_json["outlier_models"]] == [m.model_id for m in result.outlier_models]
    rows = {(row["labels"], row["measure"]) for row in as_json["agreement"]}
    assert rows == {
        *itertools.product(["datasets", "authors"], ["ari", "ami", "homogeneity", "completeness", "silhouette"]),
        ("clusters", "silhouette"),
    }
    frame = result.to_df()
    assert list(frame["cluster"]) == list(result.labels.values())
    assert list(frame["model_id"]) == list(result.labels) == sorted(result.labels)
    assert frame["strength"].between(0, 1).all()
    assert frame["is_central"].sum() == 2


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_another_seed_other_draws():
    vectors, truth = clustered_vectors([9, 7, 5], outliers=6, tightness=0.5)
    models = population(vectors, names(truth), [f"author{i % 5}" for i in range(len(truth))])
    for method in ("hdbscan", "kmeans"):
        first, again, other = (clusters(models, method=method, seed=seed, draws=29).to_dict() for seed in (1, 1, 2))
        assert first == again
        assert [row["chance"] for row in first["agreement"]] != [row["chance"] for row in other["agreement"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "dbscan"}, "hdbscan or kmeans"),
        ({"count": 3}, "`count`"),
        ({"method": "kmeans", "min_size": 3}, "`min_size`"),
        ({"method": "kmeans", "count": 12}, "12 clusters"),
        ({"method": "kmeans", "count": 1}, "at least 2"),
        ({"min_size": 1}, "at least 2"),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_line(options, message):
    with pytest.raises(AtlasError) as caught:
        clusters(population(clustered_vectors([6, 5])[0]), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_chance_needs_a_draw():
    with pytest.raises(ValueError, match="draws"):
        clusters(population(clustered_vectors([6, 5])[0]), draws=0)


def test_min_size_is_kept():
    vectors, _ = clustered_vectors([8, 5, 3], tightness=0.75)
    sizes = {size: [c.size for c in clusters(population(vectors), min_size=size, draws=1).clusters] for size in (3, 5)}
    assert sizes == {3: [8, 5, 3], 5: [8, 5]}


def test_many_models_start_k_means_fewer_times(monkeypatch):
    started = []
    converged = methods._converged
    monkeypatch.setattr(methods, "_converged", lambda *arguments: started.append(1) or converged(*arguments))
    points = coordinates(clustered_vectors([6, 5])[0].astype(np.float32))
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
    code = "import sys, query.questions.clusters.study; print([m for m in ('sklearn', 'scipy', 'pandas', 'torch') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# ---- on the command line ----


@pytest.fixture
def shell(made_of_twelve):
    return Shell("http://127.0.0.1:9", made_of_twelve)


@pytest.mark.slow
def test_the_command_finds_the_known_datasets(shell):
    result = shell("query", "clusters", "--json")
    assert result.code == 0, result.err
    as_json = result.json
    assert as_json["base"] == BASE
    assert as_json["ari"] == 1
    assert {name for cluster in as_json["clusters"] for name in cluster["datasets"]} == set(DATASETS)


@pytest.mark.slow
def test_the_table_fits_eighty_columns_and_repeats_nothing(shell):
    result = shell("query", "clusters", "--base", BASE, "--method", "kmeans", "--details")
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines()[1:])) <= 80  # the first line is a sentence
    for text in ("3 clusters", *DATASETS, "cross_author", "against cloud"):
        assert text in result.out


@pytest.mark.slow
def test_sixty_columns_still_have_tables(shell):
    code = f"""
    from query import Atlas
    with Atlas({str(shell.folder / "atlas")!r}) as atlas:
        emit(atlas.clusters({BASE!r}, method="kmeans", draws=20).table(), "table")
    """
    lines = plain_lines(at_terminal(code, 60))
    assert max(map(len, lines)) <= 60
    heads = [line.split() for line in lines]
    for head in (
        ["cluster", "size", "dataset", "share", "authors", "undocumented"],
        ["cluster", "central", "cohesion"],
        ["labels", "measure", "among", "value", "chance", "p"],
    ):
        assert head in heads


def test_a_setting_of_the_other_method_is_refused(shell):
    result = shell("query", "clusters", "--count", "3")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert "--method kmeans" in result.err
