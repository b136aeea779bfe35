"""Small models with random oddities: each is indexed, or skipped or failed for a reason in one line."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.errors import AtlasError, ModelError
from indexer.sources.registry import ModelRef
from tests.deltas.made import base_of, changed, record_of, save, save_bin, save_shards, weights

WIDTH = 16
NAMES = ["../x", "a" * 5000, "", ".", "layer", "\x1b[31m", "é\u202e", "encoder.layer.99999999999.attention.self.query"]
VALUES: list[Any] = [
    None, True, -1, 0, 1e400, 10**30, "", "x" * 10_000, "\ud800", [], {}, [[[]]], {"a": {"b": {}}}, "roberta", "llama", [None],
]  # fmt: skip
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.complex64,
]
PARTS = ["module", "_orig_mod", "_fsdp_wrapped_module", "base_layer", "lora_A", "weight_scale", "qweight", "0", "x"]
KEYS = [
    "model_type", "architectures", "num_hidden_layers", "num_attention_heads", "text_config", "quantization_config",
    "layer_types", "is_encoder_decoder", "_class_name", "id2label", "peft_type", "r", "lora_alpha", "rank_pattern",
    "alpha_pattern", "use_dora", "init_lora_weights", "fine_tune_type", "lora_parameters", "target_parameters",
]  # fmt: skip


def adapter(folder: Path, tensors: dict[str, torch.Tensor], width: int) -> Path:
    folder.mkdir()
    factors = {}
    for name, tensor in tensors.items():
        out, inner = tensor.shape
        module = f"base_model.model.{name.removesuffix('.weight')}"
        factors |= {f"{module}.lora_A.weight": torch.randn(2, inner), f"{module}.lora_B.weight": torch.randn(out, 2)}
    save_file(factors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/base"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def mlx(folder: Path, tensors: dict[str, torch.Tensor], width: int) -> Path:
    adapter(folder, tensors, width)
    tensors_of_peft = load_file(folder / "adapter_model.safetensors")
    tensors_of_mlx = {
        name.removeprefix("base_model.model.").replace(".lora_A.weight", ".lora_a").replace(".lora_B.weight", ".lora_b"): tensor.mT
        for name, tensor in tensors_of_peft.items()
    }  # fmt: skip
    save_file({name: tensor.contiguous() for name, tensor in tensors_of_mlx.items()}, folder / "adapters.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    settings = {"lora_layers": 2, "lora_parameters": {"rank": 2, "alpha": 4, "scale": 10.0}}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def legacy(folder: Path, tensors: dict[str, torch.Tensor], width: int) -> Path:
    save_bin(folder, tensors, width)
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return folder


FORMS: list[Callable[..., Path]] = [save, save_bin, legacy, save_shards, adapter, mlx]


def rename(chance: random.Random, name: str) -> str:
    parts = name.split(".")
    index = chance.randrange(len(parts) + 1)
    choice = chance.randrange(4)
    if choice == 0:
        return chance.choice(NAMES)
    if choice == 1:
        return ".".join([*parts[:index], chance.choice(PARTS), *parts[index:]])
    if choice == 2:
        return ".".join([*parts[:index], *parts[index + 1 :]])
    return name[: chance.randrange(len(name) + 1)]


def odd_tensors(chance: random.Random, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with some renamed, gone, doubled, or of another dtype, shape or value."""
    odd = dict(tensors)
    for name in chance.sample(sorted(odd), chance.randrange(1, len(odd))):
        tensor, choice = odd.pop(name), chance.randrange(7)
        if choice == 0:
            odd[rename(chance, name)] = tensor
        elif choice == 1:
            odd |= {name: tensor, rename(chance, name): tensor.clone()}
        elif choice == 2:
            odd[name] = tensor.to(chance.choice(DTYPES))
        elif choice == 3:
            odd[name] = chance.choice(
                [tensor[:0], tensor.flatten(), tensor[None], tensor[:, :1], torch.tensor(1.0)]
            ).clone()
        elif choice == 4:
            odd[name] = tensor * chance.choice([0.0, float("nan"), float("inf"), 1e38, 1e-45])
        elif choice == 5:
            odd[name] = tensor
    if chance.random() < 0.3:
        wrapped = chance.choice(PARTS)
        odd = {f"{wrapped}.{name}": tensor for name, tensor in odd.items()}
    return odd or {"x": torch.ones(1)}


