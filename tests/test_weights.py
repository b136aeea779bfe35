"""Checkpoints: which file wins, what is refused, and how few bytes and how little memory reading takes."""

from __future__ import annotations

import gc
import itertools
import json
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from indexer.errors import Failed, Skipped
from indexer.formats.checkpoint_files import choose
from indexer.formats.safetensors_index import read_index
from indexer.network.byterange import LocalFile
from indexer.network.hub_get import Patience
from indexer.network.session import Manners, install_session
from indexer.weights import GAP_SHARE, open_checkpoint, plan_runs
from indexer.words import ModelRef
from scripts.loopback_hub import LoopbackHub

SHA = "1234567890abcdef1234567890abcdef12345678"
QUICK = Patience(setbacks=2, first_wait=0.01, longest_wait=0.02)


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    install_session(Manners(read_seconds=2.0, first_wait=0.01, longest_wait=0.05, retries=2))
    yield
    install_session()


def folder_reference(folder: Path) -> ModelRef:
    return ModelRef(id=str(folder), folder=folder)


def write_config(folder: Path, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | config))


def skipped(folder: Path, **options: Any) -> Skipped:
    with pytest.raises(Skipped) as skip:
        open_checkpoint(folder_reference(folder), **options)
    return skip.value


def a_state(seed: int = 0, count: int = 6, size: int = 40) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(size, size, generator=generator) for i in range(count)}


# Which file wins.


@pytest.mark.parametrize(
    ("relation", "names", "winner"),
    [
        # One row of the table against the next.
        (
            "adapter",
            "adapter_model.safetensors adapter_model.bin model.safetensors",
            "adapter_model.safetensors",
        ),
        ("adapter", "adapter_model.bin model.safetensors", "adapter_model.bin"),
        ("adapter", "model.safetensors", "model.safetensors"),
        ("finetune", "model.safetensors model.safetensors.index.json pytorch_model.bin", "model.safetensors"),
        ("finetune", "model.safetensors.index.json pytorch_model.bin", "model.safetensors.index.json"),
        ("finetune", "pytorch_model.bin pytorch_model.bin.index.json", "pytorch_model.bin"),
        ("finetune", "pytorch_model.bin.index.json other.safetensors", "pytorch_model.bin.index.json"),
        ("finetune", "pytorch_model.bin model.fp16.safetensors", "pytorch_model.bin"),
        ("finetune", "my-model.safetensors model.fp16.safetensors", "my-model.safetensors"),
        ("finetune", "model.fp16.safetensors", "model.fp16.safetensors"),
        ("finetune", "adapter_model.safetensors model.safetensors", "model.safetensors"),
        ("merge", "adapter_model.bin", "adapter_model.bin"),
        ("finetune", "consolidated.safetensors mine.safetensors", "mine.safetensors"),
        ("finetune", "training_args.bin optimizer.bin scheduler.bin pytorch_model.bin", "pytorch_model.bin"),
        (
            "finetune",
            "0_Transformer/pytorch_model.bin 1_Pooling/pytorch_model.bin",
            "0_Transformer/pytorch_model.bin",
        ),
        (
            "finetune",
            "checkpoint-900/model.safetensors checkpoint-1000/model.safetensors checkpoint-1100/trainer_state.json",
            "checkpoint-1000/model.safetensors",
        ),
        ("finetune", "checkpoint-5/pytorch_model.bin pytorch_model.bin", "pytorch_model.bin"),
        ("adapter", "checkpoint-5/adapter_model.bin README.md", "checkpoint-5/adapter_model.bin"),
        ("finetune", "weights/model.safetensors onnx/model.onnx", "weights/model.safetensors"),
        ("finetune", "a/b/model.safetensors pytorch_model.bin", "pytorch_model.bin"),
    ],
)
def test_the_table(relation: str, names: str, winner: str) -> None:
    for order in itertools.islice(itertools.permutations(names.split()), 6):
        choice = choose(order, relation)
        assert choice.folder + choice.name == winner
        assert choice.kind == ("adapter" if "adapter_model" in winner else "full")


