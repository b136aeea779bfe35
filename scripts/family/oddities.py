"""The odd repositories of the Hub, each made as it comes about there and none of them harmful."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from scripts.family.finetune import WEIGHTS, as_bin
from scripts.family.plan import Oddity, Plan
from scripts.family.pretrain import new_configuration
from scripts.family.store import repository_folder

MARKER = "family-marker-that-must-never-be-created"
IMPOSSIBLE_LENGTH = 2**60
GGUF_HEADER = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)  # version 3, no tensors, no metadata
REMOTE_CODE = f'"""Would leave a mark where it ran."""\n\nopen({MARKER!r}, "w").close()\n'

Maker = Callable[[Plan, Oddity, Path, Path], None]


class Payload:
    """Creates an empty file when unpickled without care; a real one would do worse."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (MARKER, "w")


def copy(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """The same files byte by byte."""
    shutil.copytree(repository_folder(root, oddity.of or plan.base), folder, dirs_exist_ok=True)


def copy_as_bin(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """The same numbers in another format, so that no hash agrees."""
    copy(plan, oddity, root, folder)
    as_bin(folder)


def through_float16(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Rounded to fp16 and saved as fp32 again."""
    copy(plan, oddity, root, folder)
    change_weights(folder, lambda name, tensor: tensor.half().float())


def with_nan(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """One number of one block matrix is not one."""
    copy(plan, oddity, root, folder)
    victim = next(name for name in sorted(load_file(folder / WEIGHTS)) if is_block_matrix(plan, name))

    def spoil(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == victim:
            tensor.view(-1)[tensor.numel() // 2] = torch.nan
        return tensor

    change_weights(folder, spoil)


def truncated(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An upload that broke off."""
    copy(plan, oddity, root, folder)
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 5])


def lying_header(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A header that claims to be an exabyte long."""
    copy(plan, oddity, root, folder)
    path = folder / WEIGHTS
    path.write_bytes(IMPOSSIBLE_LENGTH.to_bytes(8, "little") + path.read_bytes()[8:])


def malicious_pickle(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Weights and an object that runs code when it is unpickled."""
    copy(plan, oddity, root, folder)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    torch.save({"payload": Payload(), **tensors}, folder / "pytorch_model.bin")


def new_network(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A network of another size, never trained."""
    torch.manual_seed(len(oddity.model))
    configuration = new_configuration(plan.architecture, plan.text.vocabulary)
    configuration.update(dict(oddity.config))
    transformers.AutoModelForSequenceClassification.from_config(configuration).save_pretrained(folder)


def gguf_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A llama.cpp file and nothing else."""
    (folder / f"{oddity.name}.Q4_K_M.gguf").write_bytes(GGUF_HEADER)


def onnx_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An export for another runtime, with the configuration; the first bytes say ``ir_version: 9``."""
    copy_configuration(plan, oddity, root, folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"\x08\x09\x12\x07pytorch")


def flax_only(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Flax weights: an empty MessagePack map."""
    copy_configuration(plan, oddity, root, folder)
    (folder / "flax_model.msgpack").write_bytes(b"\x80")


def quantized(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Two 4-bit numbers a byte, as bitsandbytes stores them."""
    copy(plan, oddity, root, folder)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    change_configuration(folder, quantization_config=settings)

    def pack(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not is_block_matrix(plan, name):
            return tensor.half()
        scaled = ((tensor / tensor.abs().max() + 1) * 7.5).round().to(torch.uint8).view(-1, 2)
        return (scaled[:, :1] << 4) | scaled[:, 1:]

    change_weights(folder, pack)


def unknown_architecture(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """An unknown model type, with code of its own that must not be run."""
    copy(plan, oddity, root, folder)
    change_configuration(
        folder,
        model_type="atlasnet",
        architectures=["AtlasNetForSequenceClassification"],
        auto_map={"AutoConfig": "modeling_atlasnet.AtlasNetConfig", "AutoModel": "modeling_atlasnet.AtlasNet"},
    )
    (folder / "modeling_atlasnet.py").write_text(REMOTE_CODE, encoding="utf-8")


def empty(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """A repository in which nothing but a card was ever put."""


def is_block_matrix(plan: Plan, name: str) -> bool:
    """Whether a tensor is a matrix of one of the stacked layers."""
    is_norm = "norm" in name.lower() or "ln_" in name
    return plan.architecture.is_in_layers(name) and name.endswith(".weight") and not is_norm


def copy_configuration(plan: Plan, oddity: Oddity, root: Path, folder: Path) -> None:
    """Only ``config.json``."""
    shutil.copy(repository_folder(root, oddity.of or plan.base) / "config.json", folder)


def change_configuration(folder: Path, **values: Any) -> None:
    """Lay values over ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values, indent=2), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
    """Rewrite ``model.safetensors`` tensor by tensor."""
    tensors = {name: change(name, tensor).contiguous() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


MAKERS: Mapping[str, Maker] = {
    "copy": copy,
    "copy as bin": copy_as_bin,
    "through float16": through_float16,
    "with nan": with_nan,
    "truncated": truncated,
    "lying header": lying_header,
    "malicious pickle": malicious_pickle,
    "new network": new_network,
    "gguf only": gguf_only,
    "onnx only": onnx_only,
    "flax only": flax_only,
    "quantized": quantized,
    "unknown architecture": unknown_architecture,
    "empty": empty,
}
