"""Intervals over authors: the formulas, the edges, and (slow) how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, t

from indexer.vectors.table import VectorTable
from query.questions.purity.labels import LabelledOrder
from query.questions.purity.study import means_without, purity
from query.shared.statistics.authors import independent_changes, uncertainty, units_of, wilson
from query.shared.statistics.neighbours import leave_out, neighbour_order
from tests.purity.loops import Models

pytestmark = pytest.mark.study

AUTHORS = (5, 7, 10, 20, 50)


def interval(sums, sizes):
    """Of the mean over all models; ``sums`` and ``sizes`` by author."""
    weights, mean = sizes / sizes.sum(), sums.sum() / sizes.sum()
    changes = independent_changes(weights, sums / sizes.sum(), mean)
    return uncertainty(weights, changes).of_share(mean, sizes.sum())


def test_equal_authors_are_the_t_interval_of_their_means():
    rng = np.random.default_rng(0)
    for authors in (5, 8, 30):
        means = rng.random(authors)
        weights = np.full(authors, 1 / authors)
        found = uncertainty(weights, independent_changes(weights, means / authors, means.mean()))
        assert found.error == pytest.approx(means.std(ddof=1) / np.sqrt(authors))
        assert found.quantile == pytest.approx(t.ppf(0.975, authors - 1))


def test_degrees_of_freedom_are_those_of_the_matrix():
    rng = np.random.default_rng(1)
    for _ in range(20):
        weights = rng.pareto(1.0, size=12) + 0.01
        weights /= weights.sum()
        residuals = np.eye(12) - np.outer(np.ones(12), weights)
        form = residuals.T @ np.diag(weights**2 / (1 - 2 * weights + weights @ weights)) @ residuals
        freedom = max(np.trace(form) ** 2 / np.trace(form @ form), 1)
        assert uncertainty(weights, np.zeros(12)).quantile == pytest.approx(t.ppf(0.975, freedom), rel=1e-6)


def test_the_variance_is_right_where_authors_vary_alike():
    """Authors of very unequal size: the expected squared error is what the mean really varies by."""
    rng = np.random.default_rng(2)
    weights = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    means = rng.normal(size=(20_000, 6))
    squares = [uncertainty(weights, independent_changes(weights, weights * m, weights @ m)).error ** 2 for m in means]
    assert np.mean(squares) == pytest.approx(weights @ weights, rel=0.05)


def test_all_right_is_not_certain():
    """Before: 1 to 1, whatever the number of models."""
    few, many = interval(np.full(6, 3.0), np.full(6, 3.0)), interval(np.full(6, 300.0), np.full(6, 300.0))
    assert few[0] < 0.8
    assert 0.99 < many[0] < 1
    assert few[1] == many[1] == 1
    assert interval(np.zeros(6), np.full(6, 3.0))[0] == 0
    assert interval(np.zeros(6), np.full(6, 3.0))[1] == pytest.approx(1 - few[0])


def test_ends_stay_inside_and_hold_the_mean():
    rng = np.random.default_rng(3)
    for _ in range(500):
        sizes = np.ceil(rng.pareto(0.8, size=rng.integers(5, 12)) + 0.01)
        sums = sizes * rng.choice([0, 0.3, 0.9, 1], size=len(sizes))
        low, high = interval(sums, sizes)
        assert 0 <= low <= sums.sum() / sizes.sum() <= high <= 1


def test_one_author_with_nearly_all_models_is_nearly_no_evidence():
    low, high = interval(np.array([800.0, 1, 1, 0, 1]), np.array([1000.0, 2, 2, 2, 2]))
    assert high - low > 0.6


def test_losses_have_no_upper_end():
    found = uncertainty(np.full(5, 0.2), np.array([0.1, -0.1, 0.2, -0.1, -0.1]))
    low, high = found.of_loss(0.5)
    assert 0 < low < 0.5 < high
    assert low * high == pytest.approx(0.25)
    assert found.of_loss(0.0) == (0.0, 0.0)


def test_wilson_at_its_usual_quantile_is_that_of_scipy():
    for right, count in ((0, 7), (3, 7), (7, 7), (40, 50)):
        expected = binomtest(right, count).proportion_ci(method="wilson")
        assert wilson(right / count, count) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_authors_beyond_thirty_are_grouped():
    authors = [f"a{row % 100}" for row in range(1000)] + ["large"] * 500
    units = units_of(authors, 30)
    assert len(set(units.tolist())) == 30
    by_author = {}
    for author, unit in zip(authors, units.tolist(), strict=True):
        by_author.setdefault(author, set()).add(unit)
    assert all(len(found) == 1 for found in by_author.values())
    assert units_of(["b", "a", "b"], 30).tolist() == [0, 1, 0]


@pytest.mark.parametrize("k", [None, 5, 30])
@pytest.mark.parametrize("most_labels", [1, 2])
@pytest.mark.parametrize("is_cross", [False, True])
def test_purity_without_an_author_is_that_of_the_others(is_cross, most_labels, k):
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(60, 5)).astype(np.float32)
    authors = rng.integers(0, 6, size=60)
    authors[:3] = 6  # they alone share "z"
    labels = [frozenset(rng.choice(list("abcd"), most_labels, replace=False)) for _ in range(57)]
    labels = [frozenset("z")] * 3 + labels
    excluded = authors if is_cross else np.arange(60)
    found = means_without(_trial(vectors, excluded, labels, k), authors)
    for author in range(7):
        stays = np.flatnonzero(authors != author)
        rest = _trial(vectors[stays], excluded[stays], [labels[row] for row in stays], k)
        assert found[author] == rest.evaluate(rest.sweep_kinds)[2].mean()


def test_purity_is_undefined_without_another_author():
    trial = _trial(np.eye(3, dtype=np.float32), np.array([0, 0, 1]), [frozenset("a")] * 3, None)
    assert means_without(trial, np.array([0, 0, 1])) == [None, None]


def _trial(vectors, excluded, labels, k):
    order = neighbour_order(VectorTable(vectors))
    groups = np.unique(excluded, return_inverse=True)[1]
    leave_out(order, groups)
    return LabelledOrder(order, groups, labels, k)


# ---- slow: how often the truth is inside ----


def drawn(sizes, authors, mean, alike, rng):
    """Sums and sizes by author; ``alike``: the correlation of two models of one author."""
    if sizes == "equal":
        number = np.full(authors, 6)
    elif sizes == "geometric":
        number = rng.geometric(0.2, authors)
    else:
        number = np.minimum(2 * (rng.pareto(1.2, authors) + 1).astype(int), 200)
    effects = rng.beta(mean * (1 / alike - 1), (1 - mean) * (1 / alike - 1), size=authors)
    return rng.binomial(number, effects).astype(float), number.astype(float)


def bootstrapped(sums, sizes, rng):
    """As it was: percentiles of the mean over authors drawn again."""
    counts = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=300).astype(float)
    low, high = np.percentile(counts @ sums / (counts @ sizes), [2.5, 97.5])
    return low, high


@pytest.mark.parametrize("authors", AUTHORS)
def test_coverage(authors, capsys):
    """Author effects from weak to strong; sizes from equal to one author who has most of the models."""
    rng = np.random.default_rng(authors)
    held, before, lengths = {}, [], []
    for sizes in ("equal", "geometric", "power law"):
        for mean in (0.3, 0.6, 0.8, 0.9):
            for alike in (0.05, 0.2, 0.3):
                cell = []
                for turn in range(300):
                    sums, numbers = drawn(sizes, authors, mean, alike, rng)
                    low, high = interval(sums, numbers)
                    cell.append(low <= mean <= high)
                    lengths.append(high - low)
                    if turn < 60:
                        old = bootstrapped(sums, numbers, rng)
                        before.append(old[0] <= mean <= old[1])
                held[sizes, mean, alike] = np.mean(cell)
    with capsys.disabled():
        print(f"\n{authors} authors: {np.mean(list(held.values())):.3f} covered (least {min(held.values()):.3f}), "
              f"mean length {np.mean(lengths):.2f}; bootstrap {np.mean(before):.3f}")  # fmt: skip
    assert np.mean(list(held.values())) >= 0.93
    for cell, share in held.items():
        assert share >= 0.93 - 2.6 * np.sqrt(0.93 * 0.07 / 300), cell
    if authors <= 10:
        assert np.mean(before) < 0.9


@pytest.mark.parametrize("authors", AUTHORS)
def test_coverage_of_losses(authors):
    rng = np.random.default_rng(authors)
    held = []
    for _ in range(600):
        number = rng.geometric(0.2, authors)
        sums = np.array(
            [
                rng.gamma(2, effect / 2, size=n).sum()
                for n, effect in zip(number, rng.gamma(4, 0.25, authors), strict=True)
            ]
        )
        weights, mean = number / number.sum(), sums.sum() / number.sum()
        low, high = uncertainty(weights, independent_changes(weights, sums / number.sum(), mean)).of_loss(mean)
        held.append(low <= 1.0 <= high)
    assert np.mean(held) >= 0.93


def populace(authors, rng):
    """Authors with a manner and a care of their own, two to six of six datasets, sweeps of any length."""
    centres = np.random.default_rng(5).normal(size=(6, 24))
    vectors, labels, names = [], [], []
    for author in range(authors):
        manner = rng.normal(size=24) * rng.choice([0.3, 1.2, 2.5])
        noise = rng.choice([0.6, 1.5])
        for dataset in rng.choice(6, size=rng.integers(2, 7), replace=False):
            for _ in range(rng.geometric(0.4)):
                vectors.append(centres[dataset] + manner + noise * rng.normal(size=24))
                labels.append(f"d{dataset}")
                names.append(f"a{author}")
    return Models(np.array(vectors), labels, names)


@pytest.mark.parametrize("authors", AUTHORS)
def test_coverage_of_purity_when_other_authors_upload(authors, capsys):
    """New populations: authors affect each other's purity. Scores taken as given have half the standard error."""
    rng = np.random.default_rng(authors)
    results = [purity(populace(authors, rng), draws=1) for _ in range(60 if authors == 50 else 150)]
    for form in ("plain", "cross-author"):
        scores = [one if form == "plain" else one.cross_author for one in results]
        scores = [one for one in scores if one.ci_low is not None]
        truth = np.mean([one.purity for one in scores])
        covered = np.mean([one.ci_low <= truth <= one.ci_high for one in scores])
        length = np.mean([one.ci_high - one.ci_low for one in scores])
        with capsys.disabled():
            print(f"\n{authors} authors, {form}: {covered:.3f} covered, mean length {length:.2f}")
        assert covered >= 0.93