def odd_json(chance: random.Random, path: Path) -> None:
    """Some keys of a JSON file are gone, new, or of another kind; or the text is damaged."""
    content = json.loads(path.read_text())
    for _ in range(chance.randrange(1, 4)):
        inner = chance.choice([content, *(value for value in content.values() if isinstance(value, dict))])
        key = chance.choice([*KEYS, *inner])
        if chance.random() < 0.3:
            inner.pop(key, None)
        else:
            inner[key] = json.loads(json.dumps(chance.choice([*VALUES, content])))
    text = json.dumps(content).encode()
    if chance.random() < 0.2:
        text = text[: chance.randrange(len(text))] + bytes(chance.randrange(256) for _ in range(chance.randrange(4)))
    path.write_bytes(text)


def odd_bytes(chance: random.Random, path: Path) -> None:
    """A file is cut, longer, or differs in a few bytes, mostly of its header."""
    content = bytearray(path.read_bytes())
    choice = chance.randrange(5)
    if choice == 0:
        content = content[: chance.randrange(len(content) + 1)]
    elif choice == 1:
        content += bytes(chance.randrange(1, 100))
    elif content:
        for _ in range(chance.randrange(1, 20)):
            most = len(content) if choice == 2 else min(len(content), 3000)
            content[chance.randrange(most)] = chance.randrange(256)
    path.write_bytes(content)


def odd_model(seed: int, folder: Path) -> Path:
    """The same model for the same seed."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    tensors = changed(weights(WIDTH), 0.01, seed=seed)
    form = chance.choice(FORMS)
    oddities = chance.randrange(1, 8)
    if oddities & 1:
        tensors = odd_tensors(chance, tensors)
        if form in (adapter, mlx):
            tensors = {name: tensor for name, tensor in tensors.items() if tensor.ndim == 2} or {
                "x.weight": torch.ones(2, 2)
            }
    form(folder, tensors, WIDTH)
    if oddities & 2:
        odd_json(chance, chance.choice(sorted(folder.glob("*.json"))))
    if oddities & 4:
        odd_bytes(chance, chance.choice(sorted(file for file in folder.iterdir() if file.is_file())))
    if form in (adapter, mlx) and chance.random() < 0.5:  # oddities of the factors themselves
        for path in folder.glob("adapter*.safetensors"):
            try:
                factors = load_file(path)
            except Exception:  # damaged above
                continue
            save_file({name: tensor.contiguous() for name, tensor in odd_tensors(chance, factors).items()}, path)
    return folder


def outcome(seed: int, folder: Path, base: BaseMatrices) -> str:
    """indexed, or the reason; anything but a ModelError in one printable line fails the test."""
    started = time.monotonic()
    relation = random.Random(seed).choice(["finetune", "adapter"])
    reason, detail = "indexed", ""
    try:
        record_of(odd_model(seed, folder), base, model=f"a/m{seed}", relation=relation)
    except ModelError as error:
        reason, detail = error.reason, error.detail
    assert detail.isprintable(), (seed, detail)
    assert (reason == "indexed") == (detail == ""), seed
    assert len(detail) < 2000, (seed, detail)
    assert time.monotonic() - started < 20, seed
    return reason


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseMatrices:
    return base_of(tmp_path_factory.mktemp("base"), weights(WIDTH), WIDTH)


def check(seeds: range, folder: Path, base: BaseMatrices) -> set[str]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {outcome(seed, folder / str(seed), base) for seed in seeds}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB
    return outcomes


def test_forty_models_with_oddities(tmp_path: Path, base: BaseMatrices) -> None:
    assert len(check(range(40), tmp_path, base)) > 3


@pytest.mark.slow
def test_a_thousand_models_with_oddities(tmp_path: Path, base: BaseMatrices) -> None:
    outcomes = check(range(40, 1040), tmp_path, base)
    for seed in range(1040, 1140):
        detail = ""
        folder = odd_model(seed, tmp_path / str(seed))
        try:
            store_base(open_checkpoint(ModelRef("a/b", folder=folder)), "a/b", "c" * 40, tmp_path / f"base-{seed}")
        except (AtlasError, ModelError) as error:
            detail = str(error)
        assert detail.isprintable(), seed
    assert {
        "indexed",
        "corrupt_file",
        "malformed",
        "missing_matrices",
        "shape_mismatch",
        "unreadable_dtype",
    } <= outcomes
