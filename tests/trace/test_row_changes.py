"""Rows of an embedding that training moved, told from those that only decayed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from indexer.records import tokens
from indexer.records.tokens import (
    EXACT,
    FEWEST_WORD_ROWS,
    FROZEN,
    MISSING,
    STATISTICAL,
    STRIPES,
    UNSURE,
    RowChanges,
    codes_of_sizes,
    sizes_of,
    spread_stripes,
    token_rows,
    token_stripes,
)

VOCABULARY, WIDTH = 400, 64


def row_changes(rows, base, dtype: str = "float32", *, tied: bool = False) -> RowChanges | None:
    """The changes alone."""
    changes = tokens.row_changes(rows, base, dtype, tied=tied)
    return None if changes is None else changes[0]


def trained(
    steps: dict[int, list[int]], *, decay: float = 0.01, rate: float = 1e-3, number: int = 200, optimiser: str = "adamw"
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The base's rows and those after training in float32; ``steps``: the tokens that each step meets.

    The rate falls linearly to zero, as is usual, so that the last steps change least.
    """
    torch.manual_seed(0)
    table = torch.nn.Embedding(VOCABULARY, WIDTH)
    table.weight.data *= 0.05
    base = table.weight.detach().clone().numpy()
    optimizer = {
        "adamw": lambda: torch.optim.AdamW(table.parameters(), lr=rate, weight_decay=decay),
        "sgd": lambda: torch.optim.SGD(table.parameters(), lr=rate, momentum=0.9),
    }[optimiser]()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / number)
    target = torch.randn(WIDTH)
    for step in range(number):
        optimizer.zero_grad()
        tokens = torch.tensor(steps.get(step, [0]))
        (table(tokens) @ target).square().mean().backward()
        optimizer.step()
        schedule.step()
    return base, table.weight.detach().numpy()


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("decay", [0.0, 0.001, 0.01])
def test_rows_that_were_met_are_told_to_the_last_one(decay: float, optimiser: str) -> None:
    met = {step: [step % 90, 100 + step % 7] for step in range(199)} | {199: [300, 301]}  # two only in the last step
    base, after = trained(met, decay=decay, optimiser=optimiser)
    changes = row_changes(after, base)
    assert changes is not None
    expected = np.zeros(VOCABULARY, bool)
    expected[[token for tokens in met.values() for token in tokens]] = True
    np.testing.assert_array_equal((changes.codes != 0) & (changes.codes != UNSURE), expected)
    assert (changes.codes == UNSURE).mean() <= 0.03  # a number of them lies a little apart
    assert changes.kind == EXACT


def test_decay_is_measured() -> None:
    base, after = trained({}, decay=0.1)
    changes = row_changes(after, base)
    assert changes is not None
    assert 1 - changes.scale == pytest.approx(0.1 * 1e-3 * 100.5, rel=0.05)


def test_nothing_is_certain_where_rounding_hides_changes() -> None:
    met = {step: [step % 90, 100 + step % 7] for step in range(199)} | {199: [300, 301]}
    base, after = trained(met, decay=0.0, rate=2e-5)
    rounded = torch.from_numpy(after).bfloat16().float().numpy()
    changes = row_changes(rounded, base, "bfloat16")
    assert changes is not None
    assert changes.kind == STATISTICAL
    assert (changes.codes[110:300] == 0).all()  # never met: none is called met
    assert (changes.codes[[0, 1, 2]] > 0).all()


@pytest.mark.parametrize("decay", [0.0, 0.001])
@pytest.mark.parametrize("size", [3e-11, 1e-10, 3e-10, 1e-9])
def test_steps_that_move_the_smallest_numbers_alone_leave_nothing_certain(size: float, decay: float) -> None:
    """The last steps of a cosine schedule move rows by less than the ulps of all but a few numbers."""
    base, after = trained({step: [step % 90, 100 + step % 7] for step in range(200)}, decay=decay)
    changes = row_changes(after, base)
    assert changes is not None
    assert changes.kind == EXACT
    assert (changes.codes[200:] == UNSURE).mean() < 0.02
    signs = np.random.default_rng(5).choice(np.float32([-1, 1]), (60, WIDTH))
    after[200:260] += np.float32(size) * signs
    changes = row_changes(after, base)
    assert changes is not None
    assert changes.kind == STATISTICAL
    assert (changes.codes[260:] == 0).mean() > 0.98
    if decay == 0:  # whatever changed shows
        is_changed = (after[200:260] != base[200:260]).any(axis=1)
        assert (changes.codes[200:260][is_changed] > 0).all()


