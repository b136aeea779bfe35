"""Maps of small atlases: who is on them, what groups them, their neighbours, and the command."""

from __future__ import annotations

import json
import math
import shutil

import duckdb
import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.contract.figures import THEMES, draw
from query.questions.map.coloring import cluster_name, scaled
from query.questions.map.model_map import model_map
from query.questions.map.projection import usual_method
from tests.atlas_builder import BASE, Model, write_atlas
from tests.conftest import run_python
from tests.map.conftest import KEPT, MODELS, near, pca, time
from tests.patience import PATIENCE


def groups_of(drawn):
    return {group.group: group.models for group in drawn.coloring.groups}


def test_which_models_are_on_the_map(atlas):
    drawn = pca(atlas)
    assert [point.model for point in drawn.points] == KEPT
    facts = drawn.to_dict()
    assert facts["models"] == 8
    assert facts["left_out"] == {
        "copies": 1,
        "untrained": 0,
        "unrelated": 1,
        "duplicates": 1,
        "checkpoints": 0,
        "sampled": 0,
        "without": 0,
    }
    assert facts["base"] == BASE
    assert (facts["method"], facts["color"], facts["seed"]) == ("pca", "dataset", 0)
    assert facts["explained_variance"] == list(drawn.explained_variance)
    assert "Adapters (2)" in facts["notes"][0]
    json.dumps(facts)
    assert drawn.points[0].datasets == ("glue", "glue/mrpc", "snli")  # those of its duplicate too


def test_groups_are_those_counted_by_hand(atlas):
    drawn = pca(atlas)
    # The parent glue is not counted in addition to its subtask; of several the one that most models name: imdb (4) before
    # glue/mrpc (3) before snli and squad (1).
    assert groups_of(drawn) == {"imdb": 4, "glue/mrpc": 2, "squad": 1}
    assert [point.group for point in drawn.points] == [
        "glue/mrpc", "glue/mrpc", "imdb", "imdb", "imdb", None, "squad", "imdb",
    ]  # fmt: skip
    assert drawn.to_dict()["unknown"] == 1
    assert groups_of(pca(atlas, color="author")) == {"bob": 3, "ann": 2, "cyd": 2, "dan": 1}
    assert groups_of(pca(atlas, color="relation")) == {"finetune": 6, "adapter": 2}
    licences = pca(atlas, color="licence")
    assert groups_of(licences) == {"mit": 3, "apache-2.0": 1}
    assert licences.coloring.codes.count(-1) == 4
    assert groups_of(pca(atlas, color="is_partly_frozen")) == {"no": 7, "yes": 1}
    assert groups_of(pca(atlas, color="languages")) == {"en": 1, "en, fr": 1}


def test_numbers_are_on_a_scale(atlas):
    drawn = pca(atlas, color="downloads")
    assert drawn.to_dict()["scale"] == {"low": 1.0, "high": 50_000.0, "kind": "log"}
    assert [point.value for point in drawn.points] == [5, 50_000, 0, 120, None, 7, 3, 1]
    assert drawn.to_dict()["unknown"] == 1
    created = pca(atlas, color="created")
    assert created.coloring.kind == "time"
    assert created.coloring.high - created.coloring.low == 8 * 86_400
    assert pca(atlas, color="label_count").coloring.kind == "linear"


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([1, 2, 50], "linear", 1, 50),
        ([0, 1, 100], "log", 1, 100),
        ([-1, 1, 1e6], "linear", -1, 1e6),
        ([0.001, 0.5], "log", 0.001, 0.5),
        ([0, 0], "linear", 0, 0),
        ([None, math.nan, math.inf, 3], "linear", 3, 3),
        ([None], "linear", 0, 0),
    ],
)
def test_the_scale_suits_the_numbers(values, kind, low, high):
    scale = scaled("x", values)
    assert (scale.kind, scale.low, scale.high) == (kind, low, high)
    assert all(value is None or math.isfinite(value) for value in scale.values)


def test_an_unknown_column_names_those_there_are(atlas):
    with pytest.raises(AtlasError, match=r"'flavour'.*dataset, author, cluster.*downloads.*licence"):
        pca(atlas, color="flavour")
    with pytest.raises(AtlasError, match="weight_files"):  # a list of structs is nothing to colour by
        pca(atlas, color="weight_files")
    with pytest.raises(AtlasError):
        pca(atlas, color='downloads" FROM models; --')


