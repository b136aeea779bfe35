"""Samples of experts that are stored in one tensor: rows of the first one alone, whichever way it is stored."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import store_base
from indexer.deltas.delta import DenseDelta, layout_against, sampled_deltas
from indexer.records.row_plan import lines_of
from indexer.sources.registry import ModelRef

HIDDEN, FF, EXPERTS, HEADS = 640, 576, 3, 4
CONFIG = {"hidden_size": HIDDEN, "moe_intermediate_size": FF, "intermediate_size": FF, "num_hidden_layers": 1}
State = dict[str, torch.Tensor]


def state(seed: int, other: State | None = None) -> State:
    """Attention, and experts out × in; or ``other`` with a small change."""
    generator = torch.Generator().manual_seed(seed)
    prefix = "model.layers.0"
    shapes = {f"{prefix}.self_attn.{one}_proj.weight": (HIDDEN, HIDDEN) for one in "qkvo"} | {
        f"{prefix}.mlp.experts.gate_up_proj": (EXPERTS, 2 * FF, HIDDEN),
        f"{prefix}.mlp.experts.down_proj": (EXPERTS, HIDDEN, FF),
    }
    made = {name: torch.randn(shape, generator=generator) / 10 for name, shape in shapes.items()}
    return {name: other[name] + tensor / 50 if other else tensor for name, tensor in made.items()}


def written(folder: Path, tensors: State, model_type: str, *, turned: bool = False) -> ModelRef:
    folder.mkdir()
    stored = {name: one.mT.contiguous() if turned and one.ndim == 3 else one for name, one in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": model_type}))
    return ModelRef(str(folder), folder=folder)


def sampled(base: ModelRef, tuned: ModelRef, folder: Path) -> tuple[dict[str, DenseDelta], int]:
    """The deltas by family, and the bytes that were read of the fine-tune."""
    with closing(open_checkpoint(base)) as checkpoint:
        matrices = store_base(checkpoint, "org/base", "b", folder / "org--base@b.safetensors")
    with closing(matrices), closing(open_checkpoint(tuned)) as checkpoint:
        found, _ = sampled_deltas(checkpoint, layout_against(checkpoint, matrices), matrices)
        return {one.key.family: one for one in found}, checkpoint.bytes_read


@pytest.mark.parametrize(
    ("model_type", "base_turned", "tuned_turned"),
    [("qwen3_vl_moe", False, False), ("qwen3_vl_moe", True, True), ("qwen3_vl_moe", True, False), ("gpt_oss", 1, 1)],
)
def test_rows_are_those_of_the_first_expert(
    tmp_path: Path, model_type: str, base_turned: bool, tuned_turned: bool
) -> None:
    before = state(1)
    after = state(2, before)
    base = written(tmp_path / "base", before, model_type, turned=base_turned)
    found, read = sampled(base, written(tmp_path / "tuned", after, model_type, turned=tuned_turned), tmp_path)
    change = {name.split(".")[-1]: (after[name] - before[name])[0] for name in before if "experts" in name}
    both = change["gate_up_proj"]
    parts = (both[::2], both[1::2]) if model_type == "gpt_oss" else both.chunk(2)
    expected = dict(zip(("expert_gate", "expert_feedforward1"), parts, strict=True))
    expected["expert_feedforward2"] = change["down_proj"]
    for family, delta in expected.items():
        one = found[family]
        if base_turned != tuned_turned:
            assert one.lines is None  # its rows are not those of other models
        else:
            assert one.lines is not None
            lines = torch.from_numpy(lines_of(delta.shape[1] if base_turned else delta.shape[0], one.lines))
            delta = delta[:, lines] if base_turned else delta[lines]
        torch.testing.assert_close(one.matrix, delta, rtol=0, atol=1e-5)
    assert read < sum(one.nbytes for one in after.values()) / 2
