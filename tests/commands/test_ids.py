"""What people type for a model or a base: ends of ids, addresses, mistypings."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest

from indexer.checkpoints.repository import open_repository
from indexer.errors import AtlasError, ModelError, Skipped
from indexer.hub_ids import without_address
from indexer.names import nearest
from indexer.sources.registry import ModelRef
from indexer.sources.rows import row_of
from query import Atlas
from tests.atlas_builder import BASE, Model, write_atlas
from tests.database import execute


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("https://huggingface.co/ann/one", "ann/one"),
        ("huggingface.co/ann/one/", "ann/one"),
        ("https://www.huggingface.co/ann/one?x=1#y", "ann/one"),
        ("https://hf.co/ann/one/tree/v1.0", "ann/one@v1.0"),
        ("https://huggingface.co/ann/one/tree/refs%2Fpr%2F3", "ann/one@refs/pr/3"),
        ("https://huggingface.co/ann/one/tree/refs/pr/3", "ann/one@refs/pr/3"),
        ("https://huggingface.co/ann/one/blob/main/config.json", "ann/one@main"),
        ("https://huggingface.co/ann/one/discussions/3", "ann/one"),
        ("http://127.0.0.1:9/ann/one", "ann/one"),  # the endpoint of the tests
        ("https://example.org/ann/one", "https://example.org/ann/one"),
        ("ann/one@main", "ann/one@main"),
        ("ann/one", "ann/one"),
    ],
)
def test_addresses(typed, meant):
    assert without_address(typed) == meant


def test_addresses_of_something_else_are_reported():
    for typed in ("https://huggingface.co/datasets/nyu-mll/glue", "https://huggingface.co/ann"):
        with pytest.raises(AtlasError, match="not the address of a model"):
            ModelRef.parse(typed)
    with pytest.raises(AtlasError, match="neither a folder here nor a Hub id"):
        ModelRef.parse("https://example.org/ann/one")


@pytest.mark.parametrize(
    "typed", ["ann/one", "one", "ONE", "https://huggingface.co/ann/one", "hf.co/ann/one/tree/main"]
)
def test_a_model_by_any_name(small_atlas, typed):
    with Atlas(small_atlas) as opened:
        reference = ModelRef.parse(typed.removesuffix("/tree/main"))
        assert opened.find(reference).model == "ann/one"


@pytest.mark.parametrize("typed", [BASE, "base", "https://hf.co/org/base", "huggingface.co/org/base/tree/main"])
def test_a_base_by_any_name(small_atlas, typed):
    with Atlas(small_atlas) as opened:
        assert opened.base_named(typed) == BASE


def test_an_end_of_several_ids_is_not_a_name(small_atlas, run):
    code, out, err = run("query", "show", "twin", "--atlas", small_atlas)
    assert (code, out) == (1, "")
    assert "2 models are called twin: cyd/twin, dan/twin." in err


def test_only_near_names_are_suggested(small_atlas, run):
    _, _, err = run("query", "show", "ann/onne", "--atlas", small_atlas)
    assert "closest ids: ann/one." in err
    _, _, err = run("query", "show", "zed/quite-another-thing", "--atlas", small_atlas)
    assert "closest" not in err
    _, _, err = run("query", "purity", "--base", "org/bse", "--atlas", small_atlas)
    assert "Did you mean org/base?" in err
    _, _, err = run("query", "purity", "--base", "gpt2-xl", "--atlas", small_atlas)
    assert "Did you mean" not in err
    assert "index build --base gpt2-xl" in err


def test_what_is_not_indexed_is_not_suggested(atlas, run):

    execute(atlas.database, "UPDATE fine_tunes SET status = 'skipped' WHERE model = 'ann/glue-0'")
    _, _, err = run("query", "show", "ann/glue-00", "--atlas", atlas.root)
    assert "ann/glue-0 " not in err
    assert "closest ids:" in err


def test_nearest_are_few_and_near():
    assert nearest("roberta-bse", ["roberta-base", "roberta-large", "gpt2"])[0] == "roberta-base"
    assert nearest("xyz", ["roberta-base"]) == []


def test_a_mistyped_name_without_an_owner_is_answered_by_the_atlas(small_atlas, run, monkeypatch):
    """The Hub is not asked, which here would be an endpoint that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for command in ("similar", "predict", "layers"):
            code, _, err = run("query", command, "two-fine-tuned", "--atlas", small_atlas)
            assert code == 1
            assert "two-fine-tuned is not in this atlas; closest ids: bob/two-fine-tune." in err
            assert "write two-fine-tuned@main" in err
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("command", ["similar", "predict", "layers", "show"])
def test_the_base_asked_for_as_a_model_is_the_base_itself(small_atlas, run, command):
    code, _, err = run("query", command, BASE, "--atlas", small_atlas)
    assert code == 1
    assert f"{BASE} is the base itself, not a model tuned from it. Its models: query models --base {BASE}" in err