@pytest.mark.parametrize(
    ("datasets", "name"),
    [
        ({"glue/mrpc": 3, "imdb": 1}, "4: glue/mrpc"),
        ({"a": 2, "b": 2, "c": 1}, "4: mixed, a and b"),
        ({}, "4: around b"),
    ],
)
def test_a_cluster_is_called_by_what_it_holds(datasets, name):
    from query.questions.clusters.result import Cluster

    documented = sum(datasets.values())
    share = max(datasets.values()) / documented if datasets else None
    cluster = Cluster(4, 9, datasets, {}, "a/b", None, documented, next(iter(datasets), None), share, (), {})
    assert cluster_name(cluster) == name


def test_clusters_are_those_of_the_clustering(atlas):
    from query.models.population import read_population
    from query.questions.clusters.study import clusters

    drawn = pca(atlas, color="cluster")
    clustering = clusters(read_population(atlas, BASE), seed=0)
    assert clustering.clusters
    for point in drawn.points:
        number = clustering.labels[point.model_id]
        assert (point.group or "-1").partition(":")[0] == str(number)
    for cluster in clustering.clusters:
        (name,) = {point.group for point in drawn.points if clustering.labels[point.model_id] == cluster.cluster}
        assert next(iter(cluster.datasets), "no dataset named") in name
    assert drawn.coloring.none == "in no cluster"


