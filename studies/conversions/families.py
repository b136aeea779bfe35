"""Planted families: a base of the shapes of Qwen2 or Llama, and fine-tunes of it at given distances."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

Weights = dict[str, NDArray[np.float32]]
_RANK = 8


def config_of(model_type: str, *, layers: int = 4, width: int = 256, inner: int = 512) -> dict[str, Any]:
    """config.json of a small model of this type."""
    return {
        "model_type": model_type, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": True,
    }  # fmt: skip


def base_weights(config: Mapping[str, Any], seed: int = 0) -> Weights:
    """Random weights, in bfloat16, with columns and rows of different sizes as trained ones have."""
    rng = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    narrow = width * config["num_key_value_heads"] // config["num_attention_heads"]
    weights: Weights = {"model.embed_tokens.weight": _matrix(rng, config["vocab_size"], width)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", width, width), ("self_attn.k_proj", narrow, width), ("self_attn.v_proj", narrow, width),
            ("self_attn.o_proj", width, width), ("mlp.gate_proj", inner, width), ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ):  # fmt: skip
            weights[f"{prefix}{name}.weight"] = _matrix(rng, rows, columns)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = _rounded(1 + 0.1 * rng.normal(size=width))
    weights["model.norm.weight"] = _rounded(1 + 0.1 * rng.normal(size=width))
    return weights


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    sizes = np.exp(rng.normal(0, 0.2, (rows, 1))) * np.exp(rng.normal(0, 0.2, (1, columns)))
    return _rounded(0.02 * sizes * rng.normal(size=(rows, columns)))


def _rounded(values: NDArray[Any]) -> NDArray[np.float32]:
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(torch.bfloat16).float().numpy()


def fine_tune(base: Weights, distance: float, seed: int, *, rank: int = _RANK) -> Weights:
    """Weights with a change of low rank of each matrix of the layers, and ‖δW‖ / ‖W‖ = ``distance``."""
    rng = np.random.default_rng((seed, 1))
    tuned = dict(base)
    for name, weight in base.items():
        if "proj" in name:
            change = rng.normal(size=(weight.shape[0], rank)) @ rng.normal(size=(rank, weight.shape[1]))
            change *= distance * np.linalg.norm(weight) / np.linalg.norm(change)
            tuned[name] = (weight + change).astype(np.float32)
    return tuned


def save(folder: Path, config: Mapping[str, Any], weights: Weights, dtype: torch.dtype = torch.float32) -> Path:
    """As ``save_pretrained`` does."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.from_numpy(tensor).to(dtype) for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
