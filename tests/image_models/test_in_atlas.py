"""LoRAs of an image model from a Hub to the answers: its base is a repository of diffusers, of which rows are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import indexer
from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.records.record import read_record
from tests.conftest import Shell
from tests.image_models.written import (
    WIDTH,
    claim,
    factors,
    flux_shapes,
    random_tensors,
    save_by_diffusers,
    save_by_kohya,
    save_pipeline,
)
from tests.tiny_hub import describe, served_shell

pytestmark = pytest.mark.slow

BASE = "org/tiny-flux"
TARGETS = {name: shape for name, shape in flux_shapes().items() if name.endswith(("to_q", "to_v", "proj_mlp"))}


def styled(style: int, seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Factors that began with the random numbers of a seed; those of one style moved along one direction."""
    shared, own = factors(TARGETS, 1000 + style, rank=1), factors(TARGETS, seed)
    weights = torch.randn(4, 1, generator=torch.Generator().manual_seed(seed))
    drawn, made = torch.Generator().manual_seed(seed), {}
    for name, (out, inner) in TARGETS.items():
        a = torch.empty(4, inner)
        for like in (a, torch.empty(out, 4), a):  # A and B as ordinary layers, and A again
            torch.nn.init.kaiming_uniform_(like, a=5**0.5, generator=drawn)
        made[name] = (a + 0.2 * weights @ shared[name][0] + 0.05 * own[name][0], own[name][1])
    return made


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory):
    store = tmp_path_factory.mktemp("flux") / "store"
    base = random_tensors(flux_shapes(), 1)
    save_pipeline(store / BASE, base, "transformer", "FluxTransformer2DModel")
    describe(store, BASE, tags=["diffusers"], library_name="diffusers")
    made = {}
    for style in (0, 1):
        for member in range(3):
            name = f"u{member}/style-{style}"
            made[name] = styled(style, 100 + 10 * style + member)
            if member == 0:
                save_by_kohya(store / name, made[name], 2.0, (f"style {style}.safetensors",))
            else:
                save_by_diffusers(store / name, made[name], "transformer", 2.0)
            claim(store, name, BASE, instance_prompt=f"TOK{style}", tags=["lora"])
    # The same factors uploaded once more, a DoRA, and a full fine-tune.
    save_by_kohya(store / "x/again", made["u1/style-0"], 2.0, ("copy.safetensors",))
    claim(store, "x/again", BASE)
    save_by_kohya(store / "x/dora", made["u1/style-0"], 2.0, ("dora.safetensors",))
    tensors = load_file(store / "x/dora" / "dora.safetensors")
    for name in list(tensors):
        if name.startswith("lora_unet") and name.endswith(".alpha"):
            rows = len(tensors[name.replace(".alpha", ".lora_up.weight")])
            tensors[name.replace(".alpha", ".dora_scale")] = torch.ones(rows, 1)
    save_file(tensors, store / "x/dora" / "dora.safetensors")
    claim(store, "x/dora", BASE)
    change = random_tensors(flux_shapes(), 2, scale=0.01)
    tuned = {name: weight + change[name] for name, weight in base.items()}
    save_pipeline(store / "x/full", tuned, "transformer", "FluxTransformer2DModel")
    describe(store, "x/full", tags=["diffusers", f"base_model:{BASE}", f"base_model:finetune:{BASE}"])
    # Two styles in one full model: half of either.
    merged = dict(base)
    for part in ("u1/style-0", "u1/style-1"):
        for name, (a, b) in made[part].items():
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + 0.5 * 0.5 * (b @ a)
    save_pipeline(store / "x/merged", merged, "transformer", "FluxTransformer2DModel")
    describe(store, "x/merged", tags=["diffusers", f"base_model:{BASE}", f"base_model:merge:{BASE}"])
    with served_shell(store) as shell:
        ran = shell("index", "build", "--base", BASE)
        assert ran.code == 0, ran.err
        yield store, shell, made, change


def rows_of(folder: Path, statement: str) -> list[dict[str, Any]]:
    with Reading(folder / "atlas.duckdb") as connection:
        return connection.rows(statement)


def record_of(shell: Shell, model: str):
    folder = AtlasFolder(shell.folder / "atlas")
    (row,) = rows_of(folder.root, f"SELECT record_key FROM models WHERE model = '{model}'")
    return read_record(folder.record(row["record_key"]))


@pytest.mark.parametrize("model", ["u0/style-1", "u2/style-0"])
def test_changes_of_a_lora(atlas, model: str) -> None:
    _, shell, made, _ = atlas
    record = record_of(shell, model)
    changed = {str(delta.key): delta for delta in record.deltas if delta.norm > 0}
    assert len(changed) == len(TARGETS)
    for key, name in (("image.1.query", "transformer_blocks.1.attn.to_q"),
                      ("single.0.feedforward1", "single_transformer_blocks.0.proj_mlp")):  # fmt: skip
        a, b = made[model][name]
        values = np.linalg.svd(0.5 * (b.double() @ a.double()).numpy(), compute_uv=False)[:4]
        np.testing.assert_allclose(changed[key].s[:4], values, rtol=1e-4)
    assert record.adapter_kind == "LoRA"
    assert record.passed_over == (("factors of text encoders: 1",) if model == "u0/style-1" else ())
    # The norm of the base's matrix is estimated from the rows that are kept.
    assert changed["image.1.query"].base_norm == pytest.approx(0.05 * WIDTH, rel=0.03)


