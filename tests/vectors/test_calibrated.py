"""The background among pairs that it was not made of: a share of 1 % is reached by 1 %, a share of 10 % by 10 %."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from indexer.vectors.background import FEWEST_PAIRS, Background


@pytest.mark.parametrize("draw", ["normal", "heavy tail", "two heaps"])
def test_left_out_pairs_reach_a_share_as_often_as_it_says(draw):
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