@pytest.mark.parametrize(
    ("names", "reason", "words"),
    [
        ("", "no_weights", []),
        ("README.md config.json", "no_weights", []),
        ("training_args.bin optimizer.pt scheduler.pt rng_state.pth optimizer.safetensors", "no_weights", []),
        ("model-q4.gguf README.md", "unreadable_format", ["GGUF"]),
        ("ggml-model-q4_0.bin", "unreadable_format", ["GGUF"]),
        (
            "onnx/model.onnx tf_model.h5 flax_model.msgpack",
            "unreadable_format",
            ["ONNX", "TensorFlow", "flax"],
        ),
        ("consolidated.safetensors", "unreadable_format", ["consolidated"]),
        ("consolidated.00.pth", "unreadable_format", ["consolidated"]),
        ("model.ckpt", "unreadable_format", ["PyTorch"]),
        ("model.pkl", "unreadable_format", ["pickles"]),
        ("openvino_model.bin openvino_model.xml", "unreadable_format", ["OpenVINO"]),
        ("model-00001-of-00002.safetensors model-00002-of-00002.safetensors", "no_weights", ["index"]),
        ("a.safetensors b.safetensors", "no_weights", ["2 safetensors"]),
        ("unet/model.safetensors vae/model.safetensors", "no_weights", ["'unet/'", "'vae/'"]),
        ("../model.safetensors", "no_weights", []),
        ("/model.safetensors", "no_weights", []),
        ("./model.safetensors", "no_weights", []),
    ],
)
def test_what_cannot_be_read_is_named(names: str, reason: str, words: list[str]) -> None:
    with pytest.raises(Skipped) as skip:
        choose(names.split(), "finetune")
    assert skip.value.reason == reason
    for word in words:
        assert word in skip.value.detail


@given(st.lists(st.text(max_size=30), max_size=20), st.sampled_from(["finetune", "adapter", "", "x"]))
@settings(max_examples=200, deadline=None)
def test_any_names_are_chosen_from_or_skipped(names: list[str], relation: str) -> None:
    try:
        choice = choose(names, relation)
    except Skipped as skip:
        detail = skip.detail
    else:
        detail = ""
        assert choice.folder + choice.name in names
    assert not detail or detail.isprintable()


# Every form, from a folder.


