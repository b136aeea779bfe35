"""Checkpoints written into folders, for the tests of reading them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.sources.registry import ModelRef


def folder_reference(folder: Path) -> ModelRef:
    return ModelRef(id=str(folder), folder=folder)


def write_config(folder: Path, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))


def a_state(seed: int = 0, count: int = 6, size: int = 40) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(size, size, generator=generator) for i in range(count)}


def save_sharded(folder: Path, state: dict[str, torch.Tensor], suffix: str = "safetensors") -> None:
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(state)
    halves = [names[::2], names[1::2]]
    weight_map = {}
    for number, part in enumerate(halves, start=1):
        shard = f"{stem}-{number:05}-of-00002.{suffix}"
        tensors = {name: state[name] for name in part}
        save_file(tensors, folder / shard) if suffix == "safetensors" else torch.save(tensors, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


FORMS: dict[str, Callable[[Path, dict[str, torch.Tensor]], object]] = {
    "safetensors": lambda folder, state: save_file(state, folder / "model.safetensors"),
    "torch-zip": lambda folder, state: torch.save(state, folder / "pytorch_model.bin"),
    "torch-legacy": lambda folder, state: torch.save(
        state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False
    ),
    "safetensors shards": save_sharded,
    "torch-zip shards": lambda folder, state: save_sharded(folder, state, "bin"),
}


def write_safetensors(
    path: Path, entries: dict[str, tuple[str, list[Any], int, int]], data: int, extra: str = ""
) -> None:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        for name, (dtype, shape, begin, end) in entries.items()
    }
    text = json.dumps(header)[:-1] + extra + "}"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + b"\0" * data)
