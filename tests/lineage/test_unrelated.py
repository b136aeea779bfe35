"""Models that are not made from the base, copies of it and of each other: the same verdict whether indexed or not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from indexer.errors import AtlasError
from query import Atlas
from query.questions.lineage.result import CONTRADICTED, NOT_DECLARED, Edge, Lineage
from query.questions.lineage.stored import DeclaredParents
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.hubs import use_endpoint
from tests.tiny_hub import BASE, describe

BLOCK = "encoder.layer."


def permuted(random, weight):
    return weight[random.permutation(len(weight))][:, random.permutation(weight.shape[1])]


def noisy(random, weight, sizes):
    return weight + sizes * weight.std() * random.standard_normal(weight.shape)


# What is made of each block matrix of the base (of "last", only of one), and the verdict.
MADE = {
    "random": (lambda random, weight: 0.02 * random.standard_normal(weight.shape), "unrelated"),
    "permuted": (permuted, "unrelated"),
    "zero": (lambda random, weight: 0 * weight, "unrelated"),
    "negated": (lambda random, weight: -weight, "unrelated"),
    "mostly-noise": (lambda random, weight: noisy(random, weight, 8), "unrelated"),
    "some-noise": (lambda random, weight: noisy(random, weight, 0.5), "derived"),
    "scaled": (lambda random, weight: 3 * weight, "derived"),
    "near": (lambda random, weight: noisy(random, weight, 0.01), "derived"),
    "last": (lambda random, weight: noisy(random, weight, 0.5), "derived"),
    "same": (lambda random, weight: weight, "copy"),
}


def write(folder, base, name):
    random = np.random.default_rng(5)
    only = f"{BLOCK}1.output.dense.weight" if name == "last" else BLOCK
    tensors = {
        key: MADE[name][0](random, weight).astype(np.float32) if only in key and weight.ndim == 2 else weight
        for key, weight in load_file(base / "model.safetensors").items()
    }
    folder.mkdir(parents=True)
    shutil.copy(base / "config.json", folder)
    save_file(tensors, folder / "model.safetensors")


def write_adapter(folder, like, named):
    """A LoRA of the base's query matrices that names a base."""
    random = np.random.default_rng(len(named))
    tensors = {}
    for key, weight in load_file(like / "model.safetensors").items():
        if key.endswith("query.weight"):
            path = f"base_model.model.roberta.{key.removesuffix('.weight')}"
            tensors[f"{path}.lora_A.weight"] = random.standard_normal((2, weight.shape[1])).astype(np.float32)
            tensors[f"{path}.lora_B.weight"] = random.standard_normal((weight.shape[0], 2)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "base_model_name_or_path": named}
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def hub(tiny_store, tmp_path_factory):
    """The tiny Hub, with a model of another base, which has the base's shapes."""
    store = tiny_store(4, tmp_path_factory.mktemp("unrelated") / "store")
    write(store / "far/other", store / BASE, "random")
    describe(store, "far/other", tags=[f"base_model:finetune:{BASE}"], card_data={"base_model": BASE})
    with LoopbackHub(store) as running:
        running.store_folder = store
        yield running


@pytest.fixture
def atlas_and_store(hub, made_of_twelve, monkeypatch, tmp_path):
    """An atlas of its own, and the folder of the Hub's repositories."""
    use_endpoint(monkeypatch, hub.endpoint)
    shutil.copytree(made_of_twelve / "atlas", tmp_path / "atlas")
    with Atlas(tmp_path / "atlas") as atlas:
        yield atlas, hub.store_folder


def summary(answer):
    (edge,) = answer.edges
    return answer.verdict, edge.kind, edge.parent, edge.coefficient, round(edge.residual, 6)


@pytest.mark.parametrize("name", MADE)
def test_the_weights_decide_whether_a_folder_is_made_from_the_base(atlas_and_store, tmp_path, name):
    atlas, store = atlas_and_store
    write(tmp_path / name, store / BASE, name)
    answer = atlas.lineage(tmp_path / name, expect=BASE)
    assert answer.verdict == MADE[name][1]
    assert answer.is_as_expected == (answer.verdict != "unrelated")
    (row,) = answer.to_rows()
    assert row["verdict"] == answer.verdict
    assert (row["kind"] == "unrelated") == (row["parent"] is None) == (answer.verdict == "unrelated")


def test_a_model_on_the_hub_that_claims_the_base_is_contradicted(atlas_and_store):
    atlas, _ = atlas_and_store
    answer = atlas.lineage("far/other")
    assert summary(answer)[:3] == ("unrelated", "unrelated", None)
    assert answer.edges[0].card == CONTRADICTED
    assert "not made from" in answer.headline
    assert "cosine" in answer.headline


