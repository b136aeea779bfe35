"""Fine-tunes against bases that are stored in few bits, and fine-tunes that are: whole, and by a sample of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.delta import dense_deltas, layout_against, sampled_deltas
from indexer.errors import Skipped
from indexer.names import DeltaKey
from studies.coverage.making import Tensors, fp8_blocks, mlx, model_of, planted
from studies.coverage.uploads import FP8, LLAMA, TEXT
from tests.weights.folders import folder_reference

Store = Callable[[Path, Tensors], None]
MLX4 = {"quantization": {"bits": 4, "group_size": 32}}
MLX8 = {"quantization": {"bits": 8, "group_size": 32}}


def written(folder: Path, tensors: Tensors, store: Store | None = None, **settings: Any) -> Checkpoint:
    folder.mkdir(parents=True)
    if store is None:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    else:
        store(folder, tensors)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | settings))
    return open_checkpoint(folder_reference(folder))


def weights() -> Tensors:
    return {name: tensor.clone() for name, tensor in model_of("llama", TEXT, "CausalLM").state_dict().items()}


def stored(checkpoint: Checkpoint, folder: Path) -> BaseMatrices:
    return store_base(checkpoint, "a/base", "0" * 40, folder / "base.safetensors")


def deltas(checkpoint: Checkpoint, base: BaseMatrices) -> dict[DeltaKey, torch.Tensor]:
    layout = layout_against(checkpoint, base)
    return {each.key: each.matrix.clone() for each in dense_deltas(checkpoint, layout, base)}


@pytest.mark.parametrize(("store", "settings"), [(fp8_blocks, FP8), (mlx(4), MLX4)])
def test_the_change_of_a_fine_tune_of_a_base_in_few_bits_is_exact(
    tmp_path: Path, store: Store, settings: dict[str, Any]
) -> None:
    checkpoint = written(tmp_path / "base", weights(), store, **settings)
    base = stored(checkpoint, tmp_path)
    names = checkpoint.tensors
    loaded = {name: tensor.clone() for name, tensor in checkpoint.stream(list(names))}  # as a library loads it
    tuned = {name: tensor.to(torch.bfloat16) for name, tensor in planted(loaded, LLAMA)[0].items()}
    deltas_found = deltas(written(tmp_path / "tuned", tuned), base)
    assert len(deltas_found) == 14
    for matrix in base.layout.matrices:
        expected = tuned[matrix.tensor].float() - loaded[matrix.tensor].float()
        assert torch.equal(deltas_found[matrix.key], expected)


@pytest.mark.parametrize(("store", "settings"), [(fp8_blocks, FP8), (mlx(8), MLX8)])
def test_what_did_not_change_is_zero_although_it_was_rounded(
    tmp_path: Path, store: Store, settings: dict[str, Any]
) -> None:
    original = weights()
    base = stored(written(tmp_path / "base", original), tmp_path)
    tuned = planted(original, r"layers\.1\.self_attn\.q_proj")[0]
    checkpoint = written(tmp_path / "tuned", tuned, store, **settings)
    deltas_found = deltas(checkpoint, base)
    changed = deltas_found.pop(DeltaKey("", 1, "query"))
    assert not any(float(delta.abs().max()) for delta in deltas_found.values())
    true = (
        tuned["model.layers.1.self_attn.q_proj.weight"] - original["model.layers.1.self_attn.q_proj.weight"]
    ).float()
    cosine = torch.linalg.svdvals(torch.linalg.svd(changed)[2][:2] @ torch.linalg.svd(true)[2][:2].T)
    assert float(cosine.min()) > 0.9
    # A sample goes by the same values.
    layout = layout_against(checkpoint, base)
    some, _ = sampled_deltas(checkpoint, layout, base)
    for each in some:
        full_delta = changed if each.key == DeltaKey("", 1, "query") else deltas_found[each.key]
        assert each.lines is None
        assert torch.equal(each.matrix, full_delta)
    assert checkpoint.dtype == ("fp8" if store is fp8_blocks else "mlx (8 bits)")


def test_a_fine_tune_in_four_bits_is_a_conversion(tmp_path: Path) -> None:
    original = weights()
    base = stored(written(tmp_path / "base", original), tmp_path)
    checkpoint = written(tmp_path / "tuned", planted(original, LLAMA)[0], mlx(4), **MLX4)
    with pytest.raises(Skipped, match="4 bits") as skip:
        layout_against(checkpoint, base)
    assert skip.value.reason == "conversion"


def test_a_file_of_codes_is_small(tmp_path: Path) -> None:
    """The test of the tests: the weights are in fact stored in few bits."""
    written(tmp_path / "base", weights(), mlx(4), **MLX4)
    kinds = {str(tensor.dtype) for tensor in load_file(tmp_path / "base" / "model.safetensors").values()}
    assert "torch.uint32" in kinds
