"""A tree in which every kind of finding is planted, and a cache of the Hub's client with the base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, snapshot_download
from safetensors.torch import load_file, save_file
from transformers import RobertaConfig, RobertaModel

from scripts.loopback_hub import LoopbackHub
from tests.hubs import reset_session, use_endpoint
from tests.tiny_hub import BASE, SIZES
from tests.trees import adapter, factors, full, loose

ELSEWHERE = "org/elsewhere"


def checkpoint(folder: Path, seed: int, step: int) -> Path:
    """A checkpoint of a run, with the state that the Trainer writes."""
    adapter(folder, seed)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": step / 20, "log_history": []}))
    return folder


def with_factors(folder: Path, tensors: dict[str, torch.Tensor], **config) -> Path:
    """An adapter with these factors."""
    adapter(folder, 0, **config)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def plant(tree: Path, store: Path) -> Path:
    """The tree. Its models, by what is to be found in each: see ``test_findings``."""
    adapter(tree / "good/a", 1)
    adapter(tree / "good/b", 2)
    (tree / "good/a/README.md").write_text("---\nlicense: apache-2.0\n---\n# A\n")
    shutil.copytree(tree / "good/b", tree / "copies/b")
    loose(tree / "copies/renamed.safetensors", 2, ss_output_name="x", **{"modelspec.license": "MIT"})
    near = {name: tensor * (1.01 if "lora_B" in name else 1.0) for name, tensor in factors(2).items()}
    with_factors(tree / "near", near)
    for number in (20, 40, 60):
        checkpoint(tree / f"run/checkpoint-{number}", 100 + number, number)
    with_factors(tree / "untrained", {
        name: torch.zeros_like(tensor) if "lora_B" in name else tensor for name, tensor in factors(9).items()
    })  # fmt: skip
    with_factors(tree / "wrong-shapes", factors(5, width=32))
    bad = factors(6)
    next(iter(bad.values()))[0, 0] = float("nan")
    with_factors(tree / "nan", bad)
    cut = adapter(tree / "cut", 7) / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    (tree / "shards").mkdir()
    (tree / "shards/config.json").write_text(json.dumps({"model_type": "roberta"}))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tree / "shards/model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.ones(2)}, tree / "shards/model-00001-of-00002.safetensors")
    full(tree / "full/tuned", store, "ann/glue-0")
    full(tree / "full/base", store, BASE, base=None)
    torch.manual_seed(77)
    RobertaModel(RobertaConfig(**SIZES)).save_pretrained(tree / "full/stranger")
    (tree / "full/stranger/README.md").write_text(f"---\nbase_model: {BASE}\n---\n")
    half = load_file(tree / "full/tuned/model.safetensors")
    full(tree / "full/half", store, "ann/glue-0")
    save_file({name: t.to(torch.bfloat16) for name, t in half.items()}, tree / "full/half/model.safetensors")
    adapter(tree / "elsewhere", 8, base=ELSEWHERE)
    adapter(tree / "prompt", 10, peft_type="PROMPT_TUNING")
    (tree / "g").mkdir()
    (tree / "g/mmproj.gguf").write_bytes(b"GGUF")
    return tree


@pytest.fixture(scope="session")
def planted(tiny_store, tmp_path_factory) -> Path:
    """The tree; tests must not change it."""
    return plant(tmp_path_factory.mktemp("scans") / "team", tiny_store(2))


@pytest.fixture(scope="session")
def base_cache(tiny_store, tmp_path_factory) -> Path:
    """A cache that the real client filled with the base."""
    folder = tmp_path_factory.mktemp("base-cache")
    with LoopbackHub(tiny_store(2)) as running, pytest.MonkeyPatch.context() as patch:
        use_endpoint(patch, running.endpoint)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        snapshot_download(BASE, cache_dir=folder, endpoint=running.endpoint)
        reset_session()
    return folder


@pytest.fixture
def offline(base_cache, tmp_path, monkeypatch) -> Path:
    """This process without a network, with the base in its cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(base_cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return base_cache
