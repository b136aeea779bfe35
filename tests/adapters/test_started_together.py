"""Adapters that one tool made with one seed, from a Hub to the answers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.adapters.test_adapter_bases import LAYERS, TARGETS, WIDTH, module
from tests.database import execute, read_rows
from tests.tiny_hub import BASE, DATASETS, add_model, describe, indexed

pytestmark = pytest.mark.slow


def factors(seed: int, data: int, rank: int = 4) -> dict[str, torch.Tensor]:
    """A as PEFT draws it with a seed, moved towards what the data hold; B learnt from zero."""
    drawn, learnt = (torch.Generator().manual_seed(number) for number in (seed, 1000 + data))
    own = torch.Generator().manual_seed(10_000 + 100 * seed + data)
    tensors = {}
    for layer in range(LAYERS):
        for target in TARGETS:
            a = torch.empty(rank, WIDTH)
            torch.nn.init.kaiming_uniform_(a, a=5**0.5, generator=drawn)
            step = torch.randn(rank, 1, generator=own) @ torch.randn(1, WIDTH, generator=learnt)
            a += 0.3 * a.norm() * step / step.norm()
            tensors[f"{module(layer, target)}.lora_A.weight"] = a
            tensors[f"{module(layer, target)}.lora_B.weight"] = 0.1 * torch.randn(WIDTH, rank, generator=own)
    return tensors


def add(store, name: str, seed: int, data: int) -> None:
    folder = store / name
    folder.mkdir(parents=True)
    save_file(factors(seed, data), folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": BASE}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tags = ["peft", f"base_model:{BASE}", f"base_model:adapter:{BASE}", f"dataset:{DATASETS[data]}"]
    describe(store, name, tags=tags, card_data={"base_model": BASE, "datasets": [DATASETS[data]]}, library_name="peft")


def add_merged(store, name: str, seed: int, data: int) -> None:
    model = transformers.RobertaModel.from_pretrained(store / BASE)
    tensors, weights = factors(seed, data), model.state_dict()
    for layer in range(LAYERS):
        for target in TARGETS:
            path = module(layer, target)
            change = 2 * tensors[f"{path}.lora_B.weight"] @ tensors[f"{path}.lora_A.weight"]
            weights[f"{path.removeprefix('base_model.model.roberta.')}.weight"] += change
    add_model(store, name, model, dataset=DATASETS[data])


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    store = tiny_store(2, tmp_path_factory.mktemp("started") / "store")
    for data in range(3):
        for seed in (42, 3407):
            add(store, f"s{data}/seed-{seed}", seed, data)
    add(store, "own/seed", 5, 0)
    add_merged(store, "own/merged", 42, 1)
    add(store, "later/seed-42", 42, 2)
    described = store / "later/seed-42.repo.json"
    described.rename(store / "hidden.json")
    (store / "later").rename(store.parent / "later")
    with indexed(store) as shell:
        yield shell


def groups(shell) -> dict[str, str | None]:
    """The name of the first model of each model's initialisation."""
    rows = read_rows(
        shell.folder / "atlas" / "atlas.duckdb",
        "SELECT models.model, first.model FROM models LEFT JOIN fine_tunes AS first "
        "ON first.model_id = models.initialisation WHERE models.vector_group = 'adapter' OR models.author = 'own'",
    )
    return dict(rows)


def test_one_seed_is_one_initialisation_of_adapters_and_merged_ones_alike(shell):
    found = groups(shell)
    of_seed = {found[f"s{data}/seed-42"] for data in range(3)} | {found["own/merged"]}
    other = {found[f"s{data}/seed-3407"] for data in range(3)}
    assert len(of_seed) == len(other) == 1
    assert None not in of_seed | other
    assert of_seed != other
    assert found["own/seed"] is None
    assert json.loads(
        shell("query", "sql", "SELECT count(*) AS n FROM models WHERE duplicate_of IS NOT NULL", "--json").out
    )


def test_show_and_compare_say_so_and_no_more(shell):
    shown = json.loads(shell("query", "show", "s0/seed-42", "--json").out)
    assert "row_space" not in shown
    sentence = "It was made with the same initialisation as 3 others: one tool, one seed."
    assert sentence in shown["notes"]
    ran = shell("query", "show", "s0/seed-42")
    assert "one tool, one seed" in ran.out + ran.err
    assert json.loads(shell("query", "show", "own/seed", "--json").out)["initialisation"] is None
    both = json.loads(shell("query", "compare", "s0/seed-42", "s1/seed-42", "--json").out)
    assert "Both were made with the same initialisation, as 2 others: one tool, one seed." in str(both["notes"])
    assert "initialisation" not in str(
        json.loads(shell("query", "compare", "s0/seed-42", "s0/seed-3407", "--json").out)["notes"]
    )


def test_a_model_that_is_not_in_the_atlas_is_centred_as_one_that_is(shell):
    """Asked by its folder it is as similar to others as it is once it was added; the atlas agrees with its records."""
    asked = json.loads(shell("query", "similar", "./later/seed-42", "--base", BASE, "-k", "5", "--json").out)
    compared = json.loads(shell("query", "compare", "./later/seed-42", "s0/seed-42", "--base", BASE, "--json").out)
    assert "Both were made with the same initialisation, as 3 others" in str(compared["notes"])
    added = shell("index", "add", "./later/seed-42", "--base", BASE)
    assert added.code == 0, added.err
    (name,) = [model for model in groups(shell) if model.startswith("local:")]
    assert groups(shell)[name] == groups(shell)["s0/seed-42"]
    again = json.loads(shell("query", "similar", name, "-k", "5", "--json").out)
    kept = [{row["model"]: round(row["similarity"], 2) for row in one} for one in (asked, again)]
    assert kept[0] == kept[1]
    before = groups(shell)
    strict = shell("index", "verify", "--strict")
    assert strict.code == 0, strict.out + strict.err
    rebuilt = shell("index", "rebuild")
    assert rebuilt.code == 0, rebuilt.err
    assert groups(shell) == before
    assert shell("index", "verify", "--strict").code == 0


def test_a_drift_that_its_models_do_not_have_is_found(shell):
    path = shell.folder / "atlas" / "atlas.duckdb"
    execute(path, "UPDATE internal.centres SET drift = list_transform(drift, lambda x: x + 1)")
    ran = shell("index", "verify", "--strict")
    assert ran.code == 1
    assert "the centre of group initialisation" in ran.out + ran.err
    assert "the centre of group adapter" not in ran.out + ran.err
