"""What is said where the nearest model is no nearer than unrelated ones: on every face, and in tiny atlases."""

from __future__ import annotations

import json

import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from query import Atlas
from query.faces.atlas import opened
from query.faces.browse.model import model_page
from query.faces.report.page import Source
from query.faces.report.views import pairs
from query.faces.serve.tools import Tools
from query.questions.similar import Neighbour, SimilarModels
from tests.atlas_builder import BASE, Model, unit, write_atlas

SENTENCE = f"No model of {BASE} is like eve/alone"


def neighbour(rank: int, similarity: float, expected: float | None, model: str = "") -> Neighbour:
    background = None if expected is None else expected / 100
    return Neighbour(
        rank,
        model or f"a/m{rank}",
        similarity,
        "a",
        "adapter",
        ["x"],
        background=background,
        expected_by_chance=expected,
    )


@pytest.mark.parametrize(
    ("near", "said"),
    [
        ([neighbour(1, -0.26, None)], "No model of b is like x/y: unrelated models are as similar to it as the nearest, a/m1 (-0.26)."),
        ([neighbour(1, 0.0, None)], "No model of b is like x/y"),
        ([neighbour(1, 0.31, 4.0), neighbour(2, 0.30, 5.0)], "No model of b is like x/y"),
        ([neighbour(1, 0.31, 0.2)], "The model most like x/y is a/m1, with a similarity of 0.31. Each of these names the dataset x."),
        ([neighbour(1, 0.12, None)], "The model most like x/y is a/m1, with a similarity of 0.12."),
        ([neighbour(1, 0.31, 4.0), neighbour(2, 0.30, 0.1)],
         "The model most like x/y is a/m2, with a similarity of 0.30; others are no nearer than unrelated ones of their kind."),
        ([neighbour(1, -0.1, 0.5)], "The model most like x/y is a/m1, with a similarity of -0.10."),
    ],
    ids=["negative", "nothing", "expected by chance", "alike", "no background", "another group", "rare though negative"],
)  # fmt: skip
def test_a_headline_names_the_nearest_only_if_unrelated_models_are_not_as_near(near, said):
    assert SimilarModels("x/y", "b", "input", tuple(near)).headline.startswith(said)


def lonely(tmp_path_factory, others: int) -> AtlasFolder:
    """``eve/alone`` is opposite to all others, which are pairs of adapters by different authors."""
    rng = np.random.default_rng(0)
    common, data = rng.normal(size=(6, 24)), rng.normal(size=(others // 2 + 1, 6, 24))
    models = [Model("eve/alone", unit(-common), ("alone",), relation="adapter")]
    for number in range(others):
        blocks = unit(1.5 * common + 1.5 * data[number // 2] + rng.normal(size=(6, 24)))
        models.append(Model(f"a{number}/m", blocks, (f"data-{number // 2}",), relation="adapter"))
    return AtlasFolder(write_atlas(tmp_path_factory.mktemp("lonely") / "atlas", models))


@pytest.fixture(scope="module", params=[1, 3, 40], ids=lambda others: f"{others} others")
def folder(request, tmp_path_factory):
    return lonely(tmp_path_factory, request.param)


def test_every_face_says_that_no_model_is_like_it(folder, run):
    code, out, _ = run("query", "similar", "eve/alone", "--atlas", folder.root)
    assert code == 0
    assert out.startswith(SENTENCE)
    assert "most like" not in out
    _, out, _ = run("query", "similar", "eve/alone", "--atlas", folder.root, "--json")
    assert all(row["is_like_unrelated"] for row in json.loads(out))
    code, out, _ = run("query", "show", "eve/alone", "--atlas", folder.root)
    assert code == 0
    assert SENTENCE in out
    _, out, _ = run("query", "show", "eve/alone", "--atlas", folder.root, "--json")
    shown = json.loads(out)
    assert shown["is_like_none"] is True
    assert any(note.startswith(f"No model of {BASE} is like it") for note in shown["notes"])
    with Atlas(folder.root) as atlas:
        for options in ({}, {"where": "true"}, {"other_authors": True}, {"explain": True}):
            assert atlas.similar("eve/alone", 5, **options).headline.startswith(SENTENCE)
        assert SENTENCE in atlas.show("eve/alone").headline
        (other, *_) = atlas.similar("a0/m", 1, where="model <> 'eve/alone'") or [None]
        assert other is None or atlas.show("a0/m")["is_like_none"] is False


def test_agents_the_browser_and_the_report_say_it_too(folder):
    answer, error = Tools(folder.root).answer("similar", {"model": "eve/alone"})
    assert answer is not None, error
    assert answer["summary"].startswith(SENTENCE)
    assert all(one["is_like_unrelated"] for one in answer["neighbours"])
    answer, error = Tools(folder.root).answer("show", {"model": "eve/alone"})
    assert answer is not None, error
    assert SENTENCE in answer["summary"]
    with Atlas(folder.root) as atlas, opened(atlas) as reader:
        page = model_page(reader, 1)
        assert page["is_like_none"] is True
        assert all(one["is_like_unrelated"] for one in page["neighbours"])
        (lists,) = reader.rows("SELECT count(*) AS pairs FROM similar_pairs WHERE similarity <= 0")
        assert lists["pairs"] > 0
        source = Source(reader, BASE, 0)
        if len(atlas.models()) < 4:
            with pytest.raises(AtlasError, match="No two models by different authors are alike"):
                pairs(source, None)
        else:
            assert "eve/alone" not in repr(pairs(source, None))
