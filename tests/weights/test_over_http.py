"""Checkpoints on the Hub: what travels, and what is done where it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.errors import Failed, Skipped
from indexer.network.retries import RetryPolicy
from indexer.sources.registry import ModelRef
from scripts.loopback_hub import LoopbackHub
from tests.hubs import cleared, set_endpoint
from tests.weights.folders import FORMS, a_state, write_config

SHA = "1234567890abcdef1234567890abcdef12345678"
LISTED = ["config.json", "model.safetensors"]
QUICK = RetryPolicy(retries=2, first_wait=0.01, longest_wait=0.02)


# The Hub.


def block_names(state: dict[str, torch.Tensor]) -> list[str]:
    """The matrices of the blocks of a bert: what a record needs."""
    return [
        name
        for name in state
        if re.search(r"encoder\.layer\.\d+\.", name) and name.endswith(".weight") and "LayerNorm" not in name
    ]


@pytest.fixture(scope="module")
def bert() -> dict[str, torch.Tensor]:
    """A bert of 12 layers, as wide as keeps the test quick: 9.4 MB of blocks, 8 MB of embeddings."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=12, num_attention_heads=4, intermediate_size=512, vocab_size=16_000
    )
    return {name: tensor.clone() for name, tensor in BertForSequenceClassification(config).state_dict().items()}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, bert: dict[str, torch.Tensor]) -> Iterator[LoopbackHub]:
    root = tmp_path_factory.mktemp("store")

    def repository(name: str, **settings: Any) -> Path:
        folder = root / "me" / name
        write_config(folder)
        (root / "me" / f"{name}.repo.json").write_text(json.dumps({"sha": SHA} | settings))
        return folder

    for form, write in FORMS.items():
        write(repository(form.replace(" ", "-")), bert)
    torch.save(
        bert,
        repository(
            "converted",
            revisions={
                "refs/pr/1": {
                    "sha": "f" * 40,
                    "folder": "me/converted.pr1",
                    "author": "SFconvertbot",
                    "title": "x",
                },
                "refs/pr/2": {"sha": "e" * 40, "folder": "me/empty", "author": "SFconvertbot", "title": "x"},
            },
        )
        / "pytorch_model.bin",
    )
    (root / "me" / "converted.pr1").mkdir()
    save_file(bert, root / "me" / "converted.pr1" / "model.safetensors")
    (root / "me" / "empty").mkdir()
    (root / "me" / "empty" / "README.md").write_text("nothing")
    save_file(a_state(5), repository("gated", gated="manual") / "model.safetensors")
    nested = repository("nested") / "inner"
    write_config(nested, hidden_size=9)
    save_file(a_state(6), nested / "model.safetensors")
    with LoopbackHub(root) as hub:
        hub.prepare()
        yield hub


