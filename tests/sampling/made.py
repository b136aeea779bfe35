"""Checkpoints that are large enough to be sampled, and what NumPy makes of their rows.

The rows, the names and the orientations are spelt out here once more: nothing of the plan takes part in the truth.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.vectorise import vectorise
from indexer.names import DeltaKey
from indexer.records.identity import ModelVersion, Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef
from tests.checkpoints import Kind, Name, Place, gpt2, phi3, roberta

Array = NDArray[Any]
Weights = dict[str, torch.Tensor]

BASE, BASE_COMMIT = "org/base", "b" * 40
ROBERTA = roberta(2, 256, 1024)
GPT2 = gpt2(2, 256)
PHI3 = phi3(1, 4, 2, 64, 512)


def gpt_neox(layers: int, heads: int, width: int) -> Kind:
    """Query, key and value of each head one after the other, so that no matrix is a slice: see ``rows_of_heads``."""
    places: dict[Name, Place] = {}
    for layer in range(layers):
        for family, name, shape in (
            ("output", "attention.dense", (width, width)),
            ("feedforward1", "mlp.dense_h_to_4h", (4 * width, width)),
            ("feedforward2", "mlp.dense_4h_to_h", (width, 4 * width)),
        ):
            places["", layer, family] = Place(f"layers.{layer}.{name}.weight", shape)
        fused = Place(f"layers.{layer}.attention.query_key_value.weight", (3 * width, width))
        for third, family in enumerate(("query", "key", "value")):
            places["", layer, family] = RowsOfHeads(fused.tensor, fused.stored, heads=heads, third=third)
    config = {"model_type": "gpt_neox", "num_attention_heads": heads, "num_hidden_layers": layers, "hidden_size": width}
    return Kind(config, places, {})


@dataclass(frozen=True)
class RowsOfHeads(Place):
    """A third of the rows of every head of a fused tensor."""

    heads: int = 1
    third: int = 0

    def get(self, weights: dict[str, Array]) -> Array:
        rows, width = self.stored
        return (
            weights[self.tensor]
            .reshape(self.heads, 3, rows // 3 // self.heads, width)[:, self.third]
            .reshape(-1, width)
        )


NEOX = gpt_neox(1, 4, 256)


def tuned_of(kind: Kind, base: Weights, seed: int, size: float = 3e-3, rank: int = 6, noise: float = 0.2) -> Weights:
    """Every tensor with a change of a few directions, with some noise beside it."""
    rng = np.random.default_rng(seed)
    tuned = {}
    for name, tensor in base.items():
        rows, columns = tensor.shape
        change = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) / math.sqrt(rank)
        tuned[name] = (
            tensor.double() + torch.from_numpy(size * (change + noise * rng.normal(size=change.shape)))
        ).float()
    return tuned


def base_weights(kind: Kind, seed: int = 1) -> Weights:
    return {name: torch.from_numpy(tensor) for name, tensor in kind.random(seed, 0.04).items()}


# ---- on disk, in every form


def write_config(folder: Path, kind: Kind) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(kind.config))


def save(folder: Path, kind: Kind, weights: Weights) -> Path:
    write_config(folder, kind)
    save_file({name: one.contiguous() for name, one in weights.items()}, folder / "model.safetensors")
    return folder


def save_zip(folder: Path, kind: Kind, weights: Weights) -> Path:
    write_config(folder, kind)
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def save_legacy(folder: Path, kind: Kind, weights: Weights) -> Path:
    write_config(folder, kind)
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folder


def save_views(folder: Path, kind: Kind, weights: Weights) -> Path:
    """Every second tensor is a transposed view of what the file holds."""
    names = sorted(weights)[::2]
    return save_zip(folder, kind, {**weights, **{name: weights[name].t().contiguous().t() for name in names}})


def save_sharded(folder: Path, kind: Kind, weights: Weights) -> Path:
    write_config(folder, kind)
    names, where = sorted(weights, reverse=True), {}
    for number in (1, 2):
        part, file = names[number - 1 :: 2], f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name].contiguous() for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


FORMS: Mapping[str, Callable[[Path, Kind, Weights], Path]] = {
    "safetensors": save, "zip": save_zip, "legacy": save_legacy, "views": save_views, "shards": save_sharded,
}  # fmt: skip


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + name: one for name, one in weights.items()}


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    return {name: one.to(dtype) for name, one in weights.items()}


def stored_base(folder: Path, kind: Kind, weights: Weights) -> BaseMatrices:
    checkpoint = open_checkpoint(ModelRef("base", folder=save(folder / "base", kind, weights)))
    return store_base(checkpoint, BASE, BASE_COMMIT, folder / "base.safetensors")


def unit_of(folder: Path | None, *, read: str = "sample", model: str = "me/model", **more: Any) -> Unit:
    spectra = more.pop("spectra", False)
    spec = Spec(spectra=spectra, sample=read == "sample")
    plain: dict[str, Any] = {"commit": "c" * 40, "relation": "finetune"}
    return Unit(model=ModelRef(model, folder=folder), base=BASE, base_commit=BASE_COMMIT, spec=spec, **(plain | more))


def record_of(folder: Path, base: BaseMatrices, **more: Any) -> Record:
    return vectorise(unit_of(folder, **more), base)


__all__ = ["ModelVersion", "record_of", "unit_of"]


# ---- what must come out


def held(shape: tuple[int, int], item_bytes: int, transposed: bool = False, more: bool = False) -> Array:
    """The rows of a matrix (out, in) that a sample has; of a transposed one its input coordinates."""
    lines, width = shape[::-1] if transposed else shape
    least = 64 if transposed else 128 if more else 32 if item_bytes == 2 else 16
    count = max(least, math.ceil(65536 / (width * (4 if transposed else item_bytes))))
    if count > lines / 2:
        return np.arange(lines)
    first = count - count // 2
    return np.concatenate([np.arange(first), np.arange(lines - count // 2, lines)])


@dataclass
class Truth:
    """One matrix by exact SVD: ``kernel`` (in, in) is Σ σ v vᵀ of what the vector is computed from."""

    s: Array
    norm: float
    error: float
    inner: float
    kernel: Array
    lines: int | None


def truth_of(kind: Kind, name: Name, base: Weights, tuned: Weights, *, full: bool = False, more: bool = False) -> Truth:
    """What a record must say of a matrix. The base is rounded as the checkpoint is."""
    place = kind.places[name]
    stored = tuned[place.tensor].dtype
    reference = place.get({place.tensor: base[place.tensor].to(stored).double().numpy()})
    delta = place.get({place.tensor: tuned[place.tensor].double().numpy()}) - reference
    rows = held(delta.shape, stored.itemsize, place.transposed, more)
    count = delta.shape[1] if place.transposed else delta.shape[0]
    kernel = np.zeros((delta.shape[1], delta.shape[1]))
    if full:
        _, s, vt = np.linalg.svd(delta, full_matrices=False)
        lines = np.ix_(rows, rows) if place.transposed else np.ix_(*[np.arange(delta.shape[1])] * 2)
        half = (s[:8, None] * vt[:8])[:, rows] if place.transposed else None
        if half is None:
            kernel[lines] = (vt[:8].T * s[:8]) @ vt[:8]
        else:
            _, weights, right = np.linalg.svd(half, full_matrices=False)
            kernel[lines] = (right.T * weights) @ right
        return Truth(s[:8], np.linalg.norm(delta), 0.0, float((reference * delta).sum()), kernel, None)
    part = delta[:, rows] if place.transposed else delta[rows]
    beside = reference[:, rows] if place.transposed else reference[rows]
    _, s, vt = np.linalg.svd(part, full_matrices=False)
    scale = count / len(rows)
    small = (vt[:8].T * s[:8]) @ vt[:8]
    kernel[np.ix_(rows, rows) if place.transposed else np.ix_(*[np.arange(delta.shape[1])] * 2)] = small
    squares = (part**2).sum(axis=0 if place.transposed else 1)
    norm = math.sqrt(squares.sum() * scale)
    # Rows of one attention head change alike; its columns do in the matrix that joins the heads.
    of_heads = {"output"} if place.transposed else {"query", "key", "value"}
    effect = 1.5 + (0.3 * (len(rows) / 2 - 1) if name[2] in of_heads else 0)
    variance = effect * (1 - len(rows) / count) * squares.var(ddof=1) / len(rows)
    error = count * math.sqrt(variance) / (2 * norm) if norm else 0.0
    inner = float((beside * part).sum()) * scale
    return Truth(s[:8] * math.sqrt(scale), norm, error, inner, kernel, None if len(rows) == count else len(rows))


def sketch(kernel: Array, key: str, length: int) -> Array:
    """The TensorSketch of an (n, n) matrix, entry by entry, of unit norm."""

    def hashes(which: str) -> tuple[Array, Array]:
        stream = hashlib.shake_256(f"tensor-sketch|0|{key}|{which}".encode()).digest(4 * len(kernel))
        words = np.frombuffer(stream, dtype="<u4").astype(np.int64)
        return (words >> 1) % length, np.where(words & 1, 1.0, -1.0)

    (one, signs), (other, turned) = hashes("first"), hashes("second")
    found = np.zeros(length)
    np.add.at(found, (one[:, None] + other[None, :]) % length, kernel * np.outer(signs, turned))
    return found / np.linalg.norm(found)


def key_of(name: Name) -> DeltaKey:
    return DeltaKey(*name)
