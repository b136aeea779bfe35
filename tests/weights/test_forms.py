"""Every form of a checkpoint gives the same tensors: one file or shards, safetensors or pickles."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import Skipped
from tests.weights.folders import FORMS, a_state, folder_reference, write_config, write_safetensors


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
    names = ["layer.4.weight", "layer.1.weight", "half", "one", "bf"]
    tensors = dict(checkpoint.stream(names))
    assert set(tensors) == set(names)
    for name in names:
        assert tensors[name].dtype == state[name].dtype
        assert torch.equal(tensors[name], state[name])
    assert list(checkpoint.stream([])) == []
    checkpoint.close()


def test_tensors_come_in_file_order_whatever_order_is_asked_for(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(a_state(count=12), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    stored = sorted(checkpoint.tensors, key=lambda name: checkpoint._index_of[name].locate(name).start)
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
    views: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(checkpoint.stream(state)):
        assert torch.equal(tensor, state[name])
        if number % 4 == 0:
            views[name] = tensor[1:3].t()
        elif number % 4 == 1:
            views[name] = tensor.numpy()[1:3].T
        del tensor
    for name, view in views.items():
        assert torch.equal(torch.as_tensor(view), state[name][1:3].t())
    everything = dict(checkpoint.stream(state))
    for tensor in everything.values():
        tensor.add_(1)
    assert all(torch.equal(everything[name], state[name] + 1) for name in state)


def test_memory_is_used_again(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(a_state(count=12, size=600), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(folder_reference(tmp_path))
    addresses = {tensor.data_ptr() for _, tensor in checkpoint.stream(checkpoint.tensors)}
    assert len(addresses) <= 2


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
        tensors = dict(checkpoint.stream(checkpoint.tensors))
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
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
