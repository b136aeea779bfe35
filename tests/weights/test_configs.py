"""What config.json and the index of shards may say, and what of it is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import AtlasError, Skipped
from indexer.sources.folder import local_row
from indexer.sources.registry import ModelRef
from tests.weights.folders import a_state, folder_reference, save_sharded, write_config


def skipped(folder: Path, **options: Any) -> Skipped:
    with pytest.raises(Skipped) as skip:
        open_checkpoint(folder_reference(folder), **options)
    return skip.value


# Configs.


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b"{", "malformed"),
        (b"\xff\xfe{\x00}\x00", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"a":' * 100_000, "malformed"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "malformed"),
        (b'{"a": "' + b"x" * 5_000_000 + b'"}', "malformed"),
        (b'{"quantization_config": {"quant_method": "gptq", "bits": 4}}', "quantized"),
        (b'{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}', "quantized"),
        (b'{"quantization_config": {"quant_method": "hqq"}}', "quantized"),
        (b'{"quantization_config": "awq"}', "quantized"),
        (b'{"compression_config": {"format": "x"}}', "quantized"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    save_file(a_state(), tmp_path / "model.safetensors")
    skip = skipped(tmp_path)
    assert skip.reason == reason
    if method := re.search(rb'"quant_method": "(\w+)"', content):
        assert method[1].decode() in skip.detail


@pytest.mark.parametrize("name", ["layer.0.qweight", "layer.0.weight.SCB", "layer.0.weight.quant_map"])
def test_quantised_weights_are_known_by_their_parts(tmp_path: Path, name: str) -> None:
    write_config(tmp_path)
    save_file(a_state() | {name: torch.ones(2)}, tmp_path / "model.safetensors")
    skip = skipped(tmp_path)
    assert skip.reason == "quantized"
    assert name in skip.detail


def test_quantisation_that_is_switched_off_is_ignored(tmp_path: Path) -> None:
    off = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}
    write_config(tmp_path, quantization_config=off)
    save_file(a_state(), tmp_path / "model.safetensors")
    assert open_checkpoint(folder_reference(tmp_path)).kind == "full"
    write_config(tmp_path, quantization_config=None)
    assert open_checkpoint(folder_reference(tmp_path)).kind == "full"


def test_a_full_model_needs_a_config(tmp_path: Path) -> None:
    save_file(a_state(), tmp_path / "model.safetensors")
    assert skipped(tmp_path).reason == "malformed"


def test_an_adapter_needs_its_own_config_only(tmp_path: Path) -> None:
    factors = {f"base_model.model.q.lora_{side}.weight": torch.ones(2, 2) for side in "AB"}
    save_file(factors, tmp_path / "adapter_model.safetensors")
    assert skipped(tmp_path, relation="adapter").reason == "malformed"
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    for relation in ("adapter", "finetune"):
        checkpoint = open_checkpoint(folder_reference(tmp_path), relation=relation)
        assert checkpoint.kind == "adapter"
        assert checkpoint.adapter_config == {"peft_type": "LORA"}
        assert checkpoint.files[0].format == "adapter-safetensors"
    (tmp_path / "config.json").write_text("not JSON")
    assert open_checkpoint(folder_reference(tmp_path)).config == {}
    (tmp_path / "adapter_config.json").write_text("[1]")
    assert skipped(tmp_path).reason == "malformed"


def test_subfolders(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "checkpoint-10").mkdir()
    save_file(a_state(1), tmp_path / "checkpoint-10" / "model.safetensors")
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert checkpoint.folder == "checkpoint-10/"
    assert checkpoint.config == {"model_type": "bert"}
    write_config(tmp_path / "checkpoint-10", hidden_size=3)
    assert open_checkpoint(folder_reference(tmp_path)).config["hidden_size"] == 3
    inner = ModelRef(id=str(tmp_path), folder=tmp_path, subfolder="checkpoint-10")
    assert torch.equal(
        dict(open_checkpoint(inner).stream(["layer.0.weight"]))["layer.0.weight"],
        a_state(1)["layer.0.weight"],
    )
    for climbing in ("..", "/etc", "a/../.."):
        with pytest.raises(Skipped):
            open_checkpoint(ModelRef(id="x", folder=tmp_path, subfolder=climbing))


# Shards.


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        (None, "malformed"),
        ({}, "malformed"),
        ([1], "malformed"),
        ({"a": 3}, "malformed"),
        ({"a": "../secret.safetensors"}, "malformed"),
        ({"a": "/etc/passwd"}, "malformed"),
        ({"a": "sub/model.safetensors"}, "malformed"),
        ({"a": ".."}, "malformed"),
        ({"a": "config.json"}, "malformed"),
        ({"a": "a\x1b[31m.safetensors"}, "malformed"),
        ({"a": "missing.safetensors"}, "corrupt_file"),
        ({f"t{i}": f"{i}.safetensors" for i in range(2000)}, "malformed"),
    ],
)
def test_indexes_of_shards_that_are_refused(tmp_path: Path, weight_map: Any, reason: str) -> None:
    write_config(tmp_path)
    write_index(tmp_path, weight_map)
    skip = skipped(tmp_path)
    assert skip.reason == reason
    assert skip.detail.isprintable()


def test_a_missing_shard_is_reported(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_sharded(tmp_path, a_state())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    skip = skipped(tmp_path)
    assert skip.reason == "corrupt_file"
    assert "model-00002-of-00002.safetensors" in skip.detail


@pytest.mark.parametrize(
    ("weight_map", "total"),
    [
        ({"b": "one", "a": "two", "c": "two"}, 2),
        ({"b": "one", "a": "one", "c": "two"}, 0),  # both hold it: the index decides
        ({"b": "two", "a": "one", "c": "one"}, 0),  # "b" and "c" are in the other shard
        ({"b": "one", "d": "two"}, 2),  # the index lacks two tensors and names one that is nowhere
    ],
)
def test_the_headers_say_which_shard_holds_a_tensor_and_the_index_chooses_of_several(
    tmp_path: Path, weight_map: dict[str, str], total: int
) -> None:
    write_config(tmp_path)
    first, second = {"a": torch.zeros(2), "b": torch.zeros(2)}, {"a": torch.ones(2), "c": torch.ones(2)}
    save_file(first, tmp_path / "one.safetensors")
    save_file(second, tmp_path / "two.safetensors")
    write_index(tmp_path, {name: f"{shard}.safetensors" for name, shard in weight_map.items()})
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert set(checkpoint.tensors) == {"a", "b", "c"}
    tensors = dict(checkpoint.stream(["a", "b", "c"]))
    assert [float(tensors[name].sum()) for name in "abc"] == [total, 0, 2]


def test_an_index_that_names_the_wrong_shards_costs_nothing(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_sharded(tmp_path, a_state())
    path = tmp_path / "model.safetensors.index.json"
    right = json.loads(path.read_text())["weight_map"]
    shards = sorted(set(right.values()))
    write_index(tmp_path, {name: shards[1 - shards.index(shard)] for name, shard in right.items()})
    tensors = dict(open_checkpoint(folder_reference(tmp_path)).stream(list(right)))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in a_state().items())


@pytest.mark.slow
def test_a_list_of_a_thousand_shards_with_links(tmp_path: Path) -> None:
    """As many as are read; in the Hub's cache every file is a link. A name that is there twice counts once."""
    write_config(tmp_path)
    (tmp_path / "blobs").mkdir()
    names = [f"model-{number:05}-of-01000.safetensors" for number in range(1, 1001)]
    for number, name in enumerate(names):
        save_file({f"t{number}": torch.full((1,), float(number))}, tmp_path / "blobs" / str(number))
        (tmp_path / name).symlink_to(tmp_path / "blobs" / str(number))
    rows = ", ".join(f'"t{number}": "{name}"' for number, name in enumerate(names))
    text = f'{{"weight_map": {{"t0": "model-00002-of-01000.safetensors", {rows}}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(text)
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert len(checkpoint.files) == len(checkpoint.tensors) == 1000
    assert float(dict(checkpoint.stream(["t999"]))["t999"]) == 999


