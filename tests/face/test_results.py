"""Every answer: short to see, safe to show, with a data frame of real types, rows and an object of plain values."""

from __future__ import annotations

import json

import pytest

from indexer.console.output import as_plain
from query import Atlas
from query.contract.results import plain
from tests.face.conftest import HOSTILE

pandas = pytest.importorskip("pandas")

ASKED = {
    "similar": lambda atlas: atlas.similar("author1/model-1", 5),
    "purity": lambda atlas: atlas.purity(draws=20),
    "predict": lambda atlas: atlas.predict("author5/model-11", k=5),
    "evaluation": lambda atlas: atlas.evaluate_prediction(k=5),
    "clusters": lambda atlas: atlas.clusters(draws=20),
    "map": lambda atlas: atlas.map(method="pca"),
    "show": lambda atlas: atlas.show("author0/model-0"),
    "sql": lambda atlas: atlas.sql("SELECT model, datasets, downloads, DATE '2024-01-31' AS day FROM models"),
}
PICTURES = ("purity", "evaluation", "map")


@pytest.fixture(scope="module")
def answers(small_atlas):
    with Atlas(small_atlas) as atlas:
        yield {name: ask(atlas) for name, ask in ASKED.items()}


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_short_to_see(answers, name):
    seen = repr(answers[name])
    assert len(seen) < 900
    assert seen.count("\n") <= 2


@pytest.mark.parametrize("name", ASKED)
def test_a_notebook_shows_it_and_nothing_becomes_markup(answers, name, monkeypatch):
    page = answers[name]._repr_html_()
    assert "<script" not in page
    assert ("<img" in page) == (name in PICTURES)
    monkeypatch.setattr("query.contract.results.find_spec", lambda _name: None)  # without matplotlib
    without = answers[name]._repr_html_()
    assert "<table" in without
    assert "<img" not in without
    assert "<script" not in without


def test_a_hostile_name_is_shown_as_text(answers):
    assert "&lt;script&gt;" in answers["show"]._repr_html_()
    assert HOSTILE in str(answers["show"].to_rows())


@pytest.mark.parametrize("name", ASKED)
def test_rows_and_frame_agree(answers, name):
    rows = answers[name].to_rows()
    frame = answers[name].to_df() if name != "clusters" else answers[name].to_df("cluster")
    assert len(frame) >= len(rows) > 0
    assert name == "predict" or len(frame) == len(rows)  # the frame of a prediction has every answer
    assert set(frame.columns) - {"calibrated"} == {key for row in rows for key in row} - {"calibrated"}
    json.dumps(as_plain(answers[name].to_dict()), allow_nan=False)
    json.dumps(as_plain(answers[name].to_json()), allow_nan=False)


def test_an_answer_of_rows_is_a_list(answers):
    found = answers["similar"]
    assert len(found) == 5
    assert [one.rank for one in found] == [1, 2, 3, 4, 5]
    assert found[0].model == found.to_df()["model"][0]
    assert found[:2] == list(found)[:2]
    assert found == list(found)
    assert found.to_json() == [plain(one) for one in found]


def test_types_are_those_of_the_atlas(answers):
    frame = answers["sql"].to_df()
    assert str(frame.dtypes["day"]).startswith("datetime64")
    assert str(frame.dtypes["downloads"]) == "Int64"
    assert frame["downloads"].isna().sum() == 1
    assert isinstance(frame["datasets"][0], list)
    points = answers["map"].to_df()
    assert str(points.dtypes["downloads"]) == "Int64"
    assert isinstance(points["datasets"][0], list)
    assert isinstance(answers["similar"].to_df()["datasets"][0], list)
    assert answers["sql"].to_df().to_dict("records")[0]["day"] == pandas.Timestamp("2024-01-31")


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("TIMESTAMP '2024-01-31 10:00:00.5'", "datetime64[us]"),
        ("TIMESTAMPTZ '2024-01-31 10:00:00+00'", "datetime64[us, UTC]"),
        ("INTERVAL 36 HOUR", "timedelta64[us]"),
        ("1.5::DECIMAL(4, 2)", "float64"),
        ("NULL::DOUBLE", "float64"),
        ("true", "bool"),
        ("7::TINYINT", "int64"),
    ],
)
def test_a_type_of_sql_is_one_of_pandas(small_atlas, type_, kind):
    with Atlas(small_atlas) as atlas:
        assert str(atlas.sql(f"SELECT {type_} AS x").to_df().dtypes["x"]) == kind


def test_an_empty_answer_has_its_columns(small_atlas):
    with Atlas(small_atlas) as atlas:
        none = atlas.similar("author1/model-1", where="downloads > 1000000")
        assert list(none.to_df().columns) == list(none.COLUMNS)
        assert len(none) == 0
        assert "no other model" in repr(none)
        assert "no rows" in none._repr_html_()
        assert list(atlas.sql("SELECT model FROM models WHERE false").to_df().columns) == ["model"]


def test_rows_of_clusters_and_purity_are_picked(answers):
    clusters, purity = answers["clusters"], answers["purity"]
    assert len(clusters.to_rows("model")) == len(clusters.members) == 12
    answer = clusters.to_dict()["clusters"]
    assert sorted(name for one in answer for name in one["members"]) == sorted(
        one.model for one in clusters.members if one.cluster >= 0
    )
    assert {row["dataset"] for row in purity.to_rows()} == {row.dataset for row in purity.by_dataset}
    by_model = {row["model"]: row for row in purity.to_rows("model")}
    others = {row.model: row.purity for row in purity.cross_author.by_model}
    assert by_model["author0/model-0"]["cross_author_purity"] == others["author0/model-0"]
    for result in (clusters, purity):
        with pytest.raises(ValueError, match="rows"):
            result.to_rows("layer")


def test_the_representation_of_an_atlas_summarises_it(small_atlas):
    atlas = Atlas(small_atlas)
    assert "12 models of org/base" in repr(atlas)
    assert "org/base" in atlas._repr_html_()
    assert "<table" in atlas._repr_html_()
    atlas.close()
    assert "closed" in repr(atlas)
    assert "closed" in atlas._repr_html_()
