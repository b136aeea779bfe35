"""Trees of small checkpoints, as people keep them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.tiny_hub import BASE, SIZES

PREFIX = "base_model.model.roberta.encoder.layer"


def factors(seed: int, scale: float = 0.05, width: int = SIZES["hidden_size"]) -> dict[str, torch.Tensor]:
    """LoRA factors of the queries and values of the tiny base, or of one of another ``width``."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for name in ("query", "value"):
            for factor, shape in (("A", (4, width)), ("B", (width, 4))):
                key = f"{PREFIX}.{layer}.attention.self.{name}.lora_{factor}.weight"
                found[key] = torch.randn(shape, generator=draw) * scale
    return found


def adapter(folder: Path, seed: int, base: str | None = BASE, **config: Any) -> Path:
    """A folder as PEFT writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(factors(seed), folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"], **config}
    if base is not None:
        stated["base_model_name_or_path"] = base
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    return folder


def loose(path: Path, seed: int, **metadata: str) -> Path:
    """A LoRA in a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(factors(seed), path, metadata=metadata or None)
    return path


def full(folder: Path, store: Path, model: str, base: str | None = BASE) -> Path:
    """A whole checkpoint, with a card that names its base."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (store / model).iterdir():
        shutil.copy2(file, folder / file.name)
    if base is not None:
        (folder / "README.md").write_text(f"---\nbase_model: {base}\n---\n# A model\n")
    return folder