@pytest.fixture
def hub(serving: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    set_endpoint(monkeypatch, serving.endpoint)
    with cleared(serving):
        yield serving


@pytest.mark.parametrize("form", FORMS)
def test_bytes_over_http_stay_under_the_bar(hub: LoopbackHub, bert: dict[str, torch.Tensor], form: str) -> None:
    """Response bodies <= 1.02 x block matrices + 64 KiB a file, counted by the server; values as saved."""
    identifier = f"me/{form.replace(' ', '-')}"
    checkpoint = open_checkpoint(ModelRef(identifier), commit=SHA, filenames=None)
    names = block_names(bert)
    assert len(names) == 72
    count = 0
    for name, tensor in checkpoint.stream(names):
        assert torch.equal(tensor, bert[name])
        count += 1
    assert count == 72
    blocks = sum(bert[name].nbytes for name in names)
    # Small files are redirected; the bodies of redirects are not read.
    sent = sum(
        request.body_bytes for request in hub.requests if "/api/models" not in request.path and request.status != 307
    )
    assert sent == checkpoint.bytes_read
    assert sent <= 1.02 * blocks + 65_536 * len(checkpoint.files)
    # Few requests, too: per file a HEAD and what the index takes, then runs.
    assert len([request for request in hub.requests if request.method == "GET"]) <= 6 * len(checkpoint.files) + 3
    assert not hub.leaks
    assert all(facts.sha256 is not None and len(facts.sha256) == 64 for facts in checkpoint.files)


def test_known_names_and_commit_save_asking(hub: LoopbackHub) -> None:
    reference = ModelRef("me/safetensors")
    open_checkpoint(reference, commit=SHA, filenames=LISTED)
    assert not [request for request in hub.requests if "/api/models" in request.path]
    checkpoint = open_checkpoint(ModelRef("me/safetensors", "main"))
    assert checkpoint.commit == SHA


def test_a_subfolder_of_the_hub(hub: LoopbackHub) -> None:
    checkpoint = open_checkpoint(ModelRef("me/nested", subfolder="inner"))
    assert checkpoint.config["hidden_size"] == 9
    assert torch.equal(dict(checkpoint.stream(["layer.0.weight"]))["layer.0.weight"], a_state(6)["layer.0.weight"])


def test_a_conversion_is_read_in_place_of_a_pickle(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    reference = ModelRef("me/converted")
    calls = []

    def conversion() -> str | None:
        calls.append(1)
        return "refs/pr/1"

    checkpoint = open_checkpoint(reference, commit=SHA, conversion=conversion)
    assert [facts.format for facts in checkpoint.files] == ["safetensors"]
    name = block_names(bert)[3]
    assert torch.equal(dict(checkpoint.stream([name]))[name], bert[name])
    assert not [request for request in hub.requests if request.filename == "pytorch_model.bin"]
    open_checkpoint(ModelRef("me/safetensors"), conversion=conversion)
    assert calls == [1], "it is asked for only where the model has nothing but pickles"


@pytest.mark.parametrize("revision", [None, "refs/pr/2", "refs/pr/77"])
def test_without_a_conversion_the_pickle_is_read(hub: LoopbackHub, revision: str | None) -> None:
    checkpoint = open_checkpoint(ModelRef("me/converted"), commit=SHA, conversion=lambda: revision)
    assert [facts.format for facts in checkpoint.files] == ["torch-zip"]


def test_refusals_of_the_hub_are_reported(hub: LoopbackHub) -> None:
    with pytest.raises(Skipped) as skip:
        open_checkpoint(ModelRef("me/gated"), commit=SHA, filenames=LISTED)
    assert skip.value.reason == "gated"
    for reference in (ModelRef("me/nobody"), ModelRef("me/safetensors", "no-such-branch")):
        with pytest.raises(Failed) as failure:
            open_checkpoint(reference)
        assert failure.value.reason == "not_found"
        assert reference.id in failure.value.detail


def test_a_listed_file_that_is_gone_is_a_failure(hub: LoopbackHub) -> None:
    with pytest.raises(Failed) as failure:
        open_checkpoint(ModelRef("me/nested"), commit=SHA, filenames=LISTED)
    assert failure.value.reason == "not_found"


def test_a_stream_survives_a_broken_connection(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    hub.faults.add("model.safetensors", role="cdn", drop_after=3_000_000, since=2)
    checkpoint = open_checkpoint(ModelRef("me/safetensors"), retries=QUICK)
    assert all(torch.equal(tensor, bert[name]) for name, tensor in checkpoint.stream(block_names(bert)))
    assert len([request for request in hub.requests if request.role == "cdn"]) > 3


def test_a_stream_given_up_early_costs_little(hub: LoopbackHub, bert: dict[str, torch.Tensor]) -> None:
    checkpoint = open_checkpoint(ModelRef("me/safetensors"))
    stream = checkpoint.stream(block_names(bert))
    next(stream)
    stream.close()
    checkpoint.close()
    assert checkpoint.bytes_read < 500_000


def test_what_the_cache_holds_is_read_there(
    hub: LoopbackHub, bert: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, hf_hub_download

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in LISTED:
        hf_hub_download("me/safetensors", name, cache_dir=tmp_path, endpoint=hub.endpoint)
    hub.reset_log()
    checkpoint = open_checkpoint(ModelRef("me/safetensors"), commit=SHA, filenames=LISTED)
    assert all(torch.equal(tensor, bert[name]) for name, tensor in checkpoint.stream(block_names(bert)))
    assert hub.requests == []
    assert len(str(checkpoint.files[0].sha256)) == 64
    # Another commit is another file.
    with pytest.raises(Failed):
        open_checkpoint(ModelRef("me/safetensors"), commit="a" * 40, filenames=LISTED)
    # Offline nothing but the cache is asked.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.reset_log()
    for commit in (None, SHA):
        checkpoint = open_checkpoint(ModelRef("me/safetensors"), commit=commit)
        assert checkpoint.commit == SHA
        assert dict(checkpoint.stream([block_names(bert)[0]]))
    with pytest.raises(Failed) as failure:
        open_checkpoint(ModelRef("me/torch-zip"), commit=SHA, filenames=LISTED)
    assert failure.value.reason == "network"
    assert "HF_HUB_OFFLINE" in failure.value.detail
    # A cache that holds a part of the repository decides nothing for good.
    for path in tmp_path.rglob("model.safetensors"):
        path.unlink()
    with pytest.raises(Failed) as failure:
        open_checkpoint(ModelRef("me/safetensors"), commit=SHA, filenames=LISTED)
    assert failure.value.reason == "network"
    assert hub.requests == []
