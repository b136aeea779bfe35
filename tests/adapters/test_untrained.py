"""Adapters that changed nothing: what they are called, and that no question counts them as neighbours."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.adapters.test_adapter_bases import TARGETS, module
from tests.tiny_hub import BASE, SIZES, describe, served_shell

pytestmark = pytest.mark.slow

UNTRAINED, TINY = "eve/untrained", "eve/tiny"
WIDTH, LAYERS, RANK = SIZES["hidden_size"], SIZES["num_hidden_layers"], 4


def add_untrained(store, name, size=0.0):
    """An adapter as PEFT saves it before training: a random A, and B zero, or of one tiny ``size``."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(LAYERS):
        for target in TARGETS:
            tensors[f"{module(layer, target)}.lora_A.weight"] = torch.rand(RANK, WIDTH, generator=generator) - 0.5
            tensors[f"{module(layer, target)}.lora_B.weight"] = torch.full((WIDTH, RANK), size)
    folder = store / name
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "base_model_name_or_path": BASE}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tags = [f"base_model:adapter:{BASE}", "dataset:glue"]
    describe(store, name, tags=tags, card_data={"base_model": BASE, "datasets": ["glue"]}, library_name="peft")


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    """An atlas with three fine-tunes, an untrained adapter, and one whose change float32 loses."""
    store = tiny_store(1, tmp_path_factory.mktemp("untrained") / "store")
    add_untrained(store, UNTRAINED)
    add_untrained(store, TINY, 1e-12)
    with served_shell(store) as shell:
        build = shell("index", "build", "--base", BASE, "--read", "full")
        assert build.code == 0, build.err
        yield shell


def test_they_are_called_untrained_and_never_copies(shell):
    shown = shell("query", "show", UNTRAINED)
    assert "untrained adapter" in shown.out
    assert "copy of the base" not in shown.out
    assert "changes nothing measurable" in shell("query", "show", TINY).out
    for command in (("similar",), ("lineage",), ("layers",), ("compare", "ann/glue-0")):
        command_run = shell("query", command[0], UNTRAINED, *command[1:])
        said = command_run.out + command_run.err
        assert "an untrained adapter of" in said or "untrained adapter of" in said, (command, said)
        assert "copy of" not in said, (command, said)
    (row,) = shell("query", "lineage", UNTRAINED, "--json").json
    assert (row["kind"], row["parent"], row["verdict"]) == ("untrained adapter", BASE, "derived")
    rows = shell("query", "sql", "SELECT model, copy_evidence FROM models WHERE is_copy ORDER BY model", "--json").json
    assert [tuple(row.values()) for row in rows] == [(TINY, "unmeasurable"), (UNTRAINED, "untrained")]


def test_they_are_nobodys_neighbours_and_notes_say_so(shell):
    similar = shell("query", "similar", "ann/glue-0", "-k", "9", "--json")
    assert {row["model"] for row in similar.json} == {"ann/imdb-0", "ann/squad-0"}
    note = "2 adapters that changed nothing measurable"
    assert note in similar.err
    for question in ("purity", "clusters"):
        assert note in shell("query", question, "--base", BASE).err
    assert shell("index", "verify").code == 0


def test_a_base_whose_only_models_are_untrained_is_consistent(shell):
    result = shell("index", "build", "--base", BASE, "--author", "eve", "--atlas", "alone", "--json")
    assert (result.json["indexed"], result.json["failed"]) == (2, 0)
    for command in ("verify", "publish", "rebuild"):
        result = shell("index", command, "--atlas", "alone")
        assert result.code == 0, (command, result.out, result.err)
    assert shell("index", "verify", "--atlas", "alone").code == 0