@pytest.mark.slow
def test_an_adapter_is_judged_by_the_base_that_it_names(atlas_and_store, tmp_path):
    atlas, store = atlas_and_store
    for name, named, verdict in (("own", BASE, "derived"), ("other", "far/other", "unrelated")):
        write_adapter(tmp_path / name, store / BASE, named)
        answer = atlas.lineage(tmp_path / name)
        assert answer.verdict == verdict, name
    assert "adapter of another base" in answer.headline
    write_adapter(tmp_path / "unknown", store / BASE, "nobody/knows-this")
    answer = atlas.lineage(tmp_path / "unknown")
    assert answer.verdict == "derived"
    assert any("nobody/knows-this" in note for note in answer.notes)


def test_another_model_may_be_expected(atlas_and_store, tmp_path):
    atlas, store = atlas_and_store
    shutil.copytree(store / "ann/glue-0", tmp_path / "again")
    same = atlas.lineage(tmp_path / "again", expect="ann/glue-0")
    assert same.is_as_expected
    assert summary(same)[:3] == ("derived", "copy", "ann/glue-0")
    assert same.edges[0].direction == "unknown"
    assert same.edges[0].card != CONTRADICTED
    assert "the same weights as ann/glue-0; which came first cannot be told" in same.headline
    assert "continued" not in same.headline
    assert same.edges[0].probability > 0.9
    assert not atlas.lineage(tmp_path / "again", expect="bob/imdb-1").is_as_expected
    with pytest.raises(AtlasError, match="nobody/nothing"):
        atlas.lineage(tmp_path / "again", expect="nobody/nothing")


@pytest.mark.slow
def test_indexed_or_not_the_answer_is_the_same(atlas_and_store, tmp_path):
    from indexer import build

    atlas, store = atlas_and_store
    models = [f"far/{name}" for name in (*MADE, "on-base", "on-other")]
    for model in models:
        name = model.partition("/")[2]
        if name in MADE:
            write(store / model, store / BASE, name)
        else:
            write_adapter(store / model, store / BASE, {"on-base": BASE, "on-other": "far/other"}[name])
        relation = "finetune" if name in MADE else "adapter"
        describe(store, model, tags=[f"base_model:{relation}:{BASE}"], card_data={"base_model": BASE})
    before = {model: summary(atlas.lineage(model, dates=False)) for model in models}
    assert {answer[0] for answer in before.values()} == {"derived", "copy", "unrelated"}
    build(BASE, tmp_path / "atlas", workers=1)
    atlas.refresh()
    after = {model: summary(atlas.lineage(model, dates=False)) for model in models}
    assert after == before


def test_a_folder_with_the_content_of_an_indexed_one_is_no_continuation_of_it(atlas_and_store, tmp_path):
    from indexer import add

    atlas, store = atlas_and_store
    write(tmp_path / "near", store / BASE, "near")
    add(tmp_path / "near", BASE, tmp_path / "atlas")
    atlas.refresh()
    shutil.copytree(tmp_path / "near", tmp_path / "twin")
    (tmp_path / "twin" / "README.md").write_text("Mine.")
    answer = atlas.lineage(tmp_path / "twin")
    assert summary(answer)[:3] == ("derived", "copy", "local:near")
    assert "the same weights as local:near; which came first cannot be told" in answer.headline
    with pytest.raises(AtlasError, match=r"local:near was added from a folder.*Ask about the folder itself"):
        atlas.lineage("local:near")


@pytest.mark.slow
def test_the_command_exits_with_1_for_an_unrelated_model(hub, made_of_twelve, tmp_path):
    shutil.copytree(made_of_twelve / "atlas", tmp_path / "atlas")
    write(tmp_path / "random", hub.store_folder / BASE, "random")
    shell = Shell(hub.endpoint, tmp_path)
    result = shell("query", "lineage", "./random", "--expect", BASE, "--json")
    assert result.code == 1
    assert [row["verdict"] for row in json.loads(result.out)] == ["unrelated"]
    assert result.err.splitlines()[-1].endswith(f"is not made from {BASE}")
    assert shell("query", "lineage", "ann/glue-0", "--expect", BASE).code == 0
    assert shell("query", "lineage", "--all", "--expect", BASE).code == 2
    # The other questions say so too.
    for words in (["similar", "./random"], ["trace", "./random"], ["layers", "./random"],
                  ["compare", "./random", "ann/glue-0"], ["predict", "./random"]):  # fmt: skip
        assert f"not made from {BASE}" in shell("query", *words).err, words


def test_a_card_that_names_nothing_is_not_contradicted():
    assert DeclaredParents(frozenset(), frozenset(), names_base=False).of_unrelated == NOT_DECLARED
    assert DeclaredParents(frozenset({"x/y"}), frozenset(), names_base=False).of_unrelated == NOT_DECLARED
    assert DeclaredParents(frozenset(), frozenset(), names_base=True).of_unrelated == CONTRADICTED


def test_a_model_that_could_not_be_read_has_no_verdict():
    answer = Lineage("a/b", BASE, 1, (), 0, 0, expected=BASE)
    assert (answer.verdict, answer.is_as_expected) == ("unknown", False)
    tuned = Edge("a/b", BASE, "tuned from the base", 1.0, 1.0)
    assert Lineage("a/b", BASE, 1, (tuned,), 0, 0).is_as_expected
