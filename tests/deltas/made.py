"""A small encoder, fine-tunes of it in every form that uploads take, and their records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.vectorise import vectorise
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef

Tensors = dict[str, torch.Tensor]

BASE, BASE_COMMIT = "org/base", "b" * 40


def config(width: int) -> dict[str, Any]:
    return {
        "model_type": "roberta", "architectures": ["RobertaModel"], "hidden_size": width, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 2 * width, "vocab_size": 16, "max_position_embeddings": 8,
    }  # fmt: skip


def weights(width: int = 128, seed: int = 1, size: float = 0.04) -> Tensors:
    """Every block matrix of two layers, normal with the spread of a trained encoder's."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "attention.self.query": (width, width), "attention.self.key": (width, width),
        "attention.self.value": (width, width), "attention.output.dense": (width, width),
        "intermediate.dense": (2 * width, width), "output.dense": (width, 2 * width),
    }  # fmt: skip
    return {
        f"encoder.layer.{layer}.{name}.weight": size * torch.randn(shape, generator=generator)
        for layer in range(2)
        for name, shape in shapes.items()
    }


def changed(tensors: Tensors, size: float, seed: int = 2, only: str = "") -> Tensors:
    """With normal noise added to each matrix whose name holds ``only``: a change of the flattest spectrum."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + size * torch.randn(tensor.shape, generator=generator) if only in name else tensor
        for name, tensor in tensors.items()
    }


def cast(tensors: Tensors, *dtypes: torch.dtype) -> Tensors:
    """Through one dtype after the other, as a chain of uploads does it."""
    for dtype in dtypes:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return tensors


def save(folder: Path, tensors: Tensors, width: int = 128) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(width)))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_bin(folder: Path, tensors: Tensors, width: int = 128) -> Path:
    save(folder, tensors, width)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def save_shards(folder: Path, tensors: Tensors, width: int = 128) -> Path:
    """In an order of their own, the last tensors first."""
    save(folder, tensors, width)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors, reverse=True)
    parts = (names[: len(names) // 2], names[len(names) // 2 :])
    file_of_tensor = {}
    for number, part in enumerate(parts, start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        file_of_tensor |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": file_of_tensor}))
    return folder


def base_of(folder: Path, tensors: Tensors, width: int = 128) -> BaseMatrices:
    checkpoint = open_checkpoint(ModelRef("base", folder=save(folder / "base", tensors, width)))
    return store_base(checkpoint, BASE, BASE_COMMIT, folder / "base.safetensors")


def record_of(
    folder: Path, base: BaseMatrices, model: str = "", commit: str = "c" * 40, relation: str = "finetune", **more: Any
) -> Record:
    unit = Unit(
        model=ModelRef(model or str(folder), folder=folder), commit=commit, base=BASE, base_commit=BASE_COMMIT,
        relation=relation, spec=Spec(), **more,
    )  # fmt: skip
    return vectorise(unit, base)


SAVED: Mapping[str, Callable[..., Path]] = {"safetensors": save, "bin": save_bin, "shards": save_shards}
