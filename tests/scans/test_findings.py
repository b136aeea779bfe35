"""`index scan` on a tree with planted findings: each is found, and nothing else is."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from indexer import scan
from indexer.errors import AtlasError, BadArgument
from indexer.sources.tree import NO_MODEL
from tests.scans.conftest import ELSEWHERE, with_factors
from tests.tiny_hub import BASE
from tests.trees import adapter, factors, loose


@pytest.fixture
def found(planted, offline):
    return scan(planted, workers=1)


def by_name(found):
    return {model.model: model for model in found.models}


def test_every_model_is_listed_with_its_kind_and_base(found):
    models = by_name(found)
    assert len(models) == 19
    assert models["good/a"].kind == "LoRA"
    assert (models["good/a"].base, models["good/a"].basis, models["good/a"].verdict) == (BASE, "names", "fits")
    tuned = models["full/tuned"]
    assert (tuned.kind, tuned.base, tuned.basis, tuned.verdict) == ("full model", BASE, "weights", "confirmed")
    assert tuned.probability > 0.99
    assert tuned.claimed_in == "the card"
    assert models["elsewhere"].base == ELSEWHERE
    assert (models["elsewhere"].verdict, models["elsewhere"].basis) == ("not checked", "stated")
    kinds = {row["kind"]: row["models"] for row in found.kinds}
    assert (kinds["full model"], kinds["adapter (PROMPT_TUNING)"]) == (4, 1)
    assert sum(kinds.values()) == 19
    (place,) = found.places
    assert (place.place, place.models, place.bytes) == ("team", 19, found.bytes)
    is_here = {row["base"]: row["is_here"] for row in found.bases}
    assert (is_here[BASE], is_here[ELSEWHERE]) == (True, False)


def test_models_that_contradict_their_claim(found):
    assert {model.model for model in found.unrelated} == {"full/stranger", "wrong-shapes"}
    assert by_name(found)["full/stranger"].base is None


def test_broken_untrained_and_left_out(found):
    broken = {one.model: one.reason for one in found.broken}
    assert broken == {"nan": "not_finite", "cut": "corrupt_file", "shards": "corrupt_file"}
    assert {model.model for model in found.untrained} == {"untrained", "full/base"}
    left_out = {one.reason: (one.count, one.first) for one in found.left_out}
    assert left_out[NO_MODEL] == (1, "g/mmproj.gguf")
    assert left_out["adapter_unsupported"][1].startswith("prompt: ")


def test_duplicates_with_the_bytes_that_they_take(found):
    rows = {one.model: (one.of, one.kind) for one in found.duplicates}
    first = next(of for of, kind in rows.values() if kind == "same file")
    same = {first, *(model for model, (of, kind) in rows.items() if of == first)}
    assert same == {"good/b", "copies/b", "copies/renamed.safetensors", "near"}
    assert sorted(kind for of, kind in rows.values() if of == first) == ["near", "same file", "same weights"]
    near = next(one for one in found.duplicates if one.kind == "near")
    assert near.distance == pytest.approx(0.01, abs=0.003)
    halves = {"full/tuned", "full/half"}
    ((model, (of, kind)),) = [(model, row) for model, row in rows.items() if model in halves]
    assert {model, of} == halves
    assert kind == "rounded"
    sizes = {model.model: model.bytes for model in found.models}
    assert all(one.bytes == sizes[one.model] > 0 for one in found.duplicates)
    assert len(rows) == 4


def test_runs_with_their_steps(found):
    (run,) = found.runs
    assert (run.run, run.checkpoints, run.first_step, run.last_step) == ("run", 3, 20, 60)
    assert run.last == "run/checkpoint-60"
    assert 0 < run.earlier_bytes < run.bytes


def test_licences_are_those_that_files_state(found):
    stated = {row["licence"]: row["models"] for row in found.licences}
    assert stated == {"apache-2.0": 1, "MIT": 1, "not known": 14}


def test_without_the_base_nothing_is_checked_and_the_rest_is_the_same(planted, offline, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "nothing"))
    found = scan(planted, workers=1)
    assert not found.unrelated
    assert {model.verdict for model in found.models if model.claim} == {"not checked", None}
    assert {one.model for one in found.broken} == {"nan", "cut", "shards"}
    assert {one.kind for one in found.duplicates} == {"near", "same file", "same weights", "rounded"}


def test_a_base_that_is_given_is_the_only_one_allowed(planted, offline, tiny_store):
    found = scan(planted, base=str(tiny_store(2) / BASE), workers=1)
    allowed = {model.model: model.allowed for model in found.models if not model.problem}
    assert allowed["full/tuned"] is True
    assert allowed["full/base"] is True
    assert allowed["full/stranger"] is False
    assert allowed["wrong-shapes"] is False
    # Its shapes fit, but it names another base.
    assert allowed["elsewhere"] is not True
    assert found.bases_given == ("tiny-base",)


def test_a_model_that_names_nothing_is_compared_with_the_bases_that_others_name(planted, offline, tmp_path, tiny_store):
    shutil.copytree(planted / "good/a", tmp_path / "tree/a")
    shutil.copytree(tiny_store(2) / "bob/glue-1", tmp_path / "tree/full")
    models = by_name(scan(tmp_path / "tree", workers=1))
    assert (models["full"].claim, models["full"].base, models["full"].basis) == (None, BASE, "weights")


def test_the_bases_of_an_atlas_are_known(planted, offline, tmp_path, tiny_store, monkeypatch):
    from contextlib import closing

    import numpy as np
    from huggingface_hub import constants

    from indexer.atlas import AtlasFolder
    from indexer.checkpoints.checkpoint import open_checkpoint
    from indexer.deltas.base import store_base
    from indexer.sources.registry import ModelRef
    from tests.atlas_builder import Model, write_atlas

    path = write_atlas(tmp_path / "atlas", [Model("ann/one", np.eye(8)[0]), Model("bob/two", np.eye(8)[1])])
    saved = tiny_store(2) / BASE
    with closing(open_checkpoint(ModelRef(str(saved), folder=saved))) as checkpoint:
        store_base(checkpoint, BASE, "c" * 40, AtlasFolder(path).base(BASE, "c" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "nothing"))
    models = by_name(scan(planted / "full", path, workers=1))
    assert {name: model.verdict for name, model in models.items()} == {
        "tuned": "confirmed", "half": "confirmed", "base": None, "stranger": "contradicted",
    }  # fmt: skip
    with pytest.raises(AtlasError, match="no atlas"):
        scan(planted, tmp_path / "no-atlas", workers=1)


def test_the_hubs_cache_is_a_place_and_a_base_in_it_is_a_base(offline):
    found = scan("hf-cache", workers=1)
    assert [(model.model, model.kind) for model in found.models] == [(BASE, "full model")]
    assert not found.untrained
    assert found.places[0].place == "hf-cache"


def test_places_that_cannot_be_listed_are_broken(planted, offline, monkeypatch):
    from indexer.scans import scan as module
    from indexer.sources.file_systems import NOT_LISTED

    real = module.list_tree

    def closed(files, said):
        if files.address.endswith("copies"):
            raise AtlasError("s3://team-secret cannot be listed: access is denied.", "")
        listing = real(files, said)
        listing.problems.note(NOT_LISTED, "private", is_unseen=True)
        return listing

    monkeypatch.setattr(module, "list_tree", closed)
    found = scan([planted / "good", planted / "copies"], workers=1)
    assert {one.model for one in found.broken} == {"good/private", "copies"}
    assert "team-secret" not in str(found.to_dict())
    assert found.failures(["broken"]) == ["broken: 2: good/private, copies"]
    with pytest.raises(AtlasError, match="access is denied"):
        scan(planted / "copies", workers=1)


def test_single_files_and_several_places(planted, offline, tmp_path):
    file = loose(tmp_path / "one.safetensors", 3)
    loose(tmp_path / "other.safetensors", 4)
    assert [model.model for model in scan(file, workers=1).models] == ["one.safetensors"]
    of_folder = scan(planted / "good/a/adapter_model.safetensors", workers=1)
    assert [(model.model, model.claim) for model in of_folder.models] == [("a", BASE)]
    both = scan([planted / "good", file, planted / "good/b"], workers=1)
    assert {model.model for model in both.models} == {"good/a", "good/b", f"{tmp_path.name}/one.safetensors"}


def test_links_to_a_file_are_no_second_file(tmp_path, offline):
    loose(tmp_path / "tree/real.safetensors", 3)
    (tmp_path / "tree/best.safetensors").symlink_to("real.safetensors")
    os.link(tmp_path / "tree/real.safetensors", tmp_path / "tree/hard.safetensors")
    found = scan(tmp_path / "tree", workers=1)
    assert len(found.models) == 3
    assert not found.duplicates


def test_the_last_checkpoint_of_a_run_is_kept(tmp_path, offline):
    for number in (10, 20, 30):
        adapter(tmp_path / f"tree/run/checkpoint-{number}", 1)
    found = scan(tmp_path / "tree", workers=1)
    assert {(one.model, one.of) for one in found.duplicates} == {
        ("run/checkpoint-10", "run/checkpoint-30"), ("run/checkpoint-20", "run/checkpoint-30"),
    }  # fmt: skip


def test_unrelated_loras_are_never_near(tmp_path, offline):
    """The null: 40 LoRAs of one shape, half of them trained from one start."""
    start = factors(0)
    for number in range(40):
        own = factors(number + 1)
        if number % 2:
            own |= {name: tensor for name, tensor in start.items() if "lora_A" in name}
        with_factors(tmp_path / f"tree/{number}", own)
    assert not scan(tmp_path / "tree", workers=1).duplicates


@pytest.mark.parametrize("share", [0.02, 0.05, 0.09, 0.12, 0.3])
def test_the_distance_of_two_changes_is_that_of_their_products(tmp_path, offline, share):
    """Against the products themselves."""
    first, noise = factors(1), factors(2)
    norms = [
        sum(float(t.square().sum()) for name, t in one.items() if "lora_B" in name) ** 0.5 for one in (first, noise)
    ]
    second = {
        name: tensor + (share * norms[0] / norms[1] * noise[name] if "lora_B" in name else 0)
        for name, tensor in first.items()
    }

    def products(tensors):
        names = [name for name in tensors if "lora_B" in name]
        return torch.cat([(tensors[name] @ tensors[name.replace("lora_B", "lora_A")]).flatten() for name in names])

    both = [products(one) for one in (first, second)]
    exact = float((both[0] - both[1]).norm() / max(one.norm() for one in both))
    with_factors(tmp_path / "tree/a", first)
    with_factors(tmp_path / "tree/b", second)
    duplicates = scan(tmp_path / "tree", workers=1).duplicates
    if exact > 0.115:
        assert not duplicates
    else:
        (one,) = duplicates
        assert one.distance == pytest.approx(exact, rel=0.15)


def test_files_beyond_the_limit_are_read_whole_only_where_they_look_alike(planted, offline, tmp_path, monkeypatch):
    from indexer.scans import content

    monkeypatch.setattr(content, "MOST_WHOLE", 0)
    for name in ("a", "b", "c"):
        shutil.copytree(planted / "full/tuned", tmp_path / "tree" / name)
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "tree/c/model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2 and len(tensor) > 30)
    tensors[name][7, 3] += 1e-3  # not one of the rows that are read first
    save_file(tensors, tmp_path / "tree/c/model.safetensors", metadata={"format": "pt"})
    rows = {one.model: (one.of, one.kind) for one in scan(tmp_path / "tree", workers=1).duplicates}
    assert rows["b"] == ("a", "same file")
    assert rows.get("c", ("", "near"))[1] == "near"


def test_bad_places_are_one_line(offline, tmp_path, planted):
    with pytest.raises(AtlasError, match="cannot be listed"):
        scan(tmp_path / "nothing", workers=1)
    with pytest.raises(BadArgument):
        scan([], workers=1)
    with pytest.raises(AtlasError, match="adapter"):
        scan(planted, base=str(planted / "good/a"), workers=1)
    with pytest.raises(AtlasError, match="HF_HUB_OFFLINE"):
        scan(planted, base="org/not-in-the-cache", workers=1)
    (tmp_path / "empty").mkdir()
    assert scan(tmp_path / "empty", workers=1).models == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_files_without_permission_are_broken_and_the_rest_is_read(tmp_path, offline):
    adapter(tmp_path / "tree/a", 1)
    closed = adapter(tmp_path / "tree/closed", 2) / "adapter_model.safetensors"
    closed.chmod(0)
    found = scan(tmp_path / "tree", workers=1)
    assert [one.model for one in found.broken] == ["closed"]


def test_nothing_is_written(planted, offline, tmp_path):
    before = sorted(tmp_path.rglob("*")) + sorted(planted.rglob("*"))
    scan(planted, workers=1)
    assert sorted(tmp_path.rglob("*")) + sorted(planted.rglob("*")) == before
