"""Ranks at a share of the energy, by hand and against counting with whole numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.records.record import ranks_at

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


@pytest.mark.parametrize(
    ("values", "threshold", "expected"),
    [
        ([2, 1, 1, 1, 1], 0.5, 1),
        ([2, 1, 1, 1, 1], 0.51, 2),
        ([1, 1, 1, 1], 0.5, 2),
        ([1, 1, 1, 1], 0.76, 4),
        ([1, 1, 1, 1], 1.0, 4),
        ([3, 0, 0], 1.0, 1),
        ([0, 0, 0], 0.5, 0),
        ([], 0.5, 0),
        ([1e30, 1e30], 0.9, 2),
        ([1e-30, 1e-30], 0.9, 2),
        ([5], 0.01, 1),
    ],
)
def test_by_hand(values: list[float], threshold: float, expected: int) -> None:
    assert ranks_at(np.array(values, dtype=np.float32), [threshold]) == [expected]


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, math.nan])
def test_no_such_share(threshold: float) -> None:
    with pytest.raises(ValueError, match="share of energy"):
        ranks_at(np.ones(3), [threshold])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.sampled_from(THRESHOLDS))
def test_against_counting(numbers: list[int], threshold: float) -> None:
    numbers.sort(reverse=True)
    total, held, expected = sum(n * n for n in numbers), 0, 0
    while total and held < threshold * total * (1 - 1e-12):
        held += numbers[expected] ** 2
        expected += 1
    assert ranks_at(np.array(numbers), [threshold]) == [expected]


@pytest.mark.parametrize(
    ("kept", "norm", "threshold", "expected"),
    [
        ([2, 1], 3.0, 0.4, 1),
        ([2, 1], 3.0, 0.5, 2),
        ([2, 1], 3.0, 0.6, None),
        ([0, 0], 0.0, 0.5, 0),
        ([], 1.0, 0.5, None),
        ([3], 3.0, 1.0, 1),
    ],
)
def test_where_only_the_largest_are_kept(kept, norm, threshold, expected):
    assert ranks_at(np.array(kept, dtype=np.float32), [threshold], norm) == [expected]
