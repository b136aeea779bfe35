"""Adapters of mlx-lm, written to the definition: mlx-lm 0.32, tuner/lora.py, tuner/dora.py and lora.py.

LoRALinear.fuse: W + (scale · lora_bᵀ) @ lora_aᵀ with lora_a (in, r) and lora_b (r, out); DoRALinear.fuse scales the
rows of that to the lengths ``m``. ``scale`` is the scale itself; up to 0.14 it was multiplied by alpha/r.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.stacked import once
from indexer.errors import Skipped
from indexer.names import DeltaKey, ModelRef
from indexer.weights.adapter import adapter_plan, stated_base
from indexer.weights.checkpoint import open_checkpoint
from indexer.weights.checkpoint_files import choose
from tests.adapters.written import write_adapter

WIDTH, WIDE, NARROW = 12, 20, 6
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (NARROW, WIDTH), "self_attn.v_proj": (NARROW, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (WIDE, WIDTH), "mlp.up_proj": (WIDE, WIDTH),
    "mlp.down_proj": (WIDTH, WIDE),
}  # fmt: skip
QUERY, DOWN = DeltaKey("", 1, "query"), DeltaKey("", 1, "feedforward2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseMatrices:
    folder = tmp_path_factory.mktemp("base")
    generator = torch.Generator().manual_seed(0)
    save_file(
        {
            f"model.layers.{layer}.{name}.weight": torch.randn(shape, generator=generator)
            for layer in (0, 1)
            for name, shape in SHAPES.items()
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    checkpoint = open_checkpoint(ModelRef("org/base", folder=folder))
    return store_base(checkpoint, "org/base", "c" * 40, folder / "base.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapters.safetensors")
    save_file(tensors, folder / "0000100_adapters.safetensors")
    settings = {"model": "mlx-community/base-4bit", "num_layers": 1, "fine_tune_type": "lora"}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def changes(folder: Path, base: BaseMatrices) -> dict[DeltaKey, torch.Tensor]:
    checkpoint = open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")
    return {
        delta.key: dense(delta, base.matrix(delta.key)).matrix
        if isinstance(delta, WeightDelta)
        else delta.scale * (delta.b @ delta.a)
        for delta in deltas_on(checkpoint, base)
    }


def factors(rank: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        out, width = SHAPES[name]
        found[f"model.layers.1.{name}.lora_a"] = torch.randn(width, rank, generator=generator)
        found[f"model.layers.1.{name}.lora_b"] = torch.randn(rank, out, generator=generator)
    return found


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"rank": 3, "dropout": 0.0, "scale": 20.0}, 20.0),
        ({"rank": 3, "alpha": 16, "dropout": 0.0, "scale": 10.0}, 10.0 * 16 / 3),
    ],
)
def test_lora(tmp_path: Path, base: BaseMatrices, settings: dict[str, float], scale: float) -> None:
    tensors = factors()
    found = changes(write(tmp_path, tensors, lora_parameters=settings), base)
    assert set(found) == {QUERY, DOWN}
    for key, name in ((QUERY, "self_attn.q_proj"), (DOWN, "mlp.down_proj")):
        a, b = (tensors[f"model.layers.1.{name}.lora_{side}"] for side in "ab")
        torch.testing.assert_close(found[key], (scale * b.T) @ a.T, rtol=1e-4, atol=1e-4)


def test_dora(tmp_path: Path, base: BaseMatrices) -> None:
    tensors = factors() | {
        f"model.layers.1.{name}.m": torch.rand(SHAPES[name][0]) + 1 for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    folder = write(tmp_path, tensors, fine_tune_type="dora", lora_parameters={"rank": 3, "scale": 0.5})
    for key, name in ((QUERY, "self_attn.q_proj"), (DOWN, "mlp.down_proj")):
        a, b, m = (tensors[f"model.layers.1.{name}.{part}"] for part in ("lora_a", "lora_b", "m"))
        weight = base.matrix(key) + (0.5 * b.T) @ a.T
        expected = (m / weight.norm(dim=1))[:, None] * weight - base.matrix(key)
        torch.testing.assert_close(changes(folder, base)[key], expected, rtol=1e-4, atol=1e-4)


def test_full_matrices_and_the_files_that_are_chosen(tmp_path: Path, base: BaseMatrices) -> None:
    saved = {f"model.layers.1.{name}.weight": torch.randn(shape) for name, shape in SHAPES.items()}
    folder = write(tmp_path, saved | {"model.norm.weight": torch.ones(WIDTH)}, fine_tune_type="full")
    found = changes(folder, base)
    assert len(found) == len(SHAPES)
    expected = saved["model.layers.1.self_attn.q_proj.weight"] - base.matrix(QUERY)
    torch.testing.assert_close(found[QUERY], expected)
    checkpoint = open_checkpoint(ModelRef("a/b", folder=folder), relation="finetune")
    assert (checkpoint.kind, adapter_plan(checkpoint).kind) == ("adapter", "whole matrices")
    assert stated_base(checkpoint.adapter_config) == "mlx-community/base-4bit"
    names = ["adapter_config.json", "0000100_adapters.safetensors", "0000200_adapters.safetensors"]
    with pytest.raises(Skipped, match="none"):
        choose(names, "adapter")


def test_experts_are_passed_over(tmp_path: Path) -> None:
    experts = {"model.layers.1.mlp.switch_mlp.up_proj.lora_a": torch.ones(4, 3, WIDTH),
               "model.layers.1.mlp.switch_mlp.up_proj.lora_b": torch.ones(4, WIDE, 3)}  # fmt: skip
    settings = {"rank": 3, "scale": 1.0}
    folder = write(tmp_path, factors() | experts, lora_parameters=settings)
    plan = adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter"))
    assert plan.passed_over == ("factors of fused experts: 1",)
    assert len(plan.modules) == 2
    with pytest.raises(Skipped, match="only factors of fused experts"):
        adapter_plan(
            open_checkpoint(
                ModelRef("a/b", folder=write(tmp_path, experts, lora_parameters=settings)), relation="adapter"
            )
        )


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"fine_tune_type": "other", "lora_parameters": {}}, "fine_tune_type"),
        ({"lora_parameters": [1]}, "lora_parameters"),
        ({"lora_parameters": {"scale": "2"}}, "lora_parameters.scale"),
        ({"lora_parameters": {"scale": 1.0, "alpha": None}}, "lora_parameters.alpha"),
    ],
)
def test_malformed_ones(tmp_path: Path, config: dict[str, Any], word: str) -> None:
    checkpoint = open_checkpoint(ModelRef("a/b", folder=write(tmp_path, factors(), **config)), relation="adapter")
    with pytest.raises(Skipped, match=word):
        adapter_plan(checkpoint)


def test_a_pair_that_does_not_multiply(tmp_path: Path) -> None:
    tensors = factors() | {"model.layers.1.self_attn.q_proj.lora_b": torch.ones(2, WIDTH)}
    checkpoint = open_checkpoint(
        ModelRef("a/b", folder=write(tmp_path, tensors, lora_parameters={"scale": 1.0})), relation="adapter"
    )
    with pytest.raises(Skipped, match="not a pair"):
        adapter_plan(checkpoint)


def test_frozen_matrices_that_are_saved_beside_the_factors_change_nothing(tmp_path: Path, base: BaseMatrices) -> None:
    """PEFT's names: some trainers write the base's own weights into the adapter's file."""
    a, b = torch.randn(2, WIDTH), torch.randn(WIDTH, 2)
    module = "base_model.model.model.layers.1.self_attn.q_proj"
    tensors = {
        f"{module}.lora_A.weight": a,
        f"{module}.lora_B.weight": b,
        f"{module}.weight": base.matrix(QUERY).clone(),
    }
    write_adapter(tmp_path, tensors, r=2, lora_alpha=2)
    found = changes(tmp_path, base)
    assert set(found) == {QUERY}
    torch.testing.assert_close(found[QUERY], b @ a)
    write_adapter(tmp_path, tensors | {f"{module}.weight": base.matrix(QUERY) + 1}, r=2, lora_alpha=2)
    with pytest.raises(Skipped, match="twice"):
        list(once(deltas_on(open_checkpoint(ModelRef("a/b", folder=tmp_path), relation="adapter"), base)))
