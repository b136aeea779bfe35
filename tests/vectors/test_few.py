"""Atlases with hardly anything in them: every question answers sensibly or says why not, and nothing is NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from tests.atlas_builder import BASE, Model, block_family, unit, write_atlas
from tests.halves import a_few

MANY = block_family(5, datasets=3, authors=3, each=2, adapters=1)


def one_matrix() -> list[Model]:
    return [replace(one, vector=unit(np.where(one.vector[:1].any(), one.vector[:1], 1.0))) for one in MANY]


def no_common_matrix() -> list[Model]:
    upper, lower = (np.zeros((6, 24)) for _ in range(2))
    upper[:2], lower[4:] = MANY[0].vector[:2], MANY[1].vector[4:]
    return [
        Model("a/upper", upper, ("x",), relation="adapter"),
        Model("b/lower", lower, ("x",), relation="adapter"),
        *MANY[:4],
    ]


POPULATIONS = {
    "one model": MANY[:1],
    "two equal models": [MANY[0], replace(MANY[0], model="b/again")],
    "one group": [one for one in MANY if one.group == "full"],
    "adapters alone": [one for one in MANY if one.group == "adapter"],
    "a group of two": [*(one for one in MANY if one.group == "full"), *[one for one in MANY if one.group == "adapter"][:2]],
    "one data set": [replace(one, datasets=("x",)) for one in MANY],
    "no data set": [replace(one, datasets=()) for one in MANY],
    "one author": [replace(one, model=f"ann/{number}") for number, one in enumerate(MANY)],
    "one matrix": one_matrix(),
    "no common matrix": no_common_matrix(),
    "only copies": [Model(f"a/{number}", np.zeros((6, 24))) for number in range(2)],
    "nobody": [],
}  # fmt: skip


@pytest.fixture(scope="module", params=a_few(POPULATIONS, 4), ids=str)
def few(request, tmp_path_factory):
    models = POPULATIONS[request.param]
    with Atlas(write_atlas(tmp_path_factory.mktemp("few") / "atlas", models)) as atlas:
        yield models, atlas


@pytest.mark.slow
def test_every_similarity_is_a_number_between_minus_one_and_one(few):
    models, atlas = few
    vectors = atlas.index(BASE).vectors()
    assert np.isfinite(vectors.matrix).all()
    assert len(vectors) == sum(bool(one.vector.any()) for one in models)
    for row in atlas.rows("SELECT similarity FROM neighbours"):
        assert -1 <= row["similarity"] <= 1
    for one in (one for one in models[:2] if one.vector.any()):
        for found in (atlas.similar(one.model, 5), atlas.similar(one.model, 5, where="true", explain=True)):
            assert len(found) == min(5, len(vectors) - 1)
            for near in found:
                assert -1 <= near.similarity <= 1
                assert near.background is None or 0 < near.background <= 1


def test_a_background_is_given_only_where_enough_unrelated_pairs_are_known(few):
    _, atlas = few
    rows = atlas.rows("SELECT pairs, share FROM null_similarity")
    assert all(row["pairs"] >= 200 and 0 < row["share"] <= 1 for row in rows)
    assert atlas.background(BASE, ("full", "adapter"), 0.5) is None or rows


@pytest.mark.parametrize(
    "ask",
    [lambda atlas: atlas.purity(draws=9), lambda atlas: atlas.clusters(draws=9), lambda atlas: atlas.map(method="pca")],
    ids=["purity", "clusters", "map"],
)
def test_studies_answer_or_say_why_not(few, ask):
    _, atlas = few
    try:
        found = ask(atlas)
    except AtlasError as error:
        found = error.message
    assert "nan" not in repr(found).lower().replace("unan", "")


def test_models_without_a_common_matrix_have_nothing_in_common(tmp_path):
    with Atlas(write_atlas(tmp_path / "atlas", no_common_matrix())) as atlas:
        (near,) = [one for one in atlas.similar("a/upper", 9) if one.model == "b/lower"]
    assert (near.similarity, near.matrices, near.is_shrunk) == (0.0, 0, True)