def save_sharded(folder: Path, state: dict[str, torch.Tensor], suffix: str = "safetensors") -> None:
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(state)
    halves = [names[::2], names[1::2]]
    weight_map = {}
    for number, part in enumerate(halves, start=1):
        shard = f"{stem}-{number:05}-of-00002.{suffix}"
        tensors = {name: state[name] for name in part}
        save_file(tensors, folder / shard) if suffix == "safetensors" else torch.save(tensors, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


FORMS: dict[str, Callable[[Path, dict[str, torch.Tensor]], object]] = {
    "safetensors": lambda folder, state: save_file(state, folder / "model.safetensors"),
    "torch-zip": lambda folder, state: torch.save(state, folder / "pytorch_model.bin"),
    "torch-legacy": lambda folder, state: torch.save(
        state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False
    ),
    "safetensors shards": save_sharded,
    "torch-zip shards": lambda folder, state: save_sharded(folder, state, "bin"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tensors(tmp_path: Path, form: str) -> None:
    state = a_state() | {
        "half": torch.randn(3, 5).half(),
        "bf": torch.randn(7).bfloat16(),
        "one": torch.tensor(2.0),
    }
    write_config(tmp_path, hidden_size=7)
    FORMS[form](tmp_path, state)
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert checkpoint.kind == "full"
    assert checkpoint.config == {"model_type": "bert", "hidden_size": 7}
    assert {facts.format for facts in checkpoint.files} == {form.split()[0]}
    assert {name: (info.dtype, info.shape) for name, info in checkpoint.tensors.items()} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()
    }
    wanted = ["layer.4.weight", "layer.1.weight", "half", "one", "bf"]
    found = dict(checkpoint.stream(wanted))
    assert set(found) == set(wanted)
    for name in wanted:
        assert found[name].dtype == state[name].dtype
        assert torch.equal(found[name], state[name])
    assert list(checkpoint.stream([])) == []
    checkpoint.close()


def test_tensors_come_in_file_order_whatever_order_is_asked_for(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(a_state(count=12), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    stored = sorted(checkpoint.tensors, key=lambda name: checkpoint._file_of[name].index.locate(name).start)
    names = list(checkpoint.tensors)
    random.Random(3).shuffle(names)
    assert [name for name, _ in checkpoint.stream(names)] == stored


@pytest.mark.parametrize("size", [40, 600])
@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_that_is_kept_keeps_its_values(tmp_path: Path, form: str, size: int) -> None:
    """Memory is used again only when nothing refers to it: not a view, not a NumPy array."""
    write_config(tmp_path)
    state = a_state(count=12, size=size)
    FORMS[form](tmp_path, state)
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    kept: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(checkpoint.stream(state)):
        assert torch.equal(tensor, state[name])
        if number % 4 == 0:
            kept[name] = tensor[1:3].t()
        elif number % 4 == 1:
            kept[name] = tensor.numpy()[1:3].T
        del tensor
    for name, view in kept.items():
        assert torch.equal(torch.as_tensor(view), state[name][1:3].t())
    everything = dict(checkpoint.stream(state))
    for tensor in everything.values():
        tensor.add_(1)
    assert all(torch.equal(everything[name], state[name] + 1) for name in state)


def test_memory_is_used_again(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(a_state(count=12, size=600), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    places = {tensor.data_ptr() for _, tensor in checkpoint.stream(checkpoint.tensors)}
    assert len(places) <= 2


def test_real_transformers_checkpoints(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaModel

    models = {
        "roberta": RobertaModel(
            RobertaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
        ),
        "gpt2": GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4)),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        checkpoint = open_checkpoint(folder_reference(tmp_path / name))
        assert checkpoint.config["model_type"] == name
        expected = load_file(tmp_path / name / "model.safetensors")
        found = dict(checkpoint.stream(checkpoint.tensors))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[each], expected[each]) for each in expected)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    checkpoint = open_checkpoint(folder_reference(tmp_path / "sharded"))
    assert len(checkpoint.files) > 2
    assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint.stream(checkpoint.tensors))


def test_what_is_asked_for_must_be_there(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(a_state(), tmp_path / "model.safetensors")
    with pytest.raises(Skipped) as skip:
        next(open_checkpoint(folder_reference(tmp_path)).stream(["layer.0.weight", "nothing"]))
    assert skip.value.reason == "missing_matrices"


def test_dtypes_without_a_delta_are_refused_only_when_asked_for(tmp_path: Path) -> None:
    write_config(tmp_path)
    state = {
        "ids": torch.arange(5),
        "q": torch.zeros(4, 4, dtype=torch.int8),
        "f8": torch.zeros(3).to(torch.float8_e4m3fn),
        "w": torch.ones(2, 2),
    }
    save_file(state, tmp_path / "model.safetensors")
    torch.save({**state, "c": torch.ones(2, dtype=torch.complex64)}, tmp_path / "pytorch_model.bin")
    for name in ("model.safetensors", "pytorch_model.bin"):
        checkpoint = open_checkpoint(folder_reference(tmp_path), filenames=None)
        assert dict(checkpoint.stream(["w"]))["w"].sum() == 4
        for tensor, dtype in (("ids", "I64"), ("q", "I8"), ("f8", "F8_E4M3")):
            with pytest.raises(Skipped) as skip:
                next(checkpoint.stream(["w", tensor]))
            assert skip.value.reason == "unreadable_dtype"
            assert dtype in skip.value.detail
        (tmp_path / name).unlink(missing_ok=True)


def test_a_dtype_that_torch_does_not_know_is_listed(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"w": ("F6_E2M3", [4, 4], 0, 12)}, 12)
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert checkpoint.tensors["w"].dtype_name == "F6_E2M3"
    with pytest.raises(Skipped, match="F6_E2M3"):
        next(checkpoint.stream(["w"]))


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
        (b'{"quantization_config": {"quant_method": "fp8"}}', "quantized"),
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


def test_quantisation_that_is_switched_off_is_none(tmp_path: Path) -> None:
    off = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}
    write_config(tmp_path, quantization_config=off)
    save_file(a_state(), tmp_path / "model.safetensors")
    assert open_checkpoint(folder_reference(tmp_path)).kind == "full"
    write_config(tmp_path, quantization_config=None)
    assert open_checkpoint(folder_reference(tmp_path)).kind == "full"


def test_a_missing_config_may_be_stood_in_for(tmp_path: Path) -> None:
    save_file(a_state(), tmp_path / "model.safetensors")
    assert skipped(tmp_path).reason == "malformed"
    checkpoint = open_checkpoint(folder_reference(tmp_path), config={"model_type": "roberta"})
    assert checkpoint.config == {"model_type": "roberta"}


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


def test_a_missing_shard_is_told(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_sharded(tmp_path, a_state())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    skip = skipped(tmp_path)
    assert skip.reason == "corrupt_file"
    assert "model-00002-of-00002.safetensors" in skip.detail


def test_the_index_decides_which_shard_a_tensor_comes_from(tmp_path: Path) -> None:
    write_config(tmp_path)
    first, second = {"a": torch.zeros(2), "b": torch.zeros(2)}, {"a": torch.ones(2), "c": torch.ones(2)}
    save_file(first, tmp_path / "one.safetensors")
    save_file(second, tmp_path / "two.safetensors")
    write_index(tmp_path, {"b": "one.safetensors", "a": "two.safetensors", "d": "two.safetensors"})
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    assert set(checkpoint.tensors) == {"a", "b"}
    assert dict(checkpoint.stream(["a"]))["a"].sum() == 2


# safetensors headers.


def write_safetensors(
    path: Path, entries: dict[str, tuple[str, list[Any], int, int]], data: int, extra: str = ""
) -> None:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        for name, (dtype, shape, begin, end) in entries.items()
    }
    text = json.dumps(header)[:-1] + extra + "}"
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + b"\0" * data)


@pytest.mark.parametrize(
    ("entries", "data", "word"),
    [
        ({"w": ("F32", [2, 2], 0, 16)}, 15, "1 of its"),
        ({"w": ("F32", [2, 2], 0, 16)}, 0, "16 of its"),
        ({"w": ("F32", [2, 2], 0, 16)}, 20, "belong to no tensor"),
        ({"w": ("F32", [2, 2], 0, 12)}, 12, "takes '16'"),
        ({"w": ("F32", [2, 2], 16, 0)}, 16, "ends before"),
        ({"w": ("F32", [2, 2], -16, 0)}, 16, "offsets"),
        ({"w": ("F32", [2, -2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [True, 4], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [2.0, 2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [1 << 40, 1 << 40], 0, 16)}, 16, "takes"),
        ({"w": ("F32", [1 << 63, 2], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [1] * 17 + [4], 0, 16)}, 16, "shape"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 8, 24)}, 24, "over"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 0, 16)}, 16, "over"),
        ({"w": ("F32", [4], 0, 16), "v": ("F32", [4], 20, 36)}, 36, "leaves 4 bytes"),
        ({"w": ("F32", [4], 4, 20)}, 20, "leaves 4 bytes"),
        ({"w": (7, [4], 0, 16)}, 16, "dtype"),
        ({"__metadata__": ("F32", [4], 0, 16)}, 16, "metadata"),
    ],
)
def test_headers_that_lie(tmp_path: Path, entries: dict, data: int, word: str) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, entries, data)
    with pytest.raises(Skipped) as skip:
        read_index(LocalFile(path))
    assert skip.value.reason == "corrupt_file"
    assert word in skip.value.detail
    assert "model.safetensors" in skip.value.detail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 3) + b"{}\xff",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        struct.pack("<Q", 13) + b'{"a":{},"a":{}}'[:13],
        struct.pack("<Q", 8) + b'{"w":[]}',
        struct.pack("<Q", 8) + b'{"w":{}}',
        struct.pack("<Q", 19) + b'{"__metadata__":[]}',
        b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 5\n",
        b"<!DOCTYPE html><html>",
    ],
)
def test_what_is_no_header(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(Skipped) as skip:
        read_index(LocalFile(path))
    assert skip.value.reason == "corrupt_file"


def test_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    again = ', "w": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}'
    write_safetensors(path, {"w": ("F32", [4], 0, 16)}, 32, again)
    with pytest.raises(Skipped, match="twice"):
        read_index(LocalFile(path))


def test_a_header_larger_than_the_first_guess(tmp_path: Path) -> None:
    state = {f"a.rather.long.name.for.a.tensor.number.{i}": torch.full((2,), float(i)) for i in range(2000)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt", "note": "x" * 5000})
    file = LocalFile(tmp_path / "model.safetensors")
    index = read_index(file)
    assert index.metadata["format"] == "pt"
    for name in list(state)[::97]:
        assert torch.equal(index.read(file, name), state[name])


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000) + b"{")
        file.truncate(200_000_000)
    source = LocalFile(path)
    with pytest.raises(Skipped) as skip:
        read_index(source)
    assert skip.value.reason == "corrupt_file"
    assert source.bytes_read < 100_000


