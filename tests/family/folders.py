"""How the tests of the trained family look into its folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

BASE = "atlas-demo/tiny-roberta"


def described(root: Path, model: str) -> dict:
    return json.loads((root / f"{model}.repo.json").read_text())


def models_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)).removesuffix(".repo.json") for path in root.glob("*/*.repo.json"))


def weights(root: Path, model: str) -> dict[str, torch.Tensor]:
    """All tensors of a repository by their bare names, in float32, whatever form they are stored in."""
    folder = root / model
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    if (folder / "pytorch_model.bin").exists():
        found |= torch.load(folder / "pytorch_model.bin", weights_only=True)
    return {name.removeprefix("base_model.model.").removeprefix("roberta."): found[name].float() for name in found}


def block_matrices(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t for name, t in tensors.items() if name.startswith("encoder.layer") and t.dim() == 2}
