"""Adapters of mlx-lm, written to the definition: mlx-lm 0.32, tuner/lora.py, tuner/dora.py and lora.py.

LoRALinear.fuse: W + (scale · lora_bᵀ) @ lora_aᵀ with lora_a (in, r) and lora_b (r, out); DoRALinear.fuse scales the
rows of that to the lengths ``m``. ``scale`` is the scale itself; up to 0.14.1 it was multiplied by alpha/r. ``alpha``
was written until 0.22.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.adapter import adapter_plan, read_modules, stated_base
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.checkpoints.checkpoint_files import choose
from indexer.deltas.adapter_deltas import WeightDelta, deltas_on, dense
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.stacked import once
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.sources.registry import ModelRef
from tests.adapters.written import write_adapter

WIDTH, WIDE, NARROW = 12, 20, 6
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (NARROW, WIDTH), "self_attn.v_proj": (NARROW, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH), "mlp.gate_proj": (WIDE, WIDTH), "mlp.up_proj": (WIDE, WIDTH),
    "mlp.down_proj": (WIDTH, WIDE),
}  # fmt: skip
ODD = Path(__file__).parents[3] / "shared/data/wild/odd/mlx_scale"
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
    tensors = {}
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        out, width = SHAPES[name]
        tensors[f"model.layers.1.{name}.lora_a"] = torch.randn(width, rank, generator=generator)
        tensors[f"model.layers.1.{name}.lora_b"] = torch.randn(rank, out, generator=generator)
    return tensors


ALPHA = {"rank": 3, "alpha": 16, "dropout": 0.0, "scale": 10.0}
# What adapter_config.json holds by the version of mlx-lm, whether that multiplies by alpha/r, and whether that is known.
WROTE = {
    "0.12": ({"lora_layers": 16}, True, True),
    "0.13.1": ({"lora_layers": 16, "use_dora": False}, True, False),
    "0.14.2": ({"lora_layers": 16, "use_dora": False}, False, False),
    "0.19": ({"num_layers": 16, "fine_tune_type": "lora"}, False, True),
    "0.21, edited": ({"num_layers": 16}, False, True),
    "by hand": ({}, False, False),
}


@pytest.mark.parametrize("version", WROTE)
def test_lora(tmp_path: Path, base: BaseMatrices, version: str) -> None:
    config, is_multiplied, is_known = WROTE[version]
    tensors = factors()
    folder = write(tmp_path, tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"model": "m", "lora_parameters": ALPHA} | config))
    deltas = changes(folder, base)
    assert set(deltas) == {QUERY, DOWN}
    scale = 10.0 * (16 / 3 if is_multiplied and is_known else 1)
    for key, name in ((QUERY, "self_attn.q_proj"), (DOWN, "mlp.down_proj")):
        a, b = (tensors[f"model.layers.1.{name}.lora_{side}"] for side in "ab")
        torch.testing.assert_close(deltas[key], (scale * b.T) @ a.T, rtol=1e-4, atol=1e-4)
    notes = adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")).notes
    assert len(notes) == (not is_known)
    assert is_known or "5.33 times as large" in notes[0]


@pytest.mark.parametrize(
    ("settings", "notes"),
    [
        ({"rank": 3, "scale": 20.0}, []),
        ({"rank": 3, "scale": 20.0, "alpha": 3}, []),  # alpha/r is 1: the same in every version
        ({"rank": 3, "scale": 20.0, "alpha": None}, []),
        ({"rank": 3}, ["no scale"]),  # mlx-lm itself refuses it
    ],
)
def test_settings_that_leave_nothing_open_are_not_noted(
    tmp_path: Path, base: BaseMatrices, settings: dict[str, Any], notes: list[str]
) -> None:
    tensors = factors()
    folder = write(tmp_path, tensors)
    (folder / "adapter_config.json").write_text(json.dumps({"model": "m", "lora_parameters": settings}))
    a, b = (tensors[f"model.layers.1.self_attn.q_proj.lora_{side}"] for side in "ab")
    torch.testing.assert_close(changes(folder, base)[QUERY], (20.0 * b.T) @ a.T, rtol=1e-4, atol=1e-4)
    plan_notes = adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")).notes
    assert len(plan_notes) == len(notes)
    assert all(words in note for words, note in zip(notes, plan_notes, strict=True))


@pytest.mark.skipif(not ODD.is_dir(), reason="needs ../shared/data/wild/odd")
def test_the_norm_of_a_real_adapter_is_that_of_mlx_lm(tmp_path: Path) -> None:
    """mlx-lm 0.21.6, rank 8, alpha 16, scale 10; by its own formula the norm of the change is 2.9978."""
    for file in ("adapter_config.json", "0000200_adapters.safetensors"):
        (tmp_path / file.removeprefix("0000200_")).write_bytes((ODD / file).read_bytes())
    square = 0.0
    for module in read_modules(open_checkpoint(ModelRef("a/b", folder=tmp_path), relation="adapter")):
        a, b = (module.parts[part].double() for part in ("lora_A", "lora_B"))
        square += float(torch.linalg.vector_norm(module.scale * (b @ a))) ** 2
    assert math.isclose(math.sqrt(square), 2.9978, rel_tol=1e-4)


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
    older = {"lora_layers": 1, "use_dora": True, "lora_parameters": {"rank": 3, "scale": 0.5}}
    (folder / "adapter_config.json").write_text(json.dumps(older))
    assert adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")).kind == "DoRA"


def test_full_matrices_and_the_files_that_are_chosen(tmp_path: Path, base: BaseMatrices) -> None:
    saved = {f"model.layers.1.{name}.weight": torch.randn(shape) for name, shape in SHAPES.items()}
    folder = write(tmp_path, saved | {"model.norm.weight": torch.ones(WIDTH)}, fine_tune_type="full")
    deltas = changes(folder, base)
    assert len(deltas) == len(SHAPES)
    expected = saved["model.layers.1.self_attn.q_proj.weight"] - base.matrix(QUERY)
    torch.testing.assert_close(deltas[QUERY], expected)
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
        ({"fine_tune_type": ["lora"], "lora_parameters": {}}, "fine_tune_type"),
        ({"lora_parameters": {"scale": None, "rank": 3}, "fine_tune_type": 3}, "fine_tune_type"),
    ],
)
def test_malformed_ones(tmp_path: Path, config: dict[str, Any], word: str) -> None:
    checkpoint = open_checkpoint(ModelRef("a/b", folder=write(tmp_path, factors(), **config)), relation="adapter")
    with pytest.raises(Skipped, match=word):
        adapter_plan(checkpoint)


def test_an_alpha_that_is_no_number_matters_where_it_is_used(tmp_path: Path) -> None:
    settings = {"scale": 1.0, "alpha": "16"}
    folder = write(tmp_path, factors(), lora_parameters=settings)
    assert adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter")).notes == ()
    (folder / "adapter_config.json").write_text(json.dumps({"lora_layers": 1, "lora_parameters": settings}))
    with pytest.raises(Skipped, match=r"lora_parameters\.alpha"):
        adapter_plan(open_checkpoint(ModelRef("a/b", folder=folder), relation="adapter"))


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
    deltas = changes(tmp_path, base)
    assert set(deltas) == {QUERY}
    torch.testing.assert_close(deltas[QUERY], b @ a)
    write_adapter(tmp_path, tensors | {f"{module}.weight": base.matrix(QUERY) + 1}, r=2, lora_alpha=2)
    with pytest.raises(Skipped, match="twice"):
        list(once(deltas_on(open_checkpoint(ModelRef("a/b", folder=tmp_path), relation="adapter"), base)))