@given(position=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_never_escape(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(2)}, path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content)
    file = LocalFile(path)
    reason = "corrupt_file"
    try:
        index = read_index(file)
        for name in index.tensors:
            index.read(file, name)
    except Skipped as skip:
        reason = skip.reason
    assert reason in ("corrupt_file", "unreadable_dtype")


# Runs.


class Piece:
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 5_000)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_runs_cover_everything_and_waste_little(pairs: list[tuple[int, int]], chance: random.Random) -> None:
    pieces, position = [], 0
    for size, gap in pairs:
        pieces.append(Piece(position, position + size))
        position += size + gap
    shuffled = pieces[:]
    chance.shuffle(shuffled)
    runs = plan_runs(shuffled)  # type: ignore[arg-type]
    assert [piece for run in runs for piece in run] == pieces
    wanted = sum(piece.stop - piece.start for piece in pieces)
    fetched = sum(run[-1].stop - run[0].start for run in runs)
    assert wanted <= fetched <= wanted * (1 + GAP_SHARE)
    # The smallest gap that was left must not have fitted any more, and neighbours are never parted.
    left = [after[0].start - before[-1].stop for before, after in itertools.pairwise(runs)]
    assert all(gap > 0 for gap in left)
    assert not left or fetched - wanted + min(left) > wanted * GAP_SHARE