def test_decay_alone_is_seldom_taken_for_small_steps() -> None:
    kinds, unsure = [], []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        base = (draw.standard_normal((1088, 64)) * 0.05).astype(np.float32)
        after = base.copy()
        for step in range(300):
            after *= np.float32(1 - 10.0 ** draw.uniform(-8, -5) * (1 - step / 300))
        after[:200] += (draw.standard_normal((200, 64)) * 1e-4).astype(np.float32)
        changes = row_changes(after, base)
        assert changes is not None
        kinds.append(changes.kind)
        unsure.append(float((changes.codes[200:] == UNSURE).mean()))
    assert kinds.count(EXACT) >= 58
    assert np.mean(unsure) < 0.02


def test_only_decay_is_frozen_and_other_weights_are_none() -> None:
    base, after = trained({step: [0] for step in range(200)})
    changes = row_changes(after[1:], base[1:])
    assert changes is not None
    assert (changes.kind, int(changes.codes.max())) == (FROZEN, 0)
    assert row_changes(np.random.default_rng(1).normal(size=base.shape), base) is None
    assert row_changes(base * np.nan, base) is None


def test_of_a_tied_head_what_lies_off_the_common_directions_counts() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(size=(VOCABULARY, WIDTH)) * 0.05
    common = rng.normal(size=(3, WIDTH))
    change = rng.normal(size=(VOCABULARY, 3)) @ common * 0.01
    met = rng.choice(VOCABULARY, 120, replace=False)
    change[met] += rng.normal(size=(120, WIDTH)) * 0.01
    changes = row_changes(base + change, base, tied=True)
    assert changes is not None
    assert (changes.kind, changes.is_share) == (STATISTICAL, True)
    is_met = np.isin(np.arange(VOCABULARY), met)
    assert changes.codes[is_met].min() > np.median(changes.codes[~is_met])


def test_a_trimmed_merge_has_no_certain_rows() -> None:
    """A merge that keeps the largest changes alone (TIES) resets others to the base's, whole rows among them."""
    base, after = trained({step: [step % 90, 100 + step % 7] for step in range(200)}, decay=0.0)
    change = after - base
    bound = np.quantile(np.abs(change[change != 0]), 0.8)
    changes = row_changes(base + np.where(np.abs(change) >= bound, change, 0), base)
    assert changes is not None
    assert changes.kind == STATISTICAL


def test_codes_stand_for_sizes() -> None:
    sizes = np.array([1e-7, 3e-4, 0.5, 7.0])
    np.testing.assert_allclose(sizes_of(codes_of_sizes(sizes)), sizes, rtol=2 ** (1 / 16) - 1 + 1e-9)
    sizes_read = sizes_of(np.array([0, UNSURE, MISSING], np.uint8))
    assert sizes_read[:2].tolist() == [0, 0]
    assert np.isnan(sizes_read[2])


def test_the_rows_that_are_read() -> None:
    rows = token_rows(30_522)
    assert len(rows) == 1_304
    assert {103, 2_500, 30_521} <= set(rows.tolist())
    assert len(token_rows(128_256)) == 2_476
    assert token_rows(1000).tolist() == list(range(1000))
    for size in (1087, 1324, 1325, 1600, 2000, 4096, 30_522, 256_000):
        stripes, read = token_stripes(size), token_rows(size)
        assert all(one.stop < other.start for one, other in pairwise(stripes))
        assert len(np.unique(read)) == len(read)
        assert 0 <= read.min() <= read.max() < size
        of_row = spread_stripes(size)
        assert of_row.shape == read.shape
        assert len(np.unique(of_row[of_row >= 0])) <= STRIPES
        assert (of_row >= 0).any() == (len(stripes) > 1)


def test_a_base_and_a_small_vocabulary_have_rows_of_common_words() -> None:
    """The part that is read whole begins where frequency-sorted vocabularies have words, not at special tokens."""
    of_row, rows = spread_stripes(4096), token_rows(4096)
    assert set(range(256, 256 + FEWEST_WORD_ROWS)) <= set(rows[of_row < 0].tolist())
    assert set(range(1907, 1907 + FEWEST_WORD_ROWS)) <= set(token_rows(30_522)[spread_stripes(30_522) < 0].tolist())
