"""The random numbers of PyTorch's CPU generator without PyTorch, and its seed from its state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.deltas.starts.twister import (
    before,
    draw,
    generator,
    generator_at,
    normal,
    normal_words,
    seed_in,
    skip,
    uniform,
    uniform_of_normal,
    untempered,
)


@pytest.mark.parametrize("seed", [0, 42, 3407, (1 << 31) + 7, (1 << 33) + 77])
def test_uniform_numbers_are_those_of_torch(seed):
    torch.manual_seed(seed)
    expected = torch.empty(1000).uniform_(-1, 1).numpy()
    np.testing.assert_array_equal(uniform(draw(generator(seed), 1000)), expected)


@pytest.mark.parametrize("count", [16, 4096, 4100, 3077])
def test_normal_numbers_are_those_of_torch_and_take_as_many_words(count):
    torch.manual_seed(5)
    torch.rand(3)
    expected, following = torch.empty(count).normal_().numpy(), torch.rand(4).numpy()
    source = generator(5)
    skip(source, 3)
    numbers = normal(draw(source, normal_words(count)))
    np.testing.assert_allclose(numbers, expected, atol=1e-6)
    np.testing.assert_array_equal((uniform(draw(source, 4)) + 1) / 2, following)
    full = (count - 16) // 16 * 16  # the last 16 may be drawn anew
    words = draw(generator(5), 3 + count)[3:]
    np.testing.assert_allclose(uniform_of_normal(numbers)[:full], uniform(words)[:full], atol=1e-5)


def test_a_state_gives_the_numbers_after_it_and_the_seed_and_place_before_it():
    source = generator(123_456_789)
    skip(source, 50_000)
    state = untempered(draw(source, 624))
    np.testing.assert_array_equal(draw(generator_at(state), 2000)[624:], draw(source, 1376))
    seed, index = seed_in(before(state, 60_000))
    assert (seed, 60_000 - index - 624) == (123_456_789, 50_000)
    assert seed_in(before(state, 49_000)) is None