def test_tensors_that_overlap_do_not_share_a_run() -> None:
    runs = plan_runs([Piece(0, 100), Piece(50, 150), Piece(150, 200), Piece(0, 100)])  # type: ignore[list-item]
    assert [[(piece.start, piece.stop) for piece in run] for run in runs] == [
        [(0, 100)],
        [(0, 100)],
        [(50, 150), (150, 200)],
    ]


# The Hub.


def block_names(state: dict[str, torch.Tensor]) -> list[str]:
    """The matrices of the blocks of a bert: what a record needs."""
    return [
        name
        for name in state
        if re.search(r"encoder\.layer\.\d+\.", name) and name.endswith(".weight") and "LayerNorm" not in name
    ]


@pytest.fixture(scope="module")
def bert() -> dict[str, torch.Tensor]:
    """A bert of 12 layers, as wide as keeps the test quick: 9.4 MB of blocks, 8 MB of embeddings."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=12, num_attention_heads=4, intermediate_size=512, vocab_size=16_000
    )
    return {name: tensor.clone() for name, tensor in BertForSequenceClassification(config).state_dict().items()}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, bert: dict[str, torch.Tensor]) -> Iterator[LoopbackHub]:
    root = tmp_path_factory.mktemp("store")

    def repository(name: str, **settings: Any) -> Path:
        folder = root / "me" / name
        write_config(folder)
        (root / "me" / f"{name}.repo.json").write_text(json.dumps({"sha": SHA} | settings))
        return folder

    for form, write in FORMS.items():
        write(repository(form.replace(" ", "-")), bert)
    torch.save(
        bert,
        repository(
            "converted",
            revisions={
                "refs/pr/1": {
                    "sha": "f" * 40,
                    "folder": "me/converted.pr1",
                    "author": "SFconvertbot",
                    "title": "x",
                },
                "refs/pr/2": {"sha": "e" * 40, "folder": "me/empty", "author": "SFconvertbot", "title": "x"},
            },
        )
        / "pytorch_model.bin",
    )
    (root / "me" / "converted.pr1").mkdir()
    save_file(bert, root / "me" / "converted.pr1" / "model.safetensors")
    (root / "me" / "empty").mkdir()
    (root / "me" / "empty" / "README.md").write_text("nothing")
    save_file(a_state(5), repository("gated", gated="manual") / "model.safetensors")
    nested = repository("nested") / "inner"
    write_config(nested, hidden_size=9)
    save_file(a_state(6), nested / "model.safetensors")
    with LoopbackHub(root) as hub:
        hub.prepare()
        yield hub


@pytest.fixture
def hub(serving: LoopbackHub) -> Iterator[LoopbackHub]:
    serving.faults.clear()
    serving.reset_log()
    yield serving
    serving.faults.clear()


@pytest.mark.parametrize("form", FORMS)
def test_bytes_over_http_stay_under_the_bar(hub: LoopbackHub, bert: dict[str, torch.Tensor], form: str) -> None:
    """Response bodies <= 1.02 x block matrices + 64 KiB a file, counted by the server; values as saved."""
    identifier = f"me/{form.replace(' ', '-')}"
    checkpoint = open_checkpoint(ModelRef(identifier), commit=SHA, endpoint=hub.endpoint, filenames=None)
    names = block_names(bert)
    assert len(names) == 72
    count = 0
    for name, tensor in checkpoint.stream(names):
        assert torch.equal(tensor, bert[name])
        count += 1
    assert count == 72
    blocks = sum(bert[name].nbytes for name in names)
    sent = sum(request.body_bytes for request in hub.requests if "/api/" not in request.path)
    assert sent == checkpoint.bytes_read
    assert sent <= 1.02 * blocks + 65_536 * len(checkpoint.files)
    # Few requests, too: per file a HEAD and what the index takes, then runs.
    assert len([request for request in hub.requests if request.method == "GET"]) <= 6 * len(checkpoint.files) + 3
    assert not hub.leaks
    assert all(facts.sha256 is not None and len(facts.sha256) == 64 for facts in checkpoint.files)


def test_known_names_and_commit_save_asking(hub: LoopbackHub) -> None:
    names = ["config.json", "model.safetensors"]
    reference = ModelRef("me/safetensors")
    open_checkpoint(reference, commit=SHA, filenames=names, endpoint=hub.endpoint)
    assert not [request for request in hub.requests if "/api/" in request.path]
    checkpoint = open_checkpoint(ModelRef("me/safetensors", "main"), endpoint=hub.endpoint)
    assert checkpoint.commit == SHA


def test_a_subfolder_of_the_hub(hub: LoopbackHub) -> None:
    checkpoint = open_checkpoint(ModelRef("me/nested", subfolder="inner"), endpoint=hub.endpoint)
    assert checkpoint.config["hidden_size"] == 9
    assert torch.equal(dict(checkpoint.stream(["layer.0.weight"]))["layer.0.weight"], a_state(6)["layer.0.weight"])


def test_a_conversion_is_read_in_place_of_a_pickle(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    reference = ModelRef("me/converted")
    asked = []

    def conversion() -> str | None:
        asked.append(1)
        return "refs/pr/1"

    checkpoint = open_checkpoint(reference, commit=SHA, endpoint=hub.endpoint, conversion=conversion)
    assert [facts.format for facts in checkpoint.files] == ["safetensors"]
    name = block_names(bert)[3]
    assert torch.equal(dict(checkpoint.stream([name]))[name], bert[name])
    assert not [request for request in hub.requests if request.filename == "pytorch_model.bin"]
    open_checkpoint(ModelRef("me/safetensors"), endpoint=hub.endpoint, conversion=conversion)
    assert asked == [1], "it is asked for only where the model has nothing but pickles"


@pytest.mark.parametrize("revision", [None, "refs/pr/2", "refs/pr/77"])
def test_without_a_conversion_the_pickle_is_read(hub: LoopbackHub, revision: str | None) -> None:
    checkpoint = open_checkpoint(
        ModelRef("me/converted"), commit=SHA, endpoint=hub.endpoint, conversion=lambda: revision
    )
    assert [facts.format for facts in checkpoint.files] == ["torch-zip"]


def test_what_the_hub_refuses_is_told(hub: LoopbackHub) -> None:
    with pytest.raises(Skipped) as skip:
        open_checkpoint(
            ModelRef("me/gated"),
            commit=SHA,
            filenames=["config.json", "model.safetensors"],
            endpoint=hub.endpoint,
        )
    assert skip.value.reason == "gated"
    for reference in (ModelRef("me/nobody"), ModelRef("me/safetensors", "no-such-branch")):
        with pytest.raises(Failed) as failure:
            open_checkpoint(reference, endpoint=hub.endpoint)
        assert failure.value.reason == "not_found"
        assert reference.id in failure.value.detail


def test_a_listed_file_that_is_gone_is_a_failure(hub: LoopbackHub) -> None:
    with pytest.raises(Failed) as failure:
        open_checkpoint(
            ModelRef("me/nested"),
            commit=SHA,
            filenames=["config.json", "model.safetensors"],
            endpoint=hub.endpoint,
        )
    assert failure.value.reason == "not_found"


def test_a_stream_survives_a_broken_connection(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    hub.faults.add("model.safetensors", role="cdn", drop_after=3_000_000, since=2)
    checkpoint = open_checkpoint(ModelRef("me/safetensors"), endpoint=hub.endpoint, patience=QUICK)
    assert all(torch.equal(tensor, bert[name]) for name, tensor in checkpoint.stream(block_names(bert)))
    assert len([request for request in hub.requests if request.role == "cdn"]) > 3


def test_a_stream_given_up_early_costs_little(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    checkpoint = open_checkpoint(ModelRef("me/safetensors"), endpoint=hub.endpoint)
    stream = checkpoint.stream(block_names(bert))
    next(stream)
    stream.close()
    checkpoint.close()
    assert checkpoint.bytes_read < 500_000


def test_what_the_cache_holds_is_read_there(
    hub: LoopbackHub, bert: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, hf_hub_download

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("config.json", "model.safetensors"):
        hf_hub_download("me/safetensors", name, cache_dir=tmp_path, endpoint=hub.endpoint)
    hub.reset_log()
    names = ["config.json", "model.safetensors"]
    checkpoint = open_checkpoint(ModelRef("me/safetensors"), commit=SHA, filenames=names, endpoint=hub.endpoint)
    assert all(torch.equal(tensor, bert[name]) for name, tensor in checkpoint.stream(block_names(bert)))
    assert hub.requests == []
    assert len(str(checkpoint.files[0].sha256)) == 64
    # Another commit is another file.
    with pytest.raises(Failed):
        open_checkpoint(ModelRef("me/safetensors"), commit="a" * 40, filenames=names, endpoint=hub.endpoint)
    # Offline nothing but the cache is asked.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.reset_log()
    for commit in (None, SHA):
        checkpoint = open_checkpoint(ModelRef("me/safetensors"), commit=commit, endpoint=hub.endpoint)
        assert checkpoint.commit == SHA
        assert dict(checkpoint.stream([block_names(bert)[0]]))
    with pytest.raises(Failed) as failure:
        open_checkpoint(ModelRef("me/torch-zip"), commit=SHA, filenames=names, endpoint=hub.endpoint)
    assert failure.value.reason == "network"
    assert "HF_HUB_OFFLINE" in failure.value.detail
    # A cache that holds a part of the repository decides nothing for good.
    for path in tmp_path.rglob("model.safetensors"):
        path.unlink()
    with pytest.raises(Failed) as failure:
        open_checkpoint(ModelRef("me/safetensors"), commit=SHA, filenames=names, endpoint=hub.endpoint)
    assert failure.value.reason == "network"
    assert hub.requests == []


# Memory.

MEASURE = """
import resource, sys, threading
from pathlib import Path
import torch
torch.set_num_threads(1)
from indexer.weights import open_checkpoint
from indexer.words import ModelRef

