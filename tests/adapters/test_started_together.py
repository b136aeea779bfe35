"""Adapters that one tool made with one seed, from a Hub to the answers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.adapters.test_adapter_bases import LAYERS, TARGETS, WIDTH, module
from tests.database import read_rows
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
            for like in (a, torch.empty(WIDTH, rank), a):  # A and B as ordinary layers, and A again
                torch.nn.init.kaiming_uniform_(like, a=5**0.5, generator=drawn)
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
        "ON first.model_id = models.initialisation WHERE models.vector_group <> 'full' OR models.author = 'own'",
    )
    return dict(rows)


def test_one_seed_is_one_initialisation_of_adapters_and_merged_ones_alike(shell):
    initialisation_of = groups(shell)
    of_seed = {initialisation_of[f"s{data}/seed-42"] for data in range(3)} | {initialisation_of["own/merged"]}
    other = {initialisation_of[f"s{data}/seed-3407"] for data in range(3)}
    assert len(of_seed) == len(other) == 1
    assert None not in of_seed | other
    assert of_seed != other
    assert initialisation_of["own/seed"] is None
    assert json.loads(
        shell("query", "sql", "SELECT count(*) AS n FROM models WHERE duplicate_of IS NOT NULL", "--json").out
    )


def test_starts_are_found_and_told(shell):
    rows = json.loads(
        shell("query", "sql", "SELECT model, vector_group, start FROM models WHERE relation = 'adapter'", "--json").out
    )
    for row in rows:
        seed = int(row["model"].rpartition("-")[2]) if "seed-" in row["model"] else 5
        start = row["start"]
        assert row["vector_group"] == "adapter"
        assert (start["generator"], start["seed"], start["prefix"]) == ("uniform", seed, 0)
        assert start["found"] == start["modules"] == LAYERS * len(TARGETS)
        assert start["distance"] == pytest.approx(0.3, abs=0.01)


def test_models_of_other_seeds_and_the_same_data_are_nearer_than_those_of_the_same_seed(shell):
    for data in range(3):
        similar = json.loads(shell("query", "similar", f"s{data}/seed-42", "-k", "8", "--json").out)
        by_model = {row["model"]: row["similarity"] for row in similar}
        same_data = by_model[f"s{data}/seed-3407"]
        assert all(same_data > by_model.get(f"s{other}/seed-42", -1.0) for other in range(3) if other != data)


def test_show_and_compare_say_so_and_no_more(shell):
    shown = json.loads(shell("query", "show", "s0/seed-42", "--json").out)
    assert "row_space" not in shown
    sentence = "It was made with the same initialisation as 3 others: one tool, one seed."
    assert sentence in shown["notes"]
    show = shell("query", "show", "s0/seed-42")
    assert "one tool, one seed" in show.out + show.err
    assert json.loads(shell("query", "show", "own/seed", "--json").out)["initialisation"] is None
    both = json.loads(shell("query", "compare", "s0/seed-42", "s1/seed-42", "--json").out)
    assert "Both began at the same random numbers, uniform numbers of seed 42" in str(both["notes"])
    assert "random numbers" not in str(
        json.loads(shell("query", "compare", "s0/seed-42", "s0/seed-3407", "--json").out)["notes"]
    )


def test_a_model_that_is_not_in_the_atlas_is_centred_as_one_that_is(shell):
    """Asked by its folder it is as similar to others as it is once it was added; the atlas agrees with its records."""
    by_folder = json.loads(shell("query", "similar", "./later/seed-42", "--base", BASE, "-k", "5", "--json").out)
    compared = json.loads(shell("query", "compare", "./later/seed-42", "s0/seed-42", "--base", BASE, "--json").out)
    assert "Both began at the same random numbers" in str(compared["notes"])
    added = shell("index", "add", "./later/seed-42", "--base", BASE)
    assert added.code == 0, added.err
    (name,) = [model for model in groups(shell) if model.startswith("local:")]
    assert groups(shell)[name] == groups(shell)["s0/seed-42"]
    again = json.loads(shell("query", "similar", name, "-k", "5", "--json").out)
    rounded = [{row["model"]: round(row["similarity"], 2) for row in rows} for rows in (by_folder, again)]
    assert rounded[0] == rounded[1]
    before = groups(shell)
    strict = shell("index", "verify", "--strict")
    assert strict.code == 0, strict.out + strict.err
    rebuilt = shell("index", "rebuild")
    assert rebuilt.code == 0, rebuilt.err
    assert groups(shell) == before
    assert shell("index", "verify", "--strict").code == 0