@pytest.mark.parametrize(
    "name",
    [
        "../{}",
        "/{}",
        "./{}",
        "x/../{}",
        "x/{}",
        "x\\{}",
        "{}\n",
        "{}\0.safetensors",
        " ../{}",
        "file:{}",
        "~/{}",
        "{}/",
        "%2e%2e/{}",
    ],
)
def test_no_path_in_a_list_of_shards_is_followed(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    write_config(inner / "x")
    write_config(inner)
    for folder in (tmp_path, inner, inner / "x"):
        save_file({"a": torch.ones(2)}, folder / "s.safetensors")
    write_index(inner, {"a": name.format("s.safetensors"), "b": "s.safetensors"})
    skip = skipped(inner)
    assert skip.reason == "malformed"
    assert "not the name of a weight file" in skip.detail
    assert skip.detail.isprintable()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 500\n"


@pytest.mark.parametrize(
    ("pointer", "relation"),
    [
        ("config.json", "finetune"),
        ("model.safetensors", "finetune"),
        ("model.safetensors.index.json", "finetune"),
        ("pytorch_model.bin", "finetune"),
        ("adapter_config.json", "adapter"),
        ("adapter_model.safetensors", "adapter"),
        ("adapter_model.bin", "adapter"),
    ],
)
def test_a_git_lfs_pointer_is_called_one(tmp_path: Path, pointer: str, relation: str) -> None:
    """A repository that was cloned without Git LFS: every large file, or all of them."""
    if relation == "adapter":
        (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        if not pointer.startswith("adapter_model"):
            save_file({"base_model.model.q.lora_A.weight": torch.ones(2, 2)}, tmp_path / "adapter_model.safetensors")
    else:
        write_config(tmp_path)
        if pointer == "config.json":
            save_file(a_state(), tmp_path / "model.safetensors")
    (tmp_path / pointer).write_bytes(POINTER)
    skip = skipped(tmp_path, relation=relation)
    assert skip.reason == "corrupt_file"
    assert f"'{pointer}' is a Git LFS pointer" in skip.detail
    assert "git lfs pull" in skip.detail


@pytest.mark.parametrize(("name", "form"), [("weights.npz", "NumPy"), ("onnx/model.ort", "ONNX")])
def test_a_folder_with_another_format_is_told_which(tmp_path: Path, name: str, form: str) -> None:
    write_config(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(AtlasError, match=rf"only {form}.*, a format that is not read.*save_pretrained"):
        local_row(folder_reference(tmp_path))
