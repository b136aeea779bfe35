"""Makes the repositories of one kind: a tiny base, and an upload that claims it, whose δW is known."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
SIZE = 0.02  # of a planted change, relative to the weights' own


def describe(root: Path, identifier: str, base: str | None = None, relation: str = "finetune", **facts: Any) -> None:
    """What the Hub says of a repository: the relation to its base, and whatever ``facts`` add."""
    tags = [f"base_model:{base}", f"base_model:{relation}:{base}"] if base else []
    facts.setdefault("created_at", "2026-10-01T00:00:00.000Z")
    facts["tags"] = [*tags, *facts.pop("tags", [])]
    (root / identifier).mkdir(parents=True, exist_ok=True)
    (root / f"{identifier}.repo.json").write_text(json.dumps(facts))


def model_of(model_type: str, config: Mapping[str, Any], head: str = "") -> Any:
    """A tiny model of transformers with random weights; ``head``: the Auto class to use, "CausalLM"."""
    import transformers

    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(model_type, **config)
    model = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel").from_config(settings).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1)
    return model


def planted(tensors: Tensors, where: str, seed: int = 1) -> tuple[Tensors, float]:
    """A copy with a change of rank 2 in every matrix whose name matches ``where``, and its Frobenius norm."""
    generator = torch.Generator().manual_seed(seed)
    changed, square = {}, 0.0
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and re.search(where, name):
            left, right = (torch.randn(size, 2, generator=generator) for size in tensor.shape)
            delta = SIZE * 0.1 * (left @ right.T)
            tensor = tensor.float() + delta
            square += float((tensor - tensors[name].float()).double().square().sum())
        changed[name] = tensor
    if not square:
        raise ValueError(f"no matrix is named like {where}")
    return changed, square**0.5


def full(model_type: str, config: Mapping[str, Any], where: str, head: str = "", **how: Any) -> Callable[..., float]:
    """A fine-tune of all weights, saved by transformers. ``how``: see ``written``."""

    def make(root: Path, base: str, upload: str) -> float:
        model = model_of(model_type, config, head)
        model.save_pretrained(root / base)
        describe(root, base)
        tensors, norm = planted(load_file(root / base / "model.safetensors"), where)
        shutil.copy(root / base / "config.json", _folder(root / upload) / "config.json")
        written(root / upload, tensors, **how)
        if how.get("base_too"):
            written(root / base, load_file(root / base / "model.safetensors"), **how)
        describe(root, upload, base, relation=how.get("relation", "finetune"), **how.get("facts", {}))
        return norm

    return make


def written(
    folder: Path,
    tensors: Tensors,
    *,
    store: Callable[[Path, Tensors], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    **_: Any,
) -> None:
    """The tensors in one file, or as ``store`` writes them; ``settings`` are added to config.json."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    if store is None:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    else:
        store(folder, tensors)
    if settings:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(settings)))


def lora(
    model_type: str, config: Mapping[str, Any], targets: list[str], head: str, **settings: Any
) -> Callable[..., float]:
    """A LoRA adapter, or what else ``settings`` of PEFT's LoraConfig make, saved by PEFT."""

    def make(root: Path, base: str, upload: str) -> float:
        import peft

        model = model_of(model_type, config, head)
        model.save_pretrained(root / base)
        describe(root, base)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        torch.manual_seed(1)
        adapter = peft.get_peft_model(
            model,
            peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **({"init_lora_weights": False} | settings)),
        )
        with torch.no_grad():
            for name, parameter in adapter.named_parameters():
                if "lora_" in name and "magnitude" not in name:
                    parameter.mul_(0.1).add_(0.01 * torch.randn(parameter.shape))
        adapter.save_pretrained(root / upload)
        path = root / upload / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))
        describe(root, upload, base, relation="adapter", library_name="peft")
        after = adapter.merge_and_unload().state_dict()
        square = sum(
            float((after[name] - tensor).double().square().sum()) for name, tensor in before.items() if tensor.ndim == 2
        )
        return square**0.5

    return make


def files(base: Callable[[Path, str], None], upload: Mapping[str, Any], **facts: Any) -> Callable[..., float]:
    """An upload of given files (text, bytes, or what becomes JSON) beside a base."""

    def make(root: Path, base_id: str, upload_id: str) -> float:
        base(root, base_id)
        describe(root, base_id)
        for name, content in upload.items():
            path = _folder((root / upload_id / name).parent) / Path(name).name
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            path.write_bytes(data)
        describe(root, upload_id, base_id, **facts)
        return 0.0

    return make


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