def test_neighbours_are_the_nearest_on_the_map(atlas):
    drawn = pca(atlas)
    vectors = np.array([model.vector for model in MODELS[:8]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for row, neighbours in enumerate(drawn.neighbours):
        cosines = vectors @ vectors[row]
        expected = sorted((other for other in range(8) if other != row), key=lambda other: -cosines[other])
        assert [near.row for near in neighbours] == expected
        assert [near.cosine for near in neighbours] == pytest.approx(cosines[expected], abs=1e-5)


def test_no_more_neighbours_than_a_page_can_show(tmp_path):
    with Atlas(write_atlas(tmp_path / "atlas", [Model(f"a/{n}", near(n % 2)) for n in range(12)])) as many:
        assert {len(neighbours) for neighbours in pca(many).neighbours} == {8}


def test_rows_of_the_data_frame(atlas):
    frame = pca(atlas, color="downloads").to_df()
    assert list(frame.columns[:4]) == ["model_id", "model", "author", "relation"]
    assert {"datasets", "x", "y", "group", "value", "downloads"} <= set(frame.columns)
    assert list(frame.model) == KEPT
    assert frame.x.std() > frame.y.std()


# ---- the legend ----


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_atlases(tmp_path, count):
    with Atlas(write_atlas(tmp_path / "atlas", [Model(f"a/{n}", near(n % 3)) for n in range(count)])) as small:
        assert pca(small).notes == ()
        for color in ("dataset", "downloads", "created"):
            drawn = model_map(small, color=color)
            facts = drawn.to_dict()
            assert (facts["models"], facts["method"]) == (count, "pca")
            assert "the map is a PCA" in facts["notes"][0]
            draw(drawn.figure(), ".svg")
            drawn.html()


def test_an_atlas_of_copies_has_no_map(tmp_path):
    with (
        Atlas(write_atlas(tmp_path / "atlas", [Model("a/b", np.zeros(32))])) as empty,
        pytest.raises(
            AtlasError, match=r"No model of org/base can be placed on a map \(left out: 1 copy of the base\)"
        ),
    ):
        model_map(empty)


def query(folder, *words):
    return run_python("-m", "query", *words, "--atlas", folder, timeout=PATIENCE)


def test_a_table_for_other_viewers(folder, tmp_path):
    """Read back by DuckDB: rows are numbered from 0, and neighbours are rows, the nearest first."""
    result = query(folder, "map", "--method", "pca", "--color", "cluster", "--out", str(tmp_path / "my map.parquet"))
    assert result.code == 0, result.err
    assert result.err.splitlines()[-1] == (
        f"to view it: embedding-atlas '{tmp_path}/my map.parquet' --text model --x x --y y --neighbors neighbors"
    )
    rows = duckdb.sql(f"SELECT * FROM '{tmp_path / 'my map.parquet'}'")
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    assert types["neighbors"] == "STRUCT(ids BIGINT[], distances DOUBLE[])"
    assert {"cluster", "created", "x", "y"} < types.keys()
    table = [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]
    assert [row["id"] for row in table] == list(range(8))
    assert [row["model"] for row in table] == KEPT
    assert table[0]["datasets"] == ["glue", "glue/mrpc", "snli"]  # with those of its repeat
    assert table[0]["created"] == time(1)
    assert table[4]["downloads"] is None
    with Atlas(folder) as atlas:
        for row in table:
            similar = [model for model in atlas.similar(row["model"], k=10) if model.model in KEPT]
            assert [table[row]["model"] for row in row["neighbors"]["ids"]] == [model.model for model in similar]
            assert row["neighbors"]["distances"] == pytest.approx([1 - model.similarity for model in similar], abs=1e-6)


def test_neighbours_have_backgrounds_and_models_parents(folder, tmp_path):
    """On the map as ``similar`` and the table of lineage tell them."""
    other = tmp_path / "atlas"
    shutil.copytree(folder, other)
    with duckdb.connect(str(other / "atlas.duckdb")) as connection:
        connection.executemany(
            "INSERT INTO null_similarity VALUES (?, 'input', ?, ?, 999, ?, ?, NULL)",
            [
                [BASE, *groups, similarity, share]
                for groups in (("full", "full"), ("adapter", "full"), ("adapter", "adapter"))
                for similarity, share in ((0.9, 0.002), (0.5, 0.1), (-0.5, 0.9))
            ],
        )
        connection.execute(
            "INSERT INTO lineage VALUES (2, 'k', 1, 'continued', NULL, 1, 0.1, 'confirmed', 'unknown', '', [], 9, now(), 0.99), "
            "(3, 'k', NULL, 'tuned from the base', NULL, 1, 0, 'not declared', 'known', '', [], 9, now(), 0.99)"
        )
    with Atlas(other) as atlas:
        drawn = pca(atlas)
        for point, near in zip(drawn.points, drawn.neighbours, strict=True):
            background_of = {model.model: model.background for model in atlas.similar(point.model, k=10)}
            assert all(neighbour.background == pytest.approx(background_of[KEPT[neighbour.row]]) for neighbour in near)
        answer = [neighbour.background for near in drawn.neighbours for neighbour in near]
        assert min(answer) >= 0.001
        assert any(0.1 < share < 0.9 for share in answer)
        assert {model: [parent.words for parent in parents] for model, parents in drawn.parents.items()} == {
            2: ["continued, or the other way round; card: confirmed"],
            3: ["tuned from the base; card: not declared"],
        }
        assert drawn.parents[2][0].model == "ann/one"


def test_tsne_places_the_models_of_a_small_atlas(atlas):
    """UMAP makes a few knots of them; it places many, where t-SNE takes too long."""
    assert model_map(atlas, BASE).method == "tsne"
    assert (usual_method(999), usual_method(1000)) == ("tsne", "umap")


@pytest.mark.slow
@pytest.mark.usefixtures("umap_alone")
def test_of_many_models_the_neighbours_that_are_kept_are_used(atlas, monkeypatch):
    """They are the ones that would be found again, so nobody moves."""
    exact = model_map(atlas, BASE, method="umap")
    assert exact.method == "umap"
    monkeypatch.setattr("query.questions.map.model_map.MOST_COMPARED", 0)
    monkeypatch.setattr("query.questions.map.projection.exact_near", None)  # nothing is compared
    stored = model_map(atlas, BASE, method="umap")
    positions = [[(point.x, point.y) for point in drawn.points] for drawn in (exact, stored)]
    assert np.allclose(*positions, atol=1e-3)


def test_neighbours_that_are_not_known_are_left_open():
    from query.questions.map.neighbours import Neighbours, known_near

    near = Neighbours(
        *map(np.array, ([3, 3, 3, 7, 9], [9, 4, 7, 3, 3], [0.9, 0.8, 0.7, 0.7, 0.9], [np.nan] * 5, [0] * 5))
    )
    indices, distances = known_near(near, np.array([3, 7, 9]), 3)
    assert indices.tolist() == [[0, 2, 1], [1, 0, -1], [2, 0, -1]]
    assert distances == pytest.approx(np.array([[0, 0.1, 0.3], [0, 0.3, 2], [0, 0.1, 2]]), abs=1e-6)


def test_the_command(folder, tmp_path):
    result = query(folder, "map", "--method", "tsne", "--color", "licence", "--out", str(tmp_path / "m.svg"), "--theme",
                "dark", "--json")  # fmt: skip
    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["file"] == str(tmp_path / "m.svg")
    assert facts["groups"] == [{"group": "mit", "models": 3}, {"group": "apache-2.0", "models": 1}]
    assert THEMES["dark"].background.lower() in (tmp_path / "m.svg").read_text().lower()
    result = query(folder, "map", "--color", "flavour", "--out", str(tmp_path / "n.png"))
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "flavour" in result.err
    assert not (tmp_path / "n.png").exists()
    result = query(folder, "map", "--out", "n.bmp")
    assert (result.code, result.err.count("\n")) == (2, 1)
