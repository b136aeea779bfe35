"""Correlations and shares of `query depth --study` where nothing is true, and where a trend is only one of layers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, kstest, spearmanr

from query.questions.depth.study import _agreements, _data_shares, eta_squared
from query.shared.statistics.authors import spearman
from query.shared.wording import decimal

RUNS = 200


def sweeps(rng, authors=12):
    """Author, dataset and a place of each model; every fourth author has a large sweep on a dataset of their own."""
    whose, data, values = [], [], []
    for author in range(authors):
        hand = rng.normal()
        for dataset in rng.choice(4, 1 + author % 2, replace=False):
            name, value = f"d{dataset}" if author % 4 else f"own{author}", hand + rng.normal()
            for _ in range(int(rng.integers(1, 9 if author % 4 == 0 else 4))):
                whose.append(f"a{author}")
                data.append((name,))
                values.append(value + 0.3 * rng.normal())
    return whose, data, np.array(values)


@pytest.mark.slow
def test_the_p_of_data_sets_is_uniform_where_only_sweeps_differ(monkeypatch):
    monkeypatch.setattr("query.questions.depth.study.DRAWS", 199)
    p_values = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        whose, data, values = sweeps(rng)
        (row,) = _data_shares({"drift": values[:, None]}, data, whose, rng)
        assert 0 <= row.share <= 1
        p_values.append(row.p)
    for level in (0.05, 0.1, 0.25, 0.5):
        low, high = binom.interval(0.999, RUNS, level)
        assert low <= (np.array(p_values) <= level).sum() <= high, level
    assert kstest(p_values, "uniform").pvalue > 0.001


def test_a_data_set_that_decides_is_found():
    rng = np.random.default_rng(0)
    data = [(f"d{author % 3}",) for author in range(15) for _ in range(4)]
    whose = [f"a{author}" for author in range(15) for _ in range(4)]
    values = np.array([int(names[0][1]) + 0.1 * rng.normal() for names in data])
    (row,) = _data_shares({"drift": values[:, None]}, data, whose, rng)
    assert row.share > 0.95 > 0.4 > row.chance
    assert row.p < 0.01
    groups = np.array([int(names[0][1]) for names in data])
    between = sum((groups == group).sum() * (values[groups == group].mean() - values.mean()) ** 2 for group in range(3))
    assert eta_squared(values, groups[None, :])[0] == pytest.approx(between / ((values - values.mean()) ** 2).sum())


def test_what_all_models_share_from_layer_to_layer_is_no_correlation():
    """Both numbers rise with the layer, and have nothing to do with each other within one."""
    rng = np.random.default_rng(1)
    layers = np.arange(6)
    left, right = (3 * layers + rng.normal(size=(40, 6)) for _ in range(2))
    assert spearmanr(left.ravel(), right.ravel()).statistic > 0.9
    authors = np.array([f"a{row % 10}" for row in range(40)])
    rho, (low, high) = spearman(left, right, authors)
    assert low < 0 < high
    assert abs(rho) < 0.2
    first = spearman(left[:, :1], right[:, :1], authors)[0]
    assert first == pytest.approx(spearmanr(left[:, 0], right[:, 0]).statistic)
    pooled = next(_agreements(list(layers), {"delta": left, "own_delta": left}, {"drift": right}, authors))
    assert (pooled.layer, pooled.rho) == (None, rho)


@pytest.mark.parametrize("exact", [1, -1])
def test_an_exact_agreement_has_an_interval_that_is_no_point(exact):
    values = np.random.default_rng(2).normal(size=(12, 1))
    rho, (low, high) = spearman(values, exact * values, [f"a{row % 6}" for row in range(12)])
    assert rho == pytest.approx(exact)
    assert 0.002 < high - low < 0.3
    assert low <= rho <= high
    assert spearman(values, values, ["a", "b", "c", "d"] * 3)[1] is None
    assert decimal(rho)


@pytest.mark.slow
@pytest.mark.parametrize("authors", [6, 15])
@pytest.mark.parametrize("true", [0.0, 0.8])
def test_intervals_hold_the_truth_as_often_as_they_say(authors, true):
    """Models of one author are alike; Spearman's rho of normal pairs is 6/pi arcsin(r / 2)."""
    inside = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        whose = np.repeat(np.arange(authors), rng.integers(1, 9, authors))

        def pair(count, rng=rng):
            first, noise = rng.normal(size=(2, count))
            return first, true * first + np.sqrt(1 - true**2) * noise

        left, right = (
            1.5 * of_author[whose] + own for of_author, own in zip(pair(authors), pair(len(whose)), strict=True)
        )
        low, high = spearman(left[:, None], right[:, None], whose)[1]
        inside += low <= 6 / np.pi * np.arcsin(true / 2) <= high
    assert inside >= binom.ppf(0.001, RUNS, 0.95)
