"""Names of tensors with parts that wrappers of modules added, and checkpoints that still hold an adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import Checkpoint, bare_names, open_checkpoint
from indexer.checkpoints.checkpoint_files import choose
from indexer.deltas.base import locate_matrices
from indexer.errors import Skipped
from tests.weights.folders import folder_reference, save_sharded

SHAPES = {
    "self_attn.q_proj": (4, 4), "self_attn.k_proj": (4, 4), "self_attn.v_proj": (4, 4), "self_attn.o_proj": (4, 4),
    "mlp.gate_proj": (6, 4), "mlp.up_proj": (6, 4), "mlp.down_proj": (4, 6),
}  # fmt: skip
QUERY = "model.layers.1.self_attn.q_proj.weight"


def llama(name: str = "model.layers.{layer}.{module}.weight") -> dict[str, torch.Tensor]:
    """Two layers; a matrix's value is its number."""
    return {
        name.format(layer=layer, module=module): torch.full(shape, 10.0 * layer + number)
        for layer in (0, 1)
        for number, (module, shape) in enumerate(SHAPES.items())
    } | {"model.embed_tokens.weight": torch.ones(8, 4)}


def opened(folder: Path) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return open_checkpoint(folder_reference(folder))


@pytest.mark.parametrize(
    "name",
    [
        "module.model.layers.{layer}.{module}.weight",
        "_orig_mod.model.layers.{layer}.{module}.weight",
        "model._fsdp_wrapped_module.layers.{layer}._fsdp_wrapped_module.{module}.weight",
        "module._orig_mod.model.layers.{layer}._checkpoint_wrapped_module.{module}.weight",
        "model.layers.{layer}.{module}._orig_mod.weight",
        "_forward_module.module.model.layers.{layer}._fsdp_wrapped_module._checkpoint_wrapped_module.{module}.weight",
        "base_model.model.model.layers.{layer}.{module}.base_layer.weight",
        "base_model.model.model.layers.{layer}.{module}.base_layer.base_layer.weight",
    ],
)
@pytest.mark.parametrize("form", ["safetensors", "shards", "bin"])
def test_names_are_found_without_what_wrappers_added(tmp_path: Path, name: str, form: str) -> None:
    state = llama(name)
    if form == "shards":
        save_sharded(tmp_path, state)
    elif form == "safetensors":
        save_file(state, tmp_path / "model.safetensors")
    else:
        torch.save(state, tmp_path / "pytorch_model_fsdp.bin")
    checkpoint = opened(tmp_path)
    layout = locate_matrices(checkpoint, checkpoint.config)
    assert layout.depth == {"": 2}
    assert len(layout.matrices) == 14
    for matrix, tensor in ((matrix, dict(checkpoint.stream([matrix.tensor]))) for matrix in layout.matrices):
        expected = llama()[f"model.layers.{matrix.tensor.partition('layers.')[2]}"]
        assert torch.equal(tensor[matrix.tensor], expected)
    rows = dict(checkpoint.stripes({layout.matrices[-1].tensor: [range(1, 3)]}))
    assert rows[layout.matrices[-1].tensor].shape[0] == 2


def test_a_name_that_another_tensor_has_stays() -> None:
    names = ["module.a.weight", "a.weight", "module.b.weight", "_orig_mod.b.weight", "module.c.weight", "module", "d"]
    assert bare_names(names, "full") == {"module.c.weight": "c.weight"}
    wrapped = ["base_model.model._orig_mod.q.base_layer.lora_A.weight"]
    assert bare_names(wrapped, "adapter") == {wrapped[0]: "base_model.model.q.base_layer.lora_A.weight"}
    assert bare_names(["submodule.a.weight", "a.modules.b", "x_orig_mod.y"], "full") == {}


@pytest.mark.parametrize("ending", ["", ".base_layer"])
@pytest.mark.parametrize("factor", ["lora_A.default", "lora_B", "ia3_l.default", "lora_magnitude_vector.default"])
def test_an_adapter_that_is_not_merged_is_no_full_model(tmp_path: Path, ending: str, factor: str) -> None:
    state = llama(f"base_model.model.model.layers.{{layer}}.{{module}}{ending}.weight")
    save_file(
        state | {f"base_model.model.model.layers.0.self_attn.q_proj.{factor}.weight": torch.ones(2, 4)},
        tmp_path / "model.safetensors",
    )
    checkpoint = opened(tmp_path)
    with pytest.raises(Skipped, match=rf"1 tensors of an adapter.*q_proj\.{factor}.*merge_and_unload") as skip:
        locate_matrices(checkpoint, checkpoint.config)
    assert skip.value.reason == "adapter_unsupported"
    # Beside a matrix that is not a block matrix an adapter does not matter.
    save_file(state | {f"lm_head.{factor}.weight": torch.ones(2, 4)}, tmp_path / "model.safetensors")
    assert locate_matrices(opened(tmp_path), {"model_type": "llama"}).depth == {"": 2}


def test_wrapped_adapters(tmp_path: Path) -> None:
    from tests.adapters.written import read, write_adapter

    wrapped = "base_model.model.module._fsdp_wrapped_module.h.0._checkpoint_wrapped_module.q"
    tensors = {f"{wrapped}.lora_A.weight": torch.ones(4, 6), f"{wrapped}.lora_B.weight": torch.ones(5, 4)}
    assert list(read(write_adapter(tmp_path, tensors))) == ["h.0.q"]


def test_what_fsdp_saves_is_a_checkpoint() -> None:
    names = ["pytorch_model_fsdp.bin", "optimizer.bin", "scheduler.pt", "trainer_state.json"]
    assert choose(names, "finetune").name == "pytorch_model_fsdp.bin"
    assert choose([f"checkpoint-5/{name}" for name in names], "finetune").folder == "checkpoint-5/"
    assert choose([*names, "model.safetensors"], "finetune").name == "model.safetensors"