def test_models_and_datasets_are_listed(small_atlas, run):
    code, out, err = run("query", "models", "twin", "--atlas", small_atlas, "--json")
    assert code == 0, err
    assert [row["model"] for row in json.loads(out)] == ["cyd/twin", "dan/twin"]
    _, out, _ = run("query", "models", "--dataset", "sst2", "--base", "base", "--atlas", small_atlas, "--format", "csv")
    assert out.splitlines()[0] == "base,model,relation,datasets,downloads,read"
    assert len(out.splitlines()) == 5
    _, out, err = run("query", "datasets", "--atlas", small_atlas, "--limit", "1")
    assert [line.split() for line in out.splitlines()] == [["dataset", "models", "authors"], ["sst2", "4", "4"]]
    assert run("query", "datasets", "nothing", "--atlas", small_atlas)[1:] == ("", "no rows\n")


def test_the_atlas_may_be_named_before_the_command(small_atlas, run, monkeypatch, tmp_path):
    monkeypatch.setenv("VECTORS_ATLAS", str(tmp_path / "another"))
    code, out, err = run("query", "--atlas", small_atlas, "show", "ann/one", "--json")
    assert (code, json.loads(out)["model"]) == (0, "ann/one"), err
    code, out, err = run("index", "--atlas", small_atlas, "status", "--json")
    assert (code, json.loads(out)["atlas"]) == (0, str(small_atlas)), err
    code, _, err = run("query", "--atlas", small_atlas, "show", "ann/one", "--atlas", tmp_path / "nowhere")
    assert code == 1
    assert "nowhere does not exist" in err


@pytest.mark.parametrize(
    "words",
    [
        ["similar", "ann/one", "--representation", "nonsense"], ["similar", "ann/one", "--where", " "],
        ["purity", "--out", "purity.txt"], ["rank", "--relation", "cousin"], ["invert", "ann/one", "x", "--layers", "a"],
        ["invert", "ann/one", "x", "--keep", "a"], ["map", "--out", "map.txt"], ["similar", "ann/one", "-k", "0"],
    ],
)  # fmt: skip
def test_an_argument_that_is_wrong_for_every_atlas_is_a_usage_error(small_atlas, run, words):
    code, _, err = run("query", *words, "--atlas", small_atlas)
    assert code == 2, err
    assert err.startswith("Error: ")


def test_a_status_is_short(small_atlas, run):
    _, out, _ = run("index", "status", "--atlas", small_atlas)
    assert len(out.splitlines()) < 20
    assert "generation" not in out
    assert "generation" in run("index", "status", "--atlas", small_atlas, "--details")[1]


@pytest.mark.parametrize("is_offline", [False, True])
def test_an_id_is_not_looked_up_where_the_hub_cannot_be_reached(tmp_path, monkeypatch, is_offline):
    from huggingface_hub import constants

    def fail(*_):
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("indexer.network.session.HubTransport.handle_request", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("http_proxy", raising=False)
    models = [Model("ann/sentiments", np.eye(4)[0]), Model("bob/other", np.eye(4)[1])]
    with (
        Atlas(write_atlas(tmp_path, models)) as atlas,
        pytest.raises(AtlasError, match="closest ids: ann/sent") as caught,
    ):
        atlas.similar("ann/sentimnets")
    assert "The Hub was not asked" in caught.value.hint


def test_the_name_of_a_folder_does_not_say_where_it_lies():
    source = ModelRef.parse("local:run").source
    with pytest.raises(ModelError) as caught:
        row_of(ModelRef.parse("local:run"))
    assert str(source.explain(caught.value, ModelRef("local:run"))).endswith(
        "does not say where that folder lies. Give its path."
    )
    with pytest.raises(Skipped, match="was added from a folder, whose path is not stored"):
        open_repository(ModelRef("local:run"))
