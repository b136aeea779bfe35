"""`query duplicates`: which models repeat others, how nearly, and what they take."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from indexer import build
from query import Atlas
from tests.hubs import served
from tests.tiny_hub import BASE, DATASETS, describe

FIRST, SECOND, _ = [f"ann/{name}-0" for name in DATASETS]
TAGS = ["transformers", f"base_model:{BASE}", f"base_model:finetune:{BASE}"]


def weights(store, name):
    return {
        key: one
        for key, one in load_file(store / name / "model.safetensors").items()
        if one.ndim == 2 and "layer." in key
    }


def put(store, name, like, change, created):
    """A model of its own: that of another with changed weights."""
    shutil.copytree(store / like, store / name)
    path = store / name / "model.safetensors"
    tensors = load_file(path)
    torch.manual_seed(len(name))
    save_file({key: change(key, one).contiguous() for key, one in tensors.items()}, path, {"format": "pt"})
    describe(store, name, tags=TAGS, card_data={"base_model": BASE}, created_at=created)
    return path.stat().st_size


@pytest.fixture(scope="module")
def made(tiny_store, tmp_path_factory):
    root = tmp_path_factory.mktemp("duplicates")
    store = tiny_store(1, root / "store")
    base = load_file(store / BASE / "model.safetensors")

    def moved(share):
        def change(key, tensor):
            of_base = base.get(key.removeprefix("roberta."))
            if of_base is None or tensor.ndim != 2 or "layer." not in key:
                return tensor
            delta = tensor - of_base
            return tensor + share * delta.norm() * torch.nn.functional.normalize(
                torch.randn_like(delta).flatten(), dim=0
            ).view_as(delta)

        return change

    sizes = {
        "bob/same": put(store, "bob/same", FIRST, lambda key, one: one, "2025-01-01T00:00:00.000Z"),
        "bob/half": put(store, "bob/half", FIRST, lambda key, one: one.bfloat16(), "2025-01-02T00:00:00.000Z"),
        "bob/step": put(store, "bob/step", SECOND, moved(0.05), "2025-01-03T00:00:00.000Z"),
        "bob/far": put(store, "bob/far", SECOND, moved(0.4), "2025-01-04T00:00:00.000Z"),
    }
    with pytest.MonkeyPatch.context() as patch, served(store, patch):
        build(BASE, root / "atlas", workers=1)
    return store, root / "atlas", sizes, base


@pytest.mark.slow
def test_copies_are_found_with_what_they_take(made):
    _, folder, sizes, _ = made
    with Atlas(folder) as atlas:
        found = atlas.duplicates()
    assert {(one.model, one.of, one.kind, one.bytes) for one in found.models} == {
        ("bob/same", FIRST, "same file", sizes["bob/same"]), ("bob/half", FIRST, "rounded", sizes["bob/half"]),
    }  # fmt: skip
    assert (found.bytes, found.near_bytes, found.within) == (sizes["bob/same"] + sizes["bob/half"], 0, None)
    assert found.headline.startswith("2 models with the weights of others (")


@pytest.mark.slow
def test_near_ones_are_as_far_as_their_weights_and_no_others_are_near(made):
    store, folder, sizes, base = made
    with Atlas(folder) as atlas:
        near = [one for one in atlas.duplicates(near=True).models if one.kind == "near"]
        assert [(one.model, one.of, one.bytes) for one in near] == [("bob/step", SECOND, sizes["bob/step"])]
        one, other = weights(store, SECOND), weights(store, "bob/step")
        of_base = {key: base[key.removeprefix("roberta.")] for key in one}
        apart = sum(float((one[key] - other[key]).square().sum()) for key in one) ** 0.5
        sizes_of = [
            sum(float((each[key] - of_base[key]).square().sum()) for key in one) ** 0.5 for each in (one, other)
        ]
        assert near[0].distance == pytest.approx(apart / max(sizes_of), rel=0.1)
        wide = {one.model: one.distance for one in atlas.duplicates(near=True, within=0.5).models if one.kind == "near"}
        assert wide["bob/far"] == pytest.approx(0.4, rel=0.15)
        assert set(wide) == {"bob/step", "bob/far"}
        assert atlas.duplicates(within=0.01).near_bytes == 0


@pytest.mark.slow
def test_without_records_vectors_decide(made, tmp_path):
    _, folder, _, _ = made
    copied = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copied / "records")
    with Atlas(copied) as atlas:
        found = atlas.duplicates(near=True)
    assert "bob/step" in {one.model for one in found.models if one.kind == "near"}
    assert any("by their vectors" in note for note in found.notes)
