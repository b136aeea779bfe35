"""Models of which a part is quantised: what is stored as ordinary numbers is read, as gpt-oss stores it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import store_base
from indexer.deltas.vectorise import vectorise
from indexer.errors import AtlasError, Skipped
from indexer.names import DeltaKey
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef
from tests.architecture.mixed import build

MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
FAMILIES = {"query", "key", "value", "output"}
EXPERTS = {"expert_gate", "expert_feedforward1", "expert_feedforward2"}


def quantise(folder: Path, settings: dict, *, experts_as: torch.dtype | None = None, all_as: torch.dtype | None = None):
    """Experts become ``…_blocks`` and ``…_scales``, as in openai/gpt-oss-20b, or are cast like the rest."""
    path = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(path).items():
        if ".experts." in name and name.endswith("_proj") and experts_as is None:
            tensors[f"{name}_blocks"] = torch.zeros(3, 40, 1, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(3, 40, 1, dtype=torch.uint8)
        elif ".experts." in name:
            tensors[name] = tensor.to(experts_as)
        else:
            tensors[name] = tensor.to(all_as or tensor.dtype)
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """A tiny gpt-oss and a fine-tune that changed its attention and its experts."""
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    model = build("gpt_oss")
    model.save_pretrained(base)
    torch.manual_seed(1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight += torch.randn(32, 1) @ torch.randn(1, 24) / 10
            layer.mlp.experts.gate_up_proj += torch.randn_like(layer.mlp.experts.gate_up_proj) / 10
    model.save_pretrained(tuned)
    return base, tuned


def record(base: Path, tuned: Path, sample: bool = False) -> Record:
    spec = Spec(rank=4, sample=sample)
    unit = Unit(ModelRef(str(tuned), folder=tuned), "c", "org/base", "b", "finetune", spec)
    with closing(open_checkpoint(ModelRef(str(base), folder=base))) as checkpoint:
        stored = store_base(checkpoint, "org/base", "b", base.parent / "org--base@b.safetensors")
    with closing(stored):
        stored.check()
        return vectorise(unit, stored)


def families(record: Record) -> set[str]:
    return {delta.key.family for delta in record.deltas}


def test_attention_is_read_where_the_base_has_quantised_experts(models: tuple[Path, Path]) -> None:
    base, tuned = models
    before, after = load_file(base / "model.safetensors"), load_file(tuned / "model.safetensors")
    quantise(base, MXFP4)
    tuned_record = record(base, tuned)
    assert families(tuned_record) == FAMILIES
    name = "model.layers.2.self_attn.q_proj.weight"
    expected = float((after[name] - before[name]).norm())
    (delta,) = [delta for delta in tuned_record.deltas if delta.key == DeltaKey("", 2, "query")]
    assert delta.norm == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(delta.s[0], expected, rtol=1e-4)  # it has rank one


def test_experts_that_cannot_be_read_are_left_out(models: tuple[Path, Path]) -> None:
    """Stacked experts in fp8 have the usual names, and scales for each block that are not read."""
    base, tuned = models
    quantise(base, {"quant_method": "fp8"}, experts_as=torch.float8_e4m3fn)
    assert families(record(base, tuned)) == FAMILIES


@pytest.mark.parametrize("sample", [False, True])
def test_experts_are_read_where_both_have_them(models: tuple[Path, Path], sample: bool) -> None:
    base, tuned = models
    before, after = load_file(base / "model.safetensors"), load_file(tuned / "model.safetensors")
    tuned_record = record(base, tuned, sample)
    assert families(tuned_record) == FAMILIES | EXPERTS
    assert tuned_record.block_bytes == sum(4 * delta.shape[0] * delta.shape[1] for delta in tuned_record.deltas)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    change = (after[name] - before[name])[0]  # (in, out), columns of gate and up in turn
    for family, part in (("expert_gate", change[:, ::2]), ("expert_feedforward1", change[:, 1::2])):
        (delta,) = [delta for delta in tuned_record.deltas if delta.key == DeltaKey("", 1, family)]
        assert delta.norm == pytest.approx(float(part.norm()), rel=1e-5)
        np.testing.assert_allclose(delta.s, torch.linalg.svdvals(part)[:4], rtol=1e-2)


def test_what_is_needed_and_quantised_is_refused_by_its_method(models: tuple[Path, Path]) -> None:
    base, tuned = models
    for settings, casts in (
        (MXFP4, {}),  # the base has experts
        ({"quant_method": "fp8"}, {"experts_as": torch.float32, "all_as": torch.float8_e4m3fn}),
    ):
        other = base.parent / settings["quant_method"]
        build("gpt_oss").save_pretrained(other)
        quantise(other, settings, **casts)
        with pytest.raises(Skipped, match="it is quantised") as error:
            record(base, other)
        assert error.value.reason == "quantized"
    with pytest.raises(AtlasError, match="it is quantised"):
        record(base.parent / "fp8", tuned)
