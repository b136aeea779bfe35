"""Makes the repositories of one kind: a tiny base, and an upload that claims it, whose δW is known.

The last functions write weights that are not one safetensors file of floats; see indexer/checkpoints/quantised.py.
"""

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
Changes = list[torch.Tensor]  # planted δW, each (out, in)
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


def planted(tensors: Tensors, where: str, seed: int = 1) -> tuple[Tensors, Changes]:
    """A copy with a change of rank 2 in every matrix whose name matches ``where``, and these changes."""
    generator = torch.Generator().manual_seed(seed)
    changed, changes = {}, []
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and re.search(where, name):
            left, right = (torch.randn(size, 2, generator=generator) for size in tensor.shape)
            tensor = tensor.float() + SIZE * 0.1 * (left @ right.T)
            changes.append(tensor - tensors[name].float())
        changed[name] = tensor
    if not changes:
        raise ValueError(f"no matrix is named like {where}")
    return changed, changes


def norm_of(changes: Changes) -> float:
    """The Frobenius norm of all of them together."""
    return sum(float(change.double().square().sum()) for change in changes) ** 0.5


def full(model_type: str, config: Mapping[str, Any], where: str, head: str = "", **how: Any) -> Callable[..., Changes]:
    """A fine-tune of all weights, saved by transformers. ``how``: see ``written``."""

    def make(root: Path, base: str, upload: str) -> Changes:
        model = model_of(model_type, config, head)
        model.save_pretrained(root / base)
        describe(root, base)
        tensors, changes = planted(load_file(root / base / "model.safetensors"), where)
        shutil.copy(root / base / "config.json", _folder(root / upload) / "config.json")
        written(root / upload, tensors, **how)
        if how.get("base_too"):
            written(root / base, load_file(root / base / "model.safetensors"), **how)
        describe(root, upload, base, relation=how.get("relation", "finetune"), **how.get("facts", {}))
        return changes

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


def adapter(
    model_type: str, config: Mapping[str, Any], head: str, settings: Callable[[], Any], merges: bool = True
) -> Callable[..., Changes]:
    """An adapter of the kind that ``settings`` make, a config of PEFT, saved by PEFT; δW is what its merge adds.

    ``merges``: False for kinds that change no weights.
    """

    def make(root: Path, base: str, upload: str) -> Changes:
        import peft

        model = model_of(model_type, config, head)
        model.save_pretrained(root / base)
        describe(root, base)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        adapted = peft.get_peft_model(model, settings())
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if parameter.requires_grad and "magnitude" not in name:
                    parameter.mul_(0.8).add_(0.01 * torch.randn(parameter.shape, generator=generator))
        adapted.save_pretrained(root / upload)
        path = root / upload / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))
        describe(root, upload, base, relation="adapter", library_name="peft")
        after = adapted.merge_and_unload().state_dict() if merges else {}
        differences = [after[name] - tensor for name, tensor in before.items() if tensor.ndim == 2 and name in after]
        return [one for one in differences if one.any()]

    return make


def lora(
    model_type: str, config: Mapping[str, Any], targets: list[str] | str, head: str, **settings: Any
) -> Callable[..., Changes]:
    """A LoRA adapter, or what else ``settings`` of PEFT's LoraConfig make, saved by PEFT."""

    def chosen() -> Any:
        import peft

        given = {"init_lora_weights": False} | settings
        return peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **given)

    return adapter(model_type, config, head, chosen)


def files(base: Callable[[Path, str], None], upload: Mapping[str, Any], **facts: Any) -> Callable[..., Changes]:
    """An upload of given files (text, bytes, or a value to write as JSON), and a base."""

    def make(root: Path, base_id: str, upload_id: str) -> Changes:
        base(root, base_id)
        describe(root, base_id)
        for name, content in upload.items():
            path = _folder((root / upload_id / name).parent) / Path(name).name
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            path.write_bytes(data)
        describe(root, upload_id, base_id, **facts)
        return []

    return make


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def fp8_blocks(folder: Path, tensors: Tensors) -> None:
    """As DeepSeek-V3: codes F8_E4M3, a scale for each block of 128 × 128."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "layers." in name:
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
            if tensor.ndim == 2 and "layers." in name:
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
