"""Shapes of small checkpoints by tensor name, and how a layout is refused."""

from __future__ import annotations

import pytest

from indexer.checkpoints.architectures.architecture import Layout, load_architecture
from indexer.errors import Skipped


def bert_shapes(layers: int = 2, prefix: str = "") -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embeddings.word_embeddings.weight": (40, 8)}
    for layer in range(layers):
        for family in ("query", "key", "value"):
            shapes[f"{prefix}encoder.layer.{layer}.attention.self.{family}.weight"] = (8, 8)
            shapes[f"{prefix}encoder.layer.{layer}.attention.self.{family}.bias"] = (8,)
        shapes[f"{prefix}encoder.layer.{layer}.attention.output.dense.weight"] = (8, 8)
        shapes[f"{prefix}encoder.layer.{layer}.attention.output.LayerNorm.gamma"] = (8,)
        shapes[f"{prefix}encoder.layer.{layer}.intermediate.dense.weight"] = (12, 8)
        shapes[f"{prefix}encoder.layer.{layer}.output.dense.weight"] = (8, 12)
    return shapes


def gpt2_shapes(prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}h.0.attn.c_attn.weight": (8, 24),
        f"{prefix}h.0.attn.bias": (1, 1, 64, 64),
        f"{prefix}h.0.attn.masked_bias": (),
        f"{prefix}h.0.attn.c_proj.weight": (8, 8),
        f"{prefix}h.0.mlp.c_fc.weight": (8, 12),
        f"{prefix}h.0.mlp.c_proj.weight": (12, 8),
        f"{prefix}wte.weight": (40, 8),
    }


def gpt2_layout() -> Layout:
    return load_architecture("gpt2").locate(gpt2_shapes(), {})


def refused(shapes: dict, config: dict | None = None, model_type: str = "bert") -> Skipped:
    with pytest.raises(Skipped) as error:
        load_architecture(model_type).locate(shapes, config or {})
    assert "\n" not in error.value.detail
    assert error.value.detail.isprintable()
    assert len(error.value.detail) < 1500
    return error.value
