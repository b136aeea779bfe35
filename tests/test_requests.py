"""How many requests a build needs: counted in advance, against those that a Hub sees, and what is said of them."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from indexer.builds.estimate import Requests, children_sentence, requests_of
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import AtlasError
from indexer.network import rate_limit
from indexer.network.hub import conversion_revision, count_children, model_row
from indexer.network.rows import listed_filenames
from indexer.records.identity import ModelVersion, Spec, Unit
from indexer.sources.hub_base import resolve_base
from indexer.sources.registry import ModelRef
from tests.hubs import BASE, add_base, add_repo, served, tags
from tests.sampling.made import FORMS, ROBERTA, base_weights


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    weights = base_weights(ROBERTA)
    for form in ("safetensors", "shards", "zip"):
        FORMS[form](root / "me" / form, ROBERTA, weights)
    factors = save({"base_model.model.x.lora_A.weight": torch.zeros(2, 4)})
    add_repo(root, "me/adapter", {"adapter_config.json": {"r": 2}, "adapter_model.safetensors": factors})
    add_repo(root, "me/both", {"adapter_config.json": {}, "config.json": {}, "adapter_model.safetensors": factors})
    add_repo(root, "me/empty", {"README.md": "hello"})
    return root


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("safetensors", Requests(0, 2)),
        ("shards", Requests(0, 4)),
        ("zip", Requests(4, 2)),
        ("adapter", Requests(0, 2)),
        ("both", Requests(0, 3)),
        ("empty", Requests(0, 0)),
    ],
)
def test_requests_are_those_that_the_hub_sees(root, monkeypatch, name, expected):
    relation = "adapter" if name in ("adapter", "both") else "finetune"
    with served(root, monkeypatch) as hub:
        row = model_row(f"me/{name}")
        filenames = listed_filenames(row)
        unit = Unit(ModelRef(f"me/{name}"), row["sha"], BASE, "b" * 40, relation, Spec(), filenames=filenames)
        assert requests_of([unit]) == expected
        hub.reset_log()
        if expected.files:
            open_checkpoint(
                unit.model, commit=unit.commit, filenames=filenames, relation=relation,
                conversion=lambda: conversion_revision(unit.model.id),
            ).close()  # fmt: skip
        files = [one for one in hub.requests if "/resolve/" in one.path]
        api = [one for one in hub.requests if one.path.startswith("/api/models/")]
        assert len(files) == expected.files
        assert len(api) <= expected.api  # of a pickle as many as a conversion takes


def test_models_below_an_adapter_are_read_too_and_folders_ask_nobody(tmp_path):
    parent = ModelVersion(ModelRef("me/tuned"), "c" * 40, "finetune", None, ("config.json", "model.safetensors"))
    adapter = Unit(ModelRef("me/x"), "c" * 40, BASE, "b" * 40, "adapter", Spec(), parent=parent,
                   filenames=("adapter_config.json", "adapter_model.safetensors"))  # fmt: skip
    local = Unit(
        ModelRef("local:y", folder=tmp_path), "", BASE, "b" * 40, "finetune", Spec(), filenames=("model.safetensors",)
    )
    unknown = Unit(ModelRef("me/z"), "c" * 40, BASE, "b" * 40, "finetune", Spec())
    assert requests_of([adapter, local]) == Requests(0, 4)
    assert requests_of([unknown]) == Requests(1, 2)


@pytest.fixture
def limits(monkeypatch):
    """No token, and no Hub that said what it allows."""
    monkeypatch.setattr(rate_limit, "_policies", {})
    monkeypatch.setattr("indexer.builds.estimate.get_token", lambda: None)
    return monkeypatch


def test_what_fits_into_a_window_is_said_in_one_sentence(limits):
    assert Requests(500, 3000).seconds == 0
    assert Requests(12, 3000).sentences() == ["≈ 12 API and 3,000 file requests"]


def test_what_does_not_fit_takes_windows_and_a_token_is_urged(limits):
    many = Requests(40, 9000)
    assert many.seconds == 900
    first, second = many.sentences()
    assert (
        first
        == "≈ 40 API and 9,000 file requests: 15 min at least, as the Hub allows 500 and 3,000 in 5 min without a token"
    )
    assert "1,000 and 5,000" in second
    assert "HF_TOKEN" in second
    limits.setattr("indexer.builds.estimate.get_token", lambda: "hf_x")
    assert many.seconds == 540
    (only,) = many.sentences()
    assert only.endswith("allows 1,000 and 5,000 in 5 min")


def test_what_the_hub_says_it_allows_counts(limits, root):
    with served(root, limits, quotas={"resolvers": (100, 60.0)}):
        open_checkpoint(ModelRef("me/safetensors")).close()
    assert rate_limit.quota_of("resolve", False) == (100, 60)
    assert Requests(0, 1000).seconds == 600


@pytest.mark.parametrize("header", ["", "q=5", '"api";q=0;w=300', '"api";q=' + "9" * 99 + ";w=1", "q=-5;w=300"])
def test_a_policy_that_says_nothing_readable_is_none(header):
    assert rate_limit.policy_in({"ratelimit-policy": header}) is None


def test_children_are_counted_before_a_crawl(tmp_path, monkeypatch):
    add_base(tmp_path)
    for number in range(3):
        add_repo(tmp_path, f"a/tuned{number}", tags=tags(BASE))
    add_repo(tmp_path, "a/lora", tags=tags(BASE, "adapter"))
    with served(tmp_path, monkeypatch) as hub:
        counts = count_children(BASE)
        assert counts == {"finetune": 3, "adapter": 1}
        hub.faults.add("childrenModelCount", status=400)
        assert count_children(BASE) == {}
    sentence = children_sentence(BASE, {"finetune": 6837, "adapter": 134, "merge": 1}, ("finetune", "adapter"), 200)
    assert sentence == (
        f"the Hub counts 6,837 fine-tunes, 134 adapters and 1 merge of {BASE}; listing them takes about 71 API requests"
    )


@pytest.mark.parametrize(
    "counted", [5, None, [1], {"finetune": -1, "adapter": "x", "merge": 10**30, "x": 5, "quantized": True}]
)
def test_counts_that_are_none_are_left_out(monkeypatch, counted):
    monkeypatch.setattr(
        "indexer.network.hub.get_json", lambda *_: type("Answer", (), {"value": {"childrenModelCount": counted}})
    )
    assert count_children(BASE) == {}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model_index.json": {}}, "pipeline without"),
        ({"params.json": {}, "consolidated.safetensors": b"x"}, "Mistral's own form"),
        ({"adapter_config.json": {}}, "adapter"),
        ({"README.md": "x"}, "no readable config.json"),
        ({"config.json": "[]"}, "no readable config.json"),
    ],
)
def test_a_base_without_a_configuration_is_one_clear_line(tmp_path, monkeypatch, files, words):
    add_repo(tmp_path, "org/base", files)
    with served(tmp_path, monkeypatch), pytest.raises(AtlasError, match=words) as caught:
        resolve_base("org/base")
    assert "\n" not in str(caught.value)
    assert caught.value.hint
