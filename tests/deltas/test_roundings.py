"""Deltas of checkpoints that went through narrow dtypes, against subtraction from what known chains leave."""

from __future__ import annotations

import itertools

import pytest
import torch

from indexer.deltas.rounding import RoundingChoice, narrowest_dtype
from tests.deltas import made

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CHAINS = [
    chain for length in (1, 2, 3) for chain in itertools.product((BF16, FP16, FP32), repeat=length)
    if all(first != second for first, second in itertools.pairwise(chain))
]  # fmt: skip


def name(value):
    return value if isinstance(value, str) else "-".join(str(dtype).removeprefix("torch.") for dtype in value)


def flushed(tensors: made.Tensors) -> made.Tensors:
    """As processors that know no subnormal numbers leave them."""
    return {name: torch.where(tensor.abs() < torch.finfo(FP16).tiny, 0, tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16], ids=str)
@pytest.mark.parametrize("chain", CHAINS, ids=name)
def test_a_base_that_went_through_any_chain_of_casts_is_a_zero_delta(tmp_path, dtype, chain):
    weights = made.cast(made.weights(), dtype)
    base = made.base_of(tmp_path, weights)
    record = made.record_of(made.save(tmp_path / "copy", made.cast(weights, *chain)), base)
    assert [delta.norm for delta in record.deltas] == [0.0] * 12
    assert record.is_copy


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("after", [(FP32,), (BF16,), (BF16, FP32)], ids=name)
def test_flushed_subnormal_numbers_are_no_change(tmp_path, dtype, after):
    weights = made.cast(made.weights(), dtype)
    base = made.base_of(tmp_path, weights)
    copy = made.cast(flushed(made.cast(weights, FP16)), *after)
    assert made.record_of(made.save(tmp_path / "copy", copy), base).is_copy


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("chain", [(), (BF16,), (FP16,), (BF16, FP16), (FP16, BF16)], ids=name)
@pytest.mark.parametrize("size", [3e-5, 3e-4])
def test_what_was_learnt_after_the_roundings_is_the_delta(tmp_path, dtype, chain, size):
    weights = made.cast(made.weights(), dtype)
    base = made.base_of(tmp_path, weights)
    start = made.cast(weights, *chain, FP32)
    tuned = made.changed(start, size, only="layer.0")
    record = made.record_of(made.save(tmp_path / "tuned", tuned), base)
    for delta, (tensor, after) in zip(record.deltas[:6], list(tuned.items())[:6], strict=True):
        exact = float((after - start[tensor]).norm())
        assert delta.norm == pytest.approx(exact, rel=2e-3), (tensor, chain)
    # The layer that was left alone was rounded and no more, whatever the trained one says of itself.
    assert [delta.norm for delta in record.deltas[6:]] == [0.0] * 6


@pytest.mark.parametrize("saved", [(FP16,), (FP16, FP32), (FP16, BF16)], ids=name)
def test_layers_next_to_those_of_an_adapter_merged_in_float16_are_zero(tmp_path, saved):
    weights = made.cast(made.weights(), BF16)
    base = made.base_of(tmp_path, weights)
    merged = made.cast(made.changed(made.cast(weights, FP32), 1e-3, only="query"), *saved)
    record = made.record_of(made.save(tmp_path / "merged", merged), base)
    assert {delta.key.family for delta in record.deltas if delta.norm} == {"query"}


@pytest.mark.parametrize("size", [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("seed", range(3))
def test_a_fine_tune_in_float32_is_never_taken_for_rounding(size, seed):
    weights = made.weights(64, seed=seed + 10)
    choice = RoundingChoice()
    for tensor, after in made.changed(weights, size, seed=seed).items():
        reference = choice.reference(after, weights[tensor])
        assert torch.equal(reference, weights[tensor]), tensor
    assert choice.widest == "float32"


@pytest.mark.parametrize("size", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("stored", [BF16, FP32], ids=str)
def test_a_fine_tune_in_bfloat16_keeps_every_step_it_made(size, stored):
    weights = made.weights(64, seed=20)
    choice = RoundingChoice()
    for tensor, start in made.cast(weights, BF16).items():
        after = (start.float() + size * torch.randn(start.shape, generator=torch.Generator().manual_seed(1))).to(BF16)
        reference = choice.reference(after.to(stored), weights[tensor])
        assert torch.equal(reference, start.float()), tensor
    assert choice.widest == "bfloat16"


def test_a_matrix_without_evidence_takes_the_likeliest_chain_and_later_ones_are_not_bound_by_it():
    weights = {name: tensor.float() for name, tensor in made.cast(made.weights(64), BF16).items()}
    choice = RoundingChoice()
    first, *others = weights
    assert torch.equal(choice.reference(weights[first] + 1, weights[first]), weights[first])
    for tensor in others:
        through = weights[tensor].half().float()
        assert torch.equal(choice.reference(through, weights[tensor]), through)


def test_values_that_are_not_finite_are_kept_for_the_caller():
    base = made.weights(64)["encoder.layer.0.attention.self.query.weight"]
    broken = base.clone()
    broken[0, 0] = torch.nan
    reference = RoundingChoice().reference(broken, base)
    assert not (broken - reference).isfinite().all()


def test_the_narrowest_dtype_holds_every_value():
    values = torch.tensor([1.0, 1.5, 2.0**-20])
    assert narrowest_dtype(values) == BF16
    assert narrowest_dtype(torch.cat([values, torch.tensor([1 + 2.0**-10])])) == FP16
    assert narrowest_dtype(torch.cat([values, torch.tensor([1 + 2.0**-20])])) == FP32
    assert narrowest_dtype(values.double() + 2.0**-50) == torch.float64
