"""Numbers and booleans of numpy as arguments, names with LaTeX's characters in pictures, and what dir() shows."""

from __future__ import annotations

import numpy as np
import pytest

import indexer
import indexer.profiles
import query
from indexer.arguments import kinds_of, plain_value
from indexer.builds.options import BuildOptions, ProfileOptions
from indexer.errors import BadArgument
from query import Atlas
from query.contract.results import Listed, Rows
from tests.atlas_builder import Model, write_atlas

MODEL = "author1/model-1"


@pytest.mark.parametrize("number", [np.int64(3), np.uint8(3), np.float64(3), np.array(3)])
def test_whole_numbers_of_numpy_are_whole_numbers(small_atlas, number):
    with Atlas(small_atlas) as atlas:
        assert len(atlas.similar(MODEL, k=number)) == 3
        assert len(atlas.similar(MODEL, number, other_authors=np.bool_(True))) == 3
        assert atlas.sql("SELECT ? + 1 AS x", parameters=[number], limit=number, seconds=np.float32(20))[0]["x"] == 4
        assert atlas.predict("author5/model-11", k=number).k == 3
        assert atlas.clusters(method="kmeans", count=number, draws=np.int32(5)).to_dict()["method"] == "kmeans"
    assert BuildOptions(rank=number, spectra=np.bool_(True)).rank == 3
    assert type(ProfileOptions(limit=number).limit) is int


@pytest.mark.parametrize("number", [True, np.bool_(True), 2.5, np.float32(2.5), "3", None])
def test_what_is_no_whole_number_is_refused_in_a_line(small_atlas, number):
    with Atlas(small_atlas) as atlas:
        with pytest.raises(BadArgument, match=r"`k` is .*; it must be a whole number\."):
            atlas.similar(MODEL, k=number)
        with pytest.raises(BadArgument, match="`draws`") if number is not None else pytest.raises(BadArgument):
            atlas.clusters(draws=number)
    if number is not None:
        with pytest.raises(BadArgument, match="`rank`"):
            BuildOptions(rank=number)


def test_a_boolean_is_no_number_and_a_number_may_be_whole():
    assert plain_value("x", 3, kinds_of("float | None")) == 3
    assert plain_value("x", None, kinds_of(int | None)) is None
    assert plain_value("x", np.str_("a"), kinds_of("str")) == "a"
    assert plain_value("x", [np.int64(1)], kinds_of("Sequence[int]")) == [1]
    with pytest.raises(BadArgument, match="a number"):
        plain_value("x", True, kinds_of(float))


@pytest.mark.parametrize("package", [indexer, query, indexer.profiles])
def test_dir_shows_what_a_package_has(package):
    assert set(package.__all__) <= set(dir(package))


def test_an_answer_that_prints_a_list_is_a_sequence(small_atlas):
    with Atlas(small_atlas) as atlas:
        answers = [
            atlas.similar(MODEL), atlas.models(), atlas.datasets(), atlas.sql("SELECT 1 AS x"),
            atlas.predict("author5/model-11"), atlas.show(MODEL), atlas.purity(draws=5), atlas.clusters(draws=5),
        ]  # fmt: skip
    for answer in answers:
        assert isinstance(answer, Rows | Listed) == answer.IS_LIST == isinstance(answer.to_json(), list)
        assert isinstance(answer.to_dict(), dict)
        assert isinstance(answer.to_rows(), list)
        if answer.IS_LIST:
            assert len(answer) == len(list(answer)) == len(answer.to_rows())
            assert answer[:1] == [answer[0]]


def test_names_with_characters_of_latex_are_drawn_whatever_the_user_has_set(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    names = [f"a_{one}/m_{one}%$x$\\y{{#&~^" for one in range(12)]
    models = [
        Model(name, rng.normal(size=8), datasets=(f"o_x/d_{place % 2}%$\\alpha",), author=f"a_{place}")
        for place, name in enumerate(names)
    ]
    with Atlas(write_atlas(tmp_path / "atlas", models)) as atlas:
        results = [atlas.map(method="pca"), atlas.purity(draws=5)]
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "text.parse_math": False}):
        for place, result in enumerate(results):
            result.write(tmp_path / f"{place}.svg")
            result.figure().savefig(tmp_path / f"{place}.png")  # by the user, with his own settings
    assert dict(matplotlib.rcParams) == before
    assert "\\alpha" in (tmp_path / "0.svg").read_text()
    assert "usetex" not in (tmp_path / "0.svg").read_text()
