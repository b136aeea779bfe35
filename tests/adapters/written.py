"""Adapters made by PEFT or written by hand, and how they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from indexer.checkpoints.adapter import AdapterModule, read_modules
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.sources.registry import ModelRef


def read(folder: Path, **options: Any) -> dict[str, AdapterModule]:
    checkpoint = open_checkpoint(ModelRef(str(folder), folder=folder), relation="adapter", **options)
    assert checkpoint.kind == "adapter"
    return {module.path: module for module in read_modules(checkpoint)}


def write_adapter(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is None:
        tensors = {
            "base_model.model.h.0.q.lora_A.weight": torch.ones(4, 6),
            "base_model.model.h.0.q.lora_B.weight": torch.ones(5, 4),
        }
    save_file(tensors, folder / "adapter_model.safetensors")
    change_config(folder, **({"peft_type": "LORA", "r": 4, "lora_alpha": 8} | config))
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **changes}))
