"""Checkpoints written by hand, tensor by tensor, whose ranks are planted or counted by NumPy.

Names, orientations and the rows of fused tensors are spelt out here once more, so that nothing of the indexer's own
tables takes part in the truth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.tiny_hub import describe

Array = NDArray[Any]
Name = tuple[str, int, str]  # stack, layer, family


@dataclass(frozen=True)
class Place:
    """Where a matrix is: ``rows`` of a tensor, once that is (out, in); ``stored`` is the tensor's own shape."""

    tensor: str
    stored: tuple[int, int]
    transposed: bool = False
    rows: tuple[int | None, int | None] = (None, None)

    def get(self, weights: dict[str, Array]) -> Array:
        tensor = weights[self.tensor]
        return (tensor.T if self.transposed else tensor)[slice(*self.rows)]


@dataclass(frozen=True)
class Kind:
    """A network: its config.json and where its matrices are. ``fused_matrices``: name of a fused matrix → its parts."""

    config: dict[str, Any]
    places: dict[Name, Place]
    fused_matrices: dict[str, tuple[str, ...]]

    def whole(self, weights: dict[str, Array], stack: str, layer: int, name: str) -> Array:
        return np.concatenate([self.places[stack, layer, part].get(weights) for part in self.fused_matrices[name]])

    def random(self, seed: int, scale: float = 0.02) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        tensors = {place.tensor: place.stored for place in self.places.values()}
        return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in tensors.items()}

    def changed(self, weights: dict[str, Array], delta: Callable[[Name, tuple[int, int]], Array]) -> dict[str, Array]:
        """A copy with ``delta(name, shape)`` added to every matrix."""
        tuned = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
        for name, place in self.places.items():
            place.get(tuned)[...] += delta(name, place.get(tuned).shape)
        return {name: tensor.astype(np.float32) for name, tensor in tuned.items()}


def roberta(layers: int, width: int, inner: int) -> Kind:
    places = {}
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for family, name, shape in (
            ("query", "attention.self.query", (width, width)),
            ("key", "attention.self.key", (width, width)),
            ("value", "attention.self.value", (width, width)),
            ("output", "attention.output.dense", (width, width)),
            ("feedforward1", "intermediate.dense", (inner, width)),
            ("feedforward2", "output.dense", (width, inner)),
        ):
            places["", layer, family] = Place(f"{at}.{name}.weight", shape)
    return Kind({"model_type": "roberta", "num_hidden_layers": layers, "hidden_size": width}, places, {})


def gpt2(layers: int, width: int) -> Kind:
    """Conv1D stores (in, out); queries, keys and values are next to each other in c_attn."""
    places = {}
    for layer in range(layers):
        for third, family in enumerate(("query", "key", "value")):
            rows = (third * width, (third + 1) * width)
            places["", layer, family] = Place(f"h.{layer}.attn.c_attn.weight", (width, 3 * width), True, rows)
        places["", layer, "output"] = Place(f"h.{layer}.attn.c_proj.weight", (width, width), True)
        places["", layer, "feedforward1"] = Place(f"h.{layer}.mlp.c_fc.weight", (width, 4 * width), True)
        places["", layer, "feedforward2"] = Place(f"h.{layer}.mlp.c_proj.weight", (4 * width, width), True)
    config = {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": 4}
    return Kind(config, places, {"query_key_value": ("query", "key", "value")})


def t5(encoder: int, decoder: int, width: int, inner: int) -> Kind:
    places = {}
    for stack, layers, last in (("encoder", encoder, 1), ("decoder", decoder, 2)):
        for layer in range(layers):
            at = f"{stack}.block.{layer}.layer"
            for short, family in zip("qkvo", ("query", "key", "value", "output"), strict=True):
                square = (width, width)
                places[stack, layer, family] = Place(f"{at}.0.SelfAttention.{short}.weight", square)
                if stack == "decoder":
                    places[stack, layer, f"cross_{family}"] = Place(f"{at}.1.EncDecAttention.{short}.weight", square)
            places[stack, layer, "feedforward1"] = Place(f"{at}.{last}.DenseReluDense.wi.weight", (inner, width))
            places[stack, layer, "feedforward2"] = Place(f"{at}.{last}.DenseReluDense.wo.weight", (width, inner))
    return Kind({"model_type": "t5", "d_model": width, "num_layers": encoder}, places, {})


def phi3(layers: int, heads: int, kv_heads: int, head: int, inner: int) -> Kind:
    """Two fused tensors in a layer, of grouped-query attention and of a gated feed-forward."""
    places, width, narrow = {}, heads * head, kv_heads * head
    for layer in range(layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        qkv = (width + 2 * narrow, width)
        bounds = {"query": (0, width), "key": (width, width + narrow), "value": (width + narrow, width + 2 * narrow)}
        for family, (start, stop) in bounds.items():
            places["", layer, family] = Place(f"{attention}.qkv_proj.weight", qkv, rows=(start, stop))
        places["", layer, "output"] = Place(f"{attention}.o_proj.weight", (width, width))
        for family, start in (("gate", 0), ("feedforward1", inner)):
            rows = (start, start + inner)
            places["", layer, family] = Place(f"{mlp}.gate_up_proj.weight", (2 * inner, width), rows=rows)
        places["", layer, "feedforward2"] = Place(f"{mlp}.down_proj.weight", (width, inner))
    config = {
        "model_type": "phi3",
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
    }
    fused_matrices = {"query_key_value": ("query", "key", "value"), "gate_feedforward1": ("gate", "feedforward1")}
    return Kind(config, places, fused_matrices)


# ---- on disk


def save(folder: Path, kind: Kind, weights: dict[str, Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(kind.config))
    return folder


def save_lora(folder: Path, base: str, factors: dict[str, tuple[Array, Array]], alpha: int, **more: Any) -> Path:
    """As PEFT writes it: module → A (r, in) and B (out, r), whatever the base's orientation; δW = α/r · B @ A."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, (a, b) in factors.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = np.ascontiguousarray(a, dtype=np.float32)
        tensors[f"base_model.model.{module}.lora_B.weight"] = np.ascontiguousarray(b, dtype=np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": len(next(iter(factors.values()))[0]),
        "lora_alpha": alpha,
        "target_modules": sorted({module.rpartition(".")[2] for module in factors}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | more))
    return folder


def claim(root: Path, model: str, base: str, relation: str = "finetune", month: int = 6) -> None:
    """What the Hub says of a repository."""
    tags = ["transformers", "safetensors", f"base_model:{base}", f"base_model:{relation}:{base}"]
    describe(root, model, tags=tags, card_data={"base_model": base}, created_at=f"2024-{month:02}-01T00:00:00.000Z")


# ---- what must come out


def rank_of(matrix: Array, threshold: float) -> int:
    """Singular values that hold the share of the energy; 0 for a zero matrix. By NumPy, in double precision."""
    squares = np.square(np.linalg.svd(matrix.astype(np.float64), compute_uv=False))
    held, total = 0.0, squares.sum()
    for rank, square in enumerate(squares, 1):
        held += square
        if total and held >= threshold * total:
            return rank
    return 0


def low_rank(rng: np.random.Generator, shape: tuple[int, int], values: Array | list[float]) -> Array:
    """A matrix with exactly these singular values and random orthonormal vectors."""
    left = np.linalg.qr(rng.normal(size=(shape[0], len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(shape[1], len(values))))[0]
    return (left * np.asarray(values, dtype=np.float64)) @ right.T