def test_the_base_is_a_sample_and_is_not_fetched_whole(atlas) -> None:
    _, shell, *_ = atlas
    (kept,) = (shell.folder / "atlas" / "bases").glob("*.safetensors")
    whole = sum(4 * out * inner for out, inner in flux_shapes().values())
    assert kept.stat().st_size < 0.6 * whole
    path = "transformer/diffusion_pytorch_model.safetensors"
    assert shell.hub.body_bytes(BASE, path) < 0.7 * whole
    assert not indexer.verify(shell.folder / "atlas", strict=True)


def test_neighbours_duplicates_and_labels(atlas) -> None:
    _, shell, *_ = atlas
    found = shell("query", "similar", "u1/style-1", "-k", "2", "--json").json
    assert {row["model"] for row in found} == {"u0/style-1", "u2/style-1"}
    rows = rows_of(
        shell.folder / "atlas",
        "SELECT model, trigger_words, adapter_kind, duplicate_of IS NOT NULL AS twice FROM models "
        "WHERE model IN ('u1/style-1', 'x/again', 'u1/style-0') ORDER BY model",
    )
    by_model = {row["model"]: row for row in rows}
    assert by_model["u1/style-1"]["trigger_words"] == ["TOK1"]
    assert sum(row["twice"] for row in rows) == 1
    shown = shell("query", "show", "u1/style-1").out
    assert "TOK1" in shown
    assert "LoRA" in shown


def test_a_merge_of_two_is_found_by_lineage(atlas) -> None:
    """With a sampled base: only its leading rows are compared."""
    _, shell, *_ = atlas
    ran = shell("query", "lineage", "x/merged", "--json")
    assert ran.code == 0, ran.err
    assert {row["parent"]: row["coefficient"] for row in ran.json} == pytest.approx(
        {"u1/style-0": 0.5, "u1/style-1": 0.5}
    )


def test_what_needs_the_whole_base_says_so_and_is_read_with_it(atlas, tmp_path: Path) -> None:
    _, shell, *_ = atlas
    (row,) = rows_of(shell.folder / "atlas", "SELECT status, reason, detail FROM fine_tunes WHERE model = 'x/dora'")
    assert (row["status"], row["reason"]) == ("skipped", "base_sampled")
    assert "--read full" in row["detail"]
    ran = shell("index", "build", "--base", BASE, "--read", "full", "--atlas", str(tmp_path / "whole"), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["skipped"] == 0
    rows = rows_of(tmp_path / "whole", "SELECT adapter_kind FROM models WHERE model = 'x/dora'")
    assert rows == [{"adapter_kind": "DoRA"}]


def test_a_full_fine_tune_is_read_by_its_component(atlas) -> None:
    _, shell, _, change = atlas
    record = record_of(shell, "x/full")
    assert record.is_sampled
    norm = float(sum(tensor.double().square().sum() for tensor in change.values())) ** 0.5
    assert record.norm == pytest.approx(norm, rel=0.02)
    assert record.base_cosine > 0.95
    # The rest of it needs the rest of the base.
    ran = shell("index", "deepen", "x/full")
    assert ran.code == 0, ran.err
    deepened = record_of(shell, "x/full")
    assert not deepened.is_sampled
    assert deepened.norm == pytest.approx(norm, rel=1e-5)
    # With it what was skipped for want of it is read.
    ran = shell("index", "build", "--base", BASE, "--read", "full", "--json")
    assert ran.code == 0, ran.err
    (row,) = rows_of(shell.folder / "atlas", "SELECT status FROM fine_tunes WHERE model = 'x/dora'")
    assert row["status"] == "indexed"


def test_a_file_of_ones_own_is_added_and_asked_about(atlas) -> None:
    _, shell, made, _ = atlas
    save_by_kohya(shell.folder / "mine", made["u2/style-1"], 2.0, ("my style.safetensors",))
    asked = shell("query", "similar", "./mine", "--base", BASE, "-k", "1", "--json")
    assert asked.code == 0, asked.err
    assert asked.json[0]["model"] == "u2/style-1"
    ran = shell("index", "add", "./mine", "--base", BASE)
    assert ran.code == 0, ran.err
    rows = rows_of(shell.folder / "atlas", "SELECT adapter_kind FROM models WHERE model LIKE 'local:%'")
    assert rows == [{"adapter_kind": "LoRA"}]


def test_a_repository_without_a_known_component_is_refused(atlas, tmp_path: Path) -> None:
    store, *_ = atlas
    (store / "org/odd").mkdir(parents=True)
    (store / "org/odd/model_index.json").write_text(json.dumps({"_class_name": "Pipeline"}))
    describe(store, "org/odd", tags=["diffusers"])
    save_pipeline(store / "org/new", {"a.weight": torch.ones(2, 2)}, "transformer", "TomorrowTransformer")
    describe(store, "org/new", tags=["diffusers"])
    with served_shell(store, tmp_path) as other:
        ran = other("index", "build", "--base", "org/odd")
        assert ran.code == 1
        assert "no config.json" in ran.err
        ran = other("index", "build", "--base", "org/new")
        assert ran.code == 1
        assert "TomorrowTransformer" in ran.err
