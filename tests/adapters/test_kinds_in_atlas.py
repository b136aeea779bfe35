"""Adapters of several kinds from a Hub to the answers, and on models other than the base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer.profiles.subject import FullWeights, merged_weights
from tests.adapters.test_adapter_bases import LAYERS, TARGETS, WIDTH, add_adapter, check, full_change, module, records
from tests.adapters.test_mlx import ModelRef, open_checkpoint
from tests.tiny_hub import BASE, describe, indexed

pytestmark = pytest.mark.slow

Changes = dict[str, torch.Tensor]


def weights_of(store: Path) -> dict[str, torch.Tensor]:
    base = load_file(store / BASE / "model.safetensors")
    return {
        f"{layer}.{target}": base[f"encoder.layer.{layer}.attention.self.{target}.weight"].double()
        for layer in range(LAYERS)
        for target in TARGETS
    }


def make_dora(store: Path, name: str, stated_base: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A plain adapter with magnitudes; by matrix s·B·A and m."""
    changes = add_adapter(store, name, stated_base, seed=50)
    path = store / name / "adapter_model.safetensors"
    tensors = load_file(path)
    torch.manual_seed(9)
    changes_and_magnitudes = {}
    for layer in range(LAYERS):
        for target in TARGETS:
            magnitudes = 0.2 + torch.rand(WIDTH)
            tensors[f"{module(layer, target)}.lora_magnitude_vector"] = magnitudes
            changes_and_magnitudes[f"{layer}.{target}"] = (changes[f"{layer}.{target}"], magnitudes.double())
    save_file(tensors, path)
    config = json.loads((store / name / "adapter_config.json").read_text())
    (store / name / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    return changes_and_magnitudes


def dora_change(weight: torch.Tensor, product: torch.Tensor, magnitudes: torch.Tensor) -> torch.Tensor:
    turned = weight + product
    return magnitudes[:, None] * turned / turned.norm(dim=1, keepdim=True) - weight


@pytest.fixture(scope="module")
def atlas(tiny_store, tmp_path_factory):
    store = tiny_store(2, tmp_path_factory.mktemp("kinds") / "store")
    doras = {
        name: make_dora(store, name, stated_base)
        for name, stated_base in (("eve/dora", BASE), ("eve/on-tuned", "ann/glue-0"), ("eve/on-lora", "eve/lora"))
    }
    lora = add_adapter(store, "eve/lora", BASE, seed=60)
    # IA3 on the base: scales of the outputs of values, as PEFT writes them.
    scales = {f"{layer}.value": 1 + 0.1 * torch.randn(WIDTH, 1) for layer in range(LAYERS)}
    folder = store / "eve/ia3"
    folder.mkdir(parents=True)
    save_file(
        {f"{module(layer, 'value')}.ia3_l": scales[f"{layer}.value"] for layer in range(LAYERS)},
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "IA3", "base_model_name_or_path": BASE, "feedforward_modules": []}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    describe(store, "eve/ia3", tags=["peft", f"base_model:adapter:{BASE}"], library_name="peft")
    with indexed(store) as shell:
        yield store, shell, doras, lora, scales


def test_their_changes_are_those_of_the_formulas(atlas) -> None:
    store, shell, doras, lora, scales = atlas
    records_by_model, weights = records(shell), weights_of(store)
    check(
        records_by_model["eve/dora"],
        {key: dora_change(weights[key], *parts) for key, parts in doras["eve/dora"].items()},
    )
    check(records_by_model["eve/ia3"], {key: weights[key] * (scale.double() - 1) for key, scale in scales.items()})
    tuned = full_change(store, "ann/glue-0")
    expected = {}
    for key, parts in doras["eve/on-tuned"].items():
        parent_change = tuned[key].double()
        expected[key] = parent_change + dora_change(weights[key] + parent_change, *parts)
    check(records_by_model["eve/on-tuned"], expected)
    on_lora = {
        key: lora[key] + dora_change(weights[key] + lora[key], *parts) for key, parts in doras["eve/on-lora"].items()
    }
    check(records_by_model["eve/on-lora"], on_lora)
    assert {name: records_by_model[f"eve/{name}"].adapter_base.verdict for name in ("dora", "on-tuned", "on-lora")} == {
        "dora": "base", "on-tuned": "finetune", "on-lora": "finetune",
    }  # fmt: skip


def test_show_and_sql_say_the_kind(atlas) -> None:
    _, shell, *_ = atlas
    rows = shell("query", "sql", "SELECT model, adapter_kind FROM models WHERE author = 'eve' ORDER BY 1", "--json")
    assert {row["model"]: row["adapter_kind"] for row in rows.json} == {
        "eve/dora": "DoRA", "eve/on-tuned": "DoRA", "eve/on-lora": "DoRA", "eve/lora": "LoRA", "eve/ia3": "IA3",
    }  # fmt: skip
    assert shell("query", "show", "eve/dora", "--json").json["adapter_kind"] == "DoRA"
    assert "DoRA" in shell("query", "show", "eve/dora").out
    assert shell("query", "show", "ann/glue-0", "--json").json["adapter_kind"] is None
    assert shell("index", "verify", "--strict").code == 0


def test_lineage_and_profiles_read_the_same_change(atlas) -> None:
    """The parts that lineage compares, and the merged weights that a profile measures."""
    store, shell, doras, *_ = atlas
    lineage = shell("query", "lineage", "eve/dora", "--json")
    assert lineage.code == 0, lineage.err
    adapter = open_checkpoint(ModelRef("eve/dora", folder=store / "eve/dora"), relation="adapter")
    tensors, config = (
        load_file(store / BASE / "model.safetensors"),
        json.loads((store / BASE / "config.json").read_text()),
    )
    merged = merged_weights(adapter, FullWeights(tensors, config, ()))
    for key, weight in weights_of(store).items():
        layer, target = key.split(".")
        name = f"encoder.layer.{layer}.attention.self.{target}.weight"
        change = dora_change(weight, *doras["eve/dora"][key])
        torch.testing.assert_close(merged.tensors[name].double() - weight, change, rtol=1e-3, atol=1e-5)
