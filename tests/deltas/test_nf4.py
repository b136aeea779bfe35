"""Models made from a base that had been rounded to NF4: the rounding's error is recognised, and is no change.

The values of NF4 are made here once more from the format's definition (QLoRA, arXiv 2305.14314, appendix E; dynamic
8-bit type: arXiv 2110.02861), by the nearest of all levels; bitsandbytes is asked where it is installed.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from indexer.checkpoints.architectures.layout import Matrix, Rows
from indexer.deltas import nf4, rounding
from indexer.deltas.rounding import RoundingChoice
from indexer.deltas.vectorise import vectorise
from indexer.names import DeltaKey
from indexer.records.identity import Spec, Unit
from indexer.sources.registry import ModelRef
from tests.deltas import made

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Quantiles of the normal distribution: QLoRA, appendix E.
LEVELS = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip


def dynamic_levels() -> np.ndarray:
    """A sign, e leading zeros of an exponent in tens, and the rest of 7 bits as a fraction of [.1, 1]."""
    positive = [
        10.0 ** -(6 - bits) * (0.1 + 0.9 * (number + 0.5) / 2**bits) for bits in range(7) for number in range(2**bits)
    ]
    return np.array(sorted([0.0, 1.0, *positive, *(-level for level in positive)]))


def nearest(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    return levels[np.abs(values[..., None] - levels).argmin(-1)]


def rounded_to_nf4(weight: torch.Tensor, *, double: bool) -> torch.Tensor:
    """(out, in) float32 after quantisation and dequantisation, in NumPy and double precision."""
    values = weight.float().numpy().astype(np.float64).ravel()
    blocks = np.split(values, range(64, len(values), 64))
    scales = np.array([np.abs(block).max() for block in blocks])
    codes = [nearest(block / scale, LEVELS) for block, scale in zip(blocks, scales, strict=True)]
    if double:
        mean, parts = scales.mean(), []
        for part in np.split(scales - scales.mean(), range(256, len(scales), 256)):
            parts.append(nearest(part / np.abs(part).max(), dynamic_levels()) * np.abs(part).max())
        scales = np.concatenate(parts) + mean
    rounded = np.concatenate([code * scale for code, scale in zip(codes, scales, strict=True)])
    return torch.tensor(rounded.reshape(weight.shape), dtype=FP32)


def stored(weight: torch.Tensor, *others: torch.Tensor, transposed: bool = False):
    """A base that holds a matrix, or several that are fused in one tensor."""
    parts = [weight, *others]
    total, start, matrices = sum(len(tensor) for tensor in parts), 0, []
    for number, tensor in enumerate(parts):
        rows = Rows(1, total, start, start + len(tensor)) if others else None
        key = DeltaKey("", 0, ("query", "key", "value")[number])
        matrices.append(Matrix(key, "t", tuple(tensor.shape), transposed, rows))
        start += len(tensor)
    weights = {matrix.key: tensor for matrix, tensor in zip(matrices, parts, strict=True)}
    layout = SimpleNamespace(by_key={matrix.key: matrix for matrix in matrices}, by_tensor={"t": matrices})
    return SimpleNamespace(layout=layout, scales={}, matrix=weights.__getitem__), [matrix.key for matrix in matrices]


@pytest.mark.parametrize("double", [False, True], ids=["nf4", "nf4 double"])
@pytest.mark.parametrize("shape", [(96, 128), (30, 100), (7, 33)], ids=str)
def test_values_are_those_of_the_definition(double, shape):
    torch.manual_seed(3)
    weight = torch.randn(shape) * torch.rand(shape[0], 1)
    base, (key,) = stored(weight)
    expected = rounded_to_nf4(weight, double=double)
    values = nf4.on_grid(base, key, None, first=None, double=double)
    assert torch.allclose(values, expected, atol=1e-6)
    lines = np.array([0, 2, 5])
    for _ in range(2):  # computed, and remembered
        assert torch.equal(nf4.on_grid(base, key, lines, first=None, double=double), values[lines])
    base, (key,) = stored(weight, transposed=True)
    assert torch.equal(nf4.on_grid(base, key, lines, first=None, double=double), values[:, lines])


def test_a_fused_module_was_quantised_whole():
    torch.manual_seed(4)
    parts = [torch.randn(32, 64) * size for size in (1, 2, 5)]
    base, keys = stored(*parts)
    expected = rounded_to_nf4(torch.cat(parts), double=True).split(32)
    for key, part in zip(keys, expected, strict=True):
        assert torch.allclose(nf4.on_grid(base, key, None, first=None, double=True), part, atol=1e-6)


def test_values_are_those_of_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(5)
    assert torch.equal(nf4.dynamic_levels(), functional.create_dynamic_map(signed=True))
    for dtype in (BF16, FP16, FP32):
        weight = (0.03 * torch.randn(256, 512)).to(dtype)
        for double in (False, True):
            codes, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=double)
            expected = functional.dequantize_4bit(codes, state)
            base, (key,) = stored(weight)
            values = nf4.on_grid(base, key, None, first=None, double=double).to(dtype)
            # On processors it rounds scales to 16 bits first: one in a thousand is at the next level.
            assert float((values != expected).float().mean()) < (0.005 if double else 1e-9)


def lora(tensors: made.Tensors, size: float, rank: int = 4) -> made.Tensors:
    generator = torch.Generator().manual_seed(9)
    return {
        name: size
        * torch.randn(len(tensor), rank, generator=generator)
        @ torch.randn(rank, tensor.shape[1], generator=generator)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("double", [False, True], ids=["nf4", "nf4 double"])
@pytest.mark.parametrize(
    ("stored_as", "first", "saved"), [(BF16, BF16, BF16), (BF16, BF16, FP16), (FP32, BF16, BF16), (FP16, FP16, FP32)]
)
def test_what_was_learnt_on_a_dequantised_base_is_the_delta(tmp_path, double, stored_as, first, saved):
    weights = made.cast(made.weights(), stored_as)
    base = made.base_of(tmp_path, weights)
    noisy = {name: rounded_to_nf4(tensor.to(first), double=double).to(saved) for name, tensor in weights.items()}
    learnt = lora(weights, 2e-4)
    tuned = {name: (tensor.float() + learnt[name]).to(saved) for name, tensor in noisy.items()}
    record = made.record_of(made.save(tmp_path / "tuned", tuned), base)
    assert record.base_grid == ("nf4 double" if double else "nf4")
    for delta, (name, tensor) in zip(record.deltas, learnt.items(), strict=True):
        error = float((tuned[name].float() - weights[name].float() - tensor).norm())  # of NF4, and of the saved dtype
        exact = tuned[name].float() - noisy[name].float()
        assert delta.norm == pytest.approx(float(exact.norm()), rel=1e-3)
        assert error > 4 * delta.norm
        if saved != BF16:
            assert delta.energy > 0.99  # rank 4, where the error of NF4 has full rank


def test_a_dequantised_copy_is_a_copy_and_says_so(tmp_path):
    weights = made.cast(made.weights(), BF16)
    base = made.base_of(tmp_path, weights)
    copy = {name: rounded_to_nf4(tensor, double=False).to(BF16) for name, tensor in weights.items()}
    record = made.record_of(made.save(tmp_path / "copy", copy), base)
    assert (record.is_copy, record.base_grid) == (True, "nf4")


def test_matrices_that_the_copy_left_in_16_bits_are_compared_with_the_base(tmp_path):
    weights = made.cast(made.weights(), BF16)
    base = made.base_of(tmp_path, weights)
    mixed = {name: rounded_to_nf4(tensor, double=True).to(BF16) if "query" in name or "dense" in name else tensor
             for name, tensor in weights.items()}  # fmt: skip
    record = made.record_of(made.save(tmp_path / "mixed", mixed), base)
    assert [delta.norm for delta in record.deltas] == [0.0] * 12
    assert record.base_grid == "nf4 double"


@pytest.mark.parametrize("size", [0.0, 1e-4, 1e-3, 4e-3, 1e-2, 4e-2])
def test_other_changes_are_never_taken_for_a_grid(size):
    weights = made.weights(64, seed=5)
    for dtype in (BF16, FP16, FP32):
        choice = RoundingChoice()
        for name, tensor in made.changed(weights, size).items():
            before = weights[name].to(dtype)
            base, (key,) = stored(before)

            def grid(first, kind, base=base, key=key):
                return nf4.on_grid(base, key, None, first=first, double=kind == "nf4 double")

            assert torch.equal(choice.reference(tensor.to(dtype), before, grid), before.float())
        assert choice.grid == ""


@pytest.mark.parametrize("first", [None, BF16])
@pytest.mark.parametrize("double", [False, True], ids=["nf4", "nf4 double"])
def test_the_quick_look_finds_what_the_comparison_with_all_grids_finds(monkeypatch, first, double):
    """One grid says whether to compare all: also for a large change, uneven weights, and another grid than that one."""
    generator = torch.Generator().manual_seed(11)
    grids: dict[bool, list[str]] = {True: [], False: []}
    for size in (0.0, 0.02, 0.05, 0.07, 0.08, 0.09, 0.12, 0.3):  # of the weights' size; the error of NF4 is .09
        for tail in (1, 5):
            weight = torch.randn(96, 128, generator=generator)
            weight = 0.05 * weight * weight.abs() ** (tail - 1) * (0.2 + torch.rand(96, 1, generator=generator))
            base, (key,) = stored(weight)
            noisy = rounded_to_nf4(weight if first is None else weight.to(first), double=double)
            learnt = torch.randn(96, 128, generator=generator) * size * weight.std()
            for quick in (True, False):
                with monkeypatch.context() as patch:
                    if not quick:
                        patch.setattr(rounding, "_MOST_PLAUSIBLE", float("inf"))
                    choice = RoundingChoice()
                    choice.reference(
                        (noisy + learnt).to(BF16), weight,
                        lambda first, kind, base=base, key=key: nf4.on_grid(
                            base, key, None, first=first, double=kind == "nf4 double"
                        ),
                    )  # fmt: skip
                grids[quick].append(choice.grid)
    assert grids[True] == grids[False]
    assert grids[True].count("nf4 double" if double else "nf4") >= 6
    assert "" in grids[True]


def test_a_grid_is_looked_for_in_few_matrices():
    weights, calls = made.weights(64, seed=6), []
    choice = RoundingChoice()
    for number in range(20):
        for name, tensor in made.changed(weights, 6e-3, seed=number).items():
            choice.reference(tensor, weights[name], lambda *pair, tensor=weights[name]: calls.append(pair) or tensor)
    assert 0 < len(calls) <= 6 * 6


@pytest.mark.slow
def test_a_sample_of_a_model_saved_by_transformers(tmp_path):
    """Llama, in bfloat16: a base, its dequantised copy with merged factors, and what a sample and all of it give."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=64, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(BF16)
    model.save_pretrained(tmp_path / "base")
    base = base_of_folder(tmp_path / "base", tmp_path / "base.safetensors")
    blocks = {
        name: tensor for name, tensor in load_file(tmp_path / "base/model.safetensors").items() if "_proj" in name
    }
    learnt = lora(blocks, 3e-4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in blocks:
                noisy = rounded_to_nf4(blocks[name], double=True).to(BF16).float()
                parameter.copy_((noisy + learnt[name]).to(BF16))
    model.save_pretrained(tmp_path / "tuned")
    exact = float(torch.stack([tensor.norm() for tensor in learnt.values()]).norm())
    for sample in (False, True):
        unit = Unit(
            model=ModelRef("tuned", folder=tmp_path / "tuned"), commit="c" * 40, base=made.BASE,
            base_commit=made.BASE_COMMIT, relation="finetune", spec=Spec(sample=sample),
        )  # fmt: skip
        record = vectorise(unit, base)
        assert record.base_grid == "nf4 double"
        assert record.is_sampled == sample
        assert record.norm == pytest.approx(exact, rel=0.1 if sample else 0.02)


def base_of_folder(folder, path):
    from indexer.checkpoints.checkpoint import open_checkpoint
    from indexer.deltas.base import store_base

    return store_base(open_checkpoint(ModelRef("base", folder=folder)), made.BASE, made.BASE_COMMIT, path)
