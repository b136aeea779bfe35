"""Shares of the background and the centre are right for models and pairs that were not used to compute them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from indexer.publish import vector_update
from indexer.vectors.background import FEWEST_PAIRS, Background
from query import Atlas
from query.models.population import Population
from query.questions.purity.study import purity
from query.shared.statistics.likeness import similarities
from tests.atlas_builder import BASE, Model, block_family, write_atlas
from tests.vectors import loops

DRAWS = range(8)
DRAWN = 70  # models of a group that a background is made of


def _shares(folder, models: list[Model], groups: tuple[str, str]) -> tuple[list[float], list[float]]:
    """Shares of all unrelated pairs that the background was not made of; and of pairs with the same data."""
    with Atlas(write_atlas(folder, models)) as atlas:
        vectors = atlas.index(BASE).vectors()
        rows = atlas.rows(
            "SELECT pairs, similarity, share FROM null_similarity WHERE one_group = ? AND other_group = ? "
            "ORDER BY similarity DESC",
            list(groups),
        )
    points = [np.array([row[name] for row in rows]) for name in ("similarity", "share")]
    known = Background(rows[0]["pairs"], *points)
    ids = {name: np.array([number for number, one in enumerate(models, 1) if one.group == name]) for name in groups}
    used = {name: set(vector_update.drawn(ids[name], BASE, name).tolist()) for name in groups}
    free = {name: [number for number in ids[name].tolist() if number not in used[name]] for name in groups}
    alike = similarities(vectors.matrix, vectors.matrix, 6)
    strangers, kin = [], []
    for one, other in itertools.product(free[groups[0]], free[groups[1]]):
        mine, theirs = models[one - 1], models[other - 1]
        if mine.owner != theirs.owner and (groups[0] != groups[1] or one < other):
            share = known.share(float(alike[one - 1, other - 1]))
            (kin if mine.datasets == theirs.datasets else strangers).append(share)
    return strangers, kin


@pytest.mark.study
@pytest.mark.parametrize("groups", [("full", "full"), ("adapter", "full")], ids="-".join)
def test_of_pairs_that_a_background_was_not_made_of_one_in_a_hundred_has_one_of_a_hundredth(
    groups, tmp_path, monkeypatch
):
    """Eight populations, as pairs of one share their models: the mean share lies within three standard errors."""
    monkeypatch.setattr(vector_update, "MOST_MODELS", DRAWN)
    low: dict[float, list[float]] = {0.1: [], 0.01: []}
    of_kin = []
    for seed in DRAWS:
        models = block_family(100 + seed, datasets=8, authors=10, each=2, adapters=2)
        strangers, kin = _shares(tmp_path / str(seed), models, groups)
        assert len(strangers) > 2_000
        for level, found in low.items():
            found.append(float(np.mean(np.array(strangers) <= level)))
        of_kin.append(np.mean(np.array(kin) <= 0.01))
    for level, found in low.items():
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert abs(np.mean(found) - level) < 3 * error, (level, found)
        assert error < level / 3
    assert np.mean(of_kin) > 0.2  # pairs on the same data are not unrelated


def _purity(models: list[Model], vectors: np.ndarray) -> dict[str, float]:
    count = len(models)
    population = Population(
        base=BASE, representation="input", vectors=vectors.reshape(count, -1).astype(np.float32),
        ids=np.arange(1, count + 1), models=[one.model for one in models], authors=[one.owner for one in models],
        datasets=[frozenset(one.datasets) for one in models], relations=["finetune"] * count,
        is_copy=np.zeros(count, bool), is_unrelated=np.zeros(count, bool), group=[None] * count,
        representative=np.ones(count, bool), blocks=len(models[0].vector),
    )  # fmt: skip
    return {row.model: row.purity for row in purity(population, draws=1).cross_author.by_model}


def _centred(models: list[Model], voters: list[Model]) -> np.ndarray:
    middles = {}
    for group in ("full", "adapter"):
        members = [one for one in voters if one.group == group]
        middles[group] = loops.centre([one.vector for one in members], [one.owner for one in members])
    return np.stack([loops.centred(one.vector, middles[one.group]) for one in models])


@pytest.mark.parametrize("seed", range(3))
def test_purity_does_not_live_on_the_asked_models_share_in_the_centre(seed):
    models = block_family(seed, datasets=6, authors=5, each=2, adapters=1)
    plain = np.mean(list(_purity(models, np.stack([one.vector for one in models])).values()))
    published = np.mean(list(_purity(models, _centred(models, models)).values()))
    left_out = []
    for dataset in sorted({one.datasets for one in models}):
        found = _purity(models, _centred(models, [one for one in models if one.datasets != dataset]))
        left_out += [found[one.model] for one in models if one.datasets == dataset]
    assert published > plain + 0.1
    assert np.mean(left_out) > published - 0.05
    assert np.mean(left_out) > plain + 0.1


@pytest.mark.parametrize("draw", ["normal", "heavy tail", "two heaps"])
def test_left_out_pairs_reach_a_share_as_often_as_expected(draw):
    rng = np.random.default_rng(3)

    def similarities(count: int) -> np.ndarray:
        if draw == "normal":
            return 0.1 * rng.standard_normal(count)
        if draw == "heavy tail":
            return np.tanh(0.05 * rng.standard_t(2, count))
        return np.where(rng.random(count) < 0.05, 0.6, 0.0) + 0.05 * rng.standard_normal(count)

    known = Background.of(similarities(20_000).astype(np.float32))
    left_out = similarities(20_000)
    shares = np.array([known.share(float(one)) for one in left_out])
    for level in (0.5, 0.1, 0.01, 0.001):
        spread = np.sqrt(2 * level / 20_000)  # of both samples
        assert abs((shares <= level).mean() - level) < 4 * spread + 1e-4, level


def test_pairs_that_are_more_alike_reach_it_more_often():
    """The test above can fail: pairs that share something are not unrelated."""
    rng = np.random.default_rng(4)
    known = Background.of(0.1 * rng.standard_normal(20_000).astype(np.float32))
    shares = np.array([known.share(float(one)) for one in 0.1 * rng.standard_normal(5_000) + 0.15])
    assert (shares <= 0.01).mean() > 0.1


def test_shares_fall_with_similarity_and_are_never_zero():
    known = Background.of(np.linspace(-1, 1, 5_000).astype(np.float32))
    shares = [known.share(value) for value in np.linspace(-1.2, 1.2, 999)]
    assert all(one >= other for one, other in itertools.pairwise(shares))
    assert shares[0] == 1.0
    assert shares[-1] == pytest.approx(1 / 5_001)


def test_too_few_pairs_give_no_background():
    assert Background.of(np.zeros(FEWEST_PAIRS - 1, np.float32)) is None
    same = Background.of(np.zeros(FEWEST_PAIRS, np.float32))
    assert [same.share(value) for value in (-0.1, 0.0, 0.1)] == [1.0, 1.0, pytest.approx(1 / (FEWEST_PAIRS + 1))]
