"""Models of transformers with edited weights, so that it is known what each layer keeps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from indexer.profiles.layers import States
from indexer.profiles.measurement import LayerRow, ProfileRequest, measure
from indexer.profiles.probes import image_probe, random_probe, shipped_images
from indexer.profiles.subject import read_subject
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

WIDTH = 48
SMALL = {"num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": WIDTH, "intermediate_size": 64,
         "initializer_range": 0.2}  # fmt: skip


def model_of(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=WIDTH, n_layer=3, n_head=2, vocab_size=300, n_positions=32, initializer_range=0.2
        )
        return transformers.GPT2Model(config)
    if kind == "vit":
        return transformers.ViTModel(transformers.ViTConfig(**SMALL, image_size=16, patch_size=4))
    return transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=300))


def profile(model: Any, folder: Path, base: States | None = None) -> tuple[list[LayerRow], States]:
    model.save_pretrained(folder)
    layers = read_subject(ModelVersion(ModelRef.parse(str(folder)))).layers
    probe = image_probe(shipped_images((3, 16, 16))) if layers.takes_images else random_probe(layers)
    return measure(layers, probe, ProfileRequest(), base=base)


def blank(*modules: Any) -> None:
    for module in modules:
        for parameter in module.parameters():
            parameter.data.zero_()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "vit"])
def test_a_block_that_adds_nothing_changes_no_measure(tmp_path, kind):
    """A residual block behind pre-norms whose last maps are zero is the identity."""
    model = model_of(kind)
    if kind == "gpt2":
        blank(model.h[1].attn.c_proj, model.h[1].mlp.c_proj)
    else:
        block = next(module for name, module in model.named_modules() if name.endswith(("layer.1", "layers.1")))
        dense = [module for module in block.modules() if isinstance(module, torch.nn.Linear)]
        blank(*dense[3:4], *dense[-1:])  # of attention what follows query, key and value; of the rest the last
    (first, second, third), _ = profile(model, tmp_path)
    assert second.values == pytest.approx(first.values, abs=1e-6)
    assert third.values != pytest.approx(second.values, abs=1e-3)


def test_a_layer_behind_a_norm_of_zero_is_constant(tmp_path):
    model = model_of("bert")
    model.encoder.layer[2].output.LayerNorm.weight.data.zero_()
    model.encoder.layer[2].output.LayerNorm.bias.data.fill_(0.3)
    rows, _ = profile(model, tmp_path)
    assert [row.is_constant for row in rows] == [False, False, True]
    assert (rows[2].values["tolerance"], rows[2].spread) == (0.0, 0.0)
    assert rows[2].values["readable"] <= 3 / 256


@pytest.mark.slow
def test_frozen_layers_and_copies_measure_like_the_base(tmp_path):
    base = model_of("bert")
    of_base, states = profile(base, tmp_path / "base")
    tuned = copy.deepcopy(base)
    with torch.no_grad():
        for parameter in tuned.encoder.layer[2].parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    rows, _ = profile(tuned, tmp_path / "tuned", states)
    for row, base_row in zip(rows[:2], of_base[:2], strict=True):
        assert row.values == base_row.values | {"drift": 0.0, "cka": 1.0}
    assert rows[2].values["drift"] > 0.05
    copied, _ = profile(base, tmp_path / "copy", states)
    assert [row.values for row in copied] == [row.values | {"drift": 0.0, "cka": 1.0} for row in of_base]


@pytest.mark.slow
def test_scaling_an_output_changes_drift_only(tmp_path):
    base = model_of("bert")
    of_base, states = profile(base, tmp_path / "base")
    norm = base.encoder.layer[2].output.LayerNorm
    norm.weight.data *= 100
    norm.bias.data *= 100
    rows, _ = profile(base, tmp_path / "scaled", states)
    for name in ("tolerance", "tolerance_own", "readable", "reach", "own"):
        assert rows[2].values[name] == pytest.approx(of_base[2].values[name], rel=1e-3)
    assert rows[2].spread == pytest.approx(100 * of_base[2].spread, rel=1e-4)
    assert rows[2].values["cka"] == pytest.approx(1.0, abs=1e-6)
    assert rows[2].values["drift"] > 90


@pytest.mark.slow
def test_noise_of_the_layers_own_covariance_sees_low_rank(tmp_path):
    """All but six numbers of the last output are held at zero: rank six."""
    base = model_of("bert")
    of_base, states = profile(base, tmp_path / "base")
    norm = base.encoder.layer[2].output.LayerNorm
    norm.weight.data[6:] = 0
    norm.bias.data[6:] = 0
    rows, _ = profile(base, tmp_path / "narrow", states)
    assert rows[2].values["tolerance_own"] < 0.7 * of_base[2].values["tolerance_own"]
    assert rows[2].values["readable"] < 0.5 * of_base[2].values["readable"]
    assert rows[1].values == of_base[1].values | {"drift": 0.0, "cka": 1.0}
