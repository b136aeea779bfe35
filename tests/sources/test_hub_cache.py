"""Trees whose folders mean something: the cache of the Hub's client, Ollama's store, ModelScope's spelling."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing

import pytest
from huggingface_hub import constants, snapshot_download

from indexer import build
from indexer.errors import AtlasError
from indexer.sources.addresses import file_system
from indexer.sources.tree import NO_MODEL, list_tree
from query import Atlas
from scripts.loopback_hub import LoopbackHub
from tests.hubs import reset_session, use_endpoint
from tests.tiny_hub import BASE
from tests.trees import adapter, loose


@pytest.fixture
def cache(tiny_store, tmp_path, monkeypatch):
    """A cache that the real client filled: the base, two fine-tunes, and another without its weights."""
    monkeypatch.chdir(tmp_path)
    store = tiny_store(2, tmp_path / "store")
    for name in ("ann/glue-0", "bob/glue-1"):
        (store / name / "README.md").write_text(f"---\nbase_model: {BASE}\ndatasets:\n- glue\n---\n")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with LoopbackHub(store) as running:
        use_endpoint(monkeypatch, running.endpoint)
        for name in (BASE, "ann/glue-0", "bob/glue-1"):
            snapshot_download(name, cache_dir=tmp_path / "hf", endpoint=running.endpoint)
        snapshot_download("ann/imdb-0", cache_dir=tmp_path / "hf", endpoint=running.endpoint, allow_patterns=["*.json"])
        yield tmp_path / "hf"
        reset_session()


@pytest.mark.slow
def test_the_hubs_cache_keeps_ids_and_commits_and_needs_no_network(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = []
    options = {"sources": "hf-cache", "workers": 1, "progress": lambda event: said.append(event.message)}
    (report,) = build(**options)
    assert (report.base, report.indexed, report.discovered) == (BASE, 2, 2)
    assert any(line.startswith("models of the cache without weights in it: 1") for line in said)
    with Atlas("atlas") as atlas:
        rows = atlas.rows('SELECT model, author, "commit", claimed_by FROM fine_tunes ORDER BY model')
        assert [(row["model"], row["author"], row["claimed_by"]) for row in rows] == [
            ("ann/glue-0", "ann", "folder"), ("bob/glue-1", "bob", "folder"),
        ]  # fmt: skip
        commits = {row["model"]: row["commit"] for row in rows}
    for name, commit in commits.items():
        assert (cache / f"models--{name.replace('/', '--')}" / "snapshots" / commit).is_dir()
    assert build(**options)[0].unchanged == 2

    # With a network the same records serve the Hub's listing; a model of it that leaves the cache has not left.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    both = build(BASE, sources="hf-cache", hub=True, workers=1)
    assert (both.discovered, both.indexed, both.unchanged) == (6, 4, 2)
    shutil.rmtree(cache / "models--ann--glue-0")
    build(BASE, sources="hf-cache", workers=1)
    with Atlas("atlas") as atlas:
        rows = atlas.rows("SELECT model FROM fine_tunes WHERE deleted_at_hub OR claimed_by = 'folder'")
        assert rows == []


def test_a_place_inside_the_cache_is_the_same_model(cache):
    whole = {model.hub_id: model for model in list_tree(file_system("hf-cache")).models}
    assert set(whole) == {BASE, "ann/glue-0", "bob/glue-1"}
    folder = cache / "models--ann--glue-0"
    for place in (folder, folder / "snapshots" / whole["ann/glue-0"].commit):
        files = file_system(str(place))
        (model,) = list_tree(files).models
        assert (model.hub_id, model.fingerprint) == ("ann/glue-0", whole["ann/glue-0"].fingerprint)
        with closing(files.open(f"{model.path}/config.json".strip("/"), "config.json")) as file:
            assert file.read(0, 1) == b"{"


def test_the_newest_snapshot_counts_where_no_branch_says(cache):
    folder = cache / "models--ann--glue-0"
    (snapshot,) = (folder / "snapshots").iterdir()
    shutil.copytree(snapshot, folder / "snapshots" / ("0" * 40), symlinks=True)
    model = next(one for one in list_tree(file_system("hf-cache")).models if one.hub_id == "ann/glue-0")
    assert model.commit == snapshot.name
    shutil.rmtree(folder / "refs")
    adapter(folder / "blobs-of-tests", 1)
    (folder / "snapshots" / ("0" * 40) / "late.json").write_text("{}")
    model = next(one for one in list_tree(file_system("hf-cache")).models if one.hub_id == "ann/glue-0")
    assert model.commit == "0" * 40


def test_a_link_in_a_cache_that_leads_out_of_it_is_not_followed(cache, tmp_path):
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    (snapshot,) = (cache / "models--ann--glue-0" / "snapshots").iterdir()
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    listing = list_tree(file_system("hf-cache"))
    assert {model.hub_id for model in listing.models} == {BASE, "bob/glue-1"}
    assert listing.problems.counts["links that lead out of the tree, not followed"] == 1


def test_no_cache_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    with pytest.raises(AtlasError, match=r"none cannot be listed: No such file or directory\."):
        file_system("hf-cache")


def blob(store, content):
    digest = hashlib.sha256(content).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}"


def test_ollamas_store_names_what_is_in_it(tmp_path):
    lora = loose(tmp_path / "x.safetensors", 1, ss_base_model_version=BASE).read_bytes()
    store = tmp_path / "models"
    layers = {
        "library/llama3/latest": [("model", blob(store, b"GGUF" + b"\0" * 40)), ("license", blob(store, b"MIT"))],
        "me/tuned/v1": [("model", blob(store, b"GGUF" + b"\1" * 40)), ("adapter", blob(store, lora))],
        "me/v2/latest": [
            ("model", blob(store, b"GGUF" + b"\2" * 40)),
            ("projector", blob(store, b"GGUF" + b"\3" * 40)),
        ],
        "me/lora/v1": [("model", blob(store, b"GGUF" + b"\1" * 40)), ("adapter", blob(store, b"GGUF" + b"\4" * 40))],
        "me/empty/v1": [("model", blob(store, b""))],
        "me/lost/v1": [("adapter", "sha256:" + "0" * 64)],
        "evil/outside/v1": [("model", "sha256:../../../secret.gguf"), ("model", "/etc/passwd")],
    }
    for name, found in layers.items():
        path = store / "manifests/registry.ollama.ai" / name
        path.parent.mkdir(parents=True)
        rows = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest} for kind, digest in found]
        path.write_text(json.dumps({"schemaVersion": 2, "layers": rows}))
    (store / "manifests/registry.ollama.ai/me/broken").write_text('{"layers": 3')
    listing = list_tree(file_system(str(store)))
    assert [(model.words[-1], list(model.files)) for model in listing.models] == [
        ("llama3-latest", ["model.gguf"]), ("tuned-v1", ["tuned-v1.safetensors"]), ("v2-latest", ["model.gguf"]),
    ]  # fmt: skip
    assert listing.problems.counts == {
        "layers of Ollama's store that are missing": 3, "files that cannot be opened": 1, NO_MODEL: 1,
        "files of Ollama's store in a format that is not read": 1,
    }  # fmt: skip


def test_modelscope_writes_dots_as_underscores(tmp_path):
    adapter(tmp_path / "hub/models/Qwen/Qwen2___5-0___5B-lora", 1)
    (model,) = list_tree(file_system(str(tmp_path))).models
    assert model.words[-1] == "Qwen2.5-0.5B-lora"
