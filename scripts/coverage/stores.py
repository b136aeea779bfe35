"""Ways to write the weights of a model that are not one safetensors file of floats; see indexer/weights/quantised.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.coverage.making import Tensors

_LAYER = "layers."


def fp8_blocks(folder: Path, tensors: Tensors) -> None:
    """As DeepSeek-V3: codes F8_E4M3, a scale for each block of 128 × 128."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and _LAYER in name:
            scale = torch.empty(-(-tensor.shape[0] // 128), -(-tensor.shape[1] // 128))
            codes = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
            for row in range(scale.shape[0]):
                for column in range(scale.shape[1]):
                    block = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
                    scale[row, column] = tensor[block].abs().max() / 448
                    codes[block] = (tensor[block] / scale[row, column]).to(torch.float8_e4m3fn)
            stored |= {name: codes, f"{name}_scale_inv": scale}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors")


def mlx(bits: int) -> Callable[[Path, Tensors], None]:
    """As ``mlx_lm.convert -q``: affine codes, 32 to a group."""

    def store(folder: Path, tensors: Tensors) -> None:
        stored: Tensors = {}
        for name, tensor in tensors.items():
            if tensor.ndim == 2 and _LAYER in name:
                groups = tensor.reshape(tensor.shape[0], -1, 32)
                low, high = groups.amin(2), groups.amax(2)
                scale = (high - low) / (2**bits - 1)
                codes = ((groups - low[:, :, None]) / scale[:, :, None]).round().long().reshape(tensor.shape)
                each = 32 // bits
                words = (codes.reshape(tensor.shape[0], -1, each) << (bits * torch.arange(each))).sum(2)
                module = name.removesuffix(".weight")
                stored |= {name: words.to(torch.uint32), f"{module}.scales": scale, f"{module}.biases": low}
            else:
                stored[name] = tensor
        save_file(stored, folder / "model.safetensors", metadata={"format": "mlx"})

    return store


def sharded(folder: Path, tensors: Tensors) -> None:
    """In two shards with an index, as pickles."""
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def in_folder(name: str) -> Callable[[Path, Tensors], None]:
    """In a subfolder, next to an earlier checkpoint of zeros if the name has a larger number."""

    def store(folder: Path, tensors: Tensors) -> None:
        (folder / name).mkdir(parents=True)
        save_file(tensors, folder / name / "model.safetensors")
        digits = "".join(letter for letter in name if letter.isdigit())
        if len(digits) > 1:
            earlier = folder / name.replace(digits, "1")
            earlier.mkdir(parents=True)
            save_file({key: torch.zeros_like(tensor) for key, tensor in tensors.items()}, earlier / "model.safetensors")

    return store