def resident():
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])

reference = ModelRef(sys.argv[1]) if sys.argv[2:] else ModelRef(sys.argv[1], folder=Path(sys.argv[1]))
endpoint = sys.argv[2] if sys.argv[2:] else None
warm = open_checkpoint(reference, endpoint=endpoint)
next(warm.stream([next(iter(warm.tensors))]))
warm.close()
idle, peak, total = resident(), 0, 0.0
checkpoint = open_checkpoint(reference, endpoint=endpoint)
for name, tensor in checkpoint.stream(list(checkpoint.tensors)):
    total += float(tensor[0, 0])
    peak = max(peak, resident())
print(peak - idle, len(checkpoint.tensors), total)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("form", ["safetensors", "torch-zip", "torch-legacy"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, form: str) -> None:
    """200 MB in layers of 2 MB: a few layers above idle at the most."""
    write_config(tmp_path)
    state = {f"{i:03}": torch.full((1024, 512), float(i)) for i in range(100)}
    FORMS[form](tmp_path, state)
    expected = sum(range(100))
    del state
    gc.collect()
    growth, count, total = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert (int(count), float(total)) == (100, expected)
    assert int(growth) < 12_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_over_http(tmp_path: Path) -> None:
    folder = tmp_path / "me" / "big"
    write_config(folder)
    save_file({f"{i:03}": torch.full((1024, 512), float(i)) for i in range(50)}, folder / "model.safetensors")
    with LoopbackHub(tmp_path) as hub:
        growth, count, total = subprocess.run(
            [sys.executable, "-c", MEASURE, "me/big", hub.endpoint],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
    assert (int(count), float(total)) == (50, sum(range(50)))
    assert int(growth) < 12_000
