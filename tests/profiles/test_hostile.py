"""Hostile models in `index profile`: each fails alone, without harm to the others."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, pre_tokenizers

from indexer.atlas import AtlasFolder
from indexer.builds.executor import in_processes
from indexer.builds.profile_worker import ProfileUnit, ProfileWorker
from indexer.profiles.measurement import ProfileRequest
from indexer.profiles.probes import ProbeChoice
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import read_subject
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef
from tests.profiles.test_loading import at_most, deadline
from tests.profiles.test_tokenizer import tokenizer
from tests.profiles.test_vocabulary import LocalUnit, saved

WORDS = 3000  # more than a probe uses


class Deadly(LocalUnit):
    """A model that kills the process that reads it, as the system does when it is out of memory."""

    @property
    def version(self) -> ModelVersion:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("base"), WORDS, [f"w{number}" for number in range(WORDS)])


def worker(base: Path, atlas: Path) -> ProfileWorker:
    subject = read_subject(ModelVersion(ModelRef.parse(str(base))))
    probe = ProbeChoice().probe(subject)
    with torch.no_grad():
        states = subject.layers.states(probe.inputs(subject.layers), [1, 2])
    return ProfileWorker.of(
        probe, states, atlas=atlas, request=ProfileRequest(), base=ModelVersion(ModelRef.parse(str(base))), tokenizer=subject.tokenizer,
        choice=ProbeChoice("text"), device="cpu",
    )  # fmt: skip


def unit(folder: Path, kind: type[ProfileUnit] = LocalUnit, relation: str = "finetune") -> ProfileUnit:
    return kind(ProfileIdentity("fine_tune", str(folder), "", "base", ""), relation, None, 0)


def altered(folder: Path, name: str, change) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_a_worker_that_dies_does_not_end_the_run(base, tmp_path):
    sound = [saved(tmp_path / f"sound-{number}", WORDS) for number in range(3)]
    due = [*map(unit, sound[:2]), unit(tmp_path / "deadly", Deadly), unit(sound[2])]
    results = in_processes(due, worker(base, tmp_path), 2)
    result_of = {Path(result.unit.identity.model).name: result for result in results}
    assert {name: result.error and result.error.reason for name, result in result_of.items()} == {
        "sound-0": None, "sound-1": None, "sound-2": None, "deadly": "worker_died",
    }  # fmt: skip


def test_a_tokenizer_that_panics_fails_its_own_model_only(base, tmp_path):
    """A panic of Rust is not an Exception in Python: it used to end the run for every other model."""
    model = saved(tmp_path / "panics", WORDS - 2900)
    content = tokenizer(pre_tokenizer=pre_tokenizers.Split(Regex("([a-z ]+[a-z ]+)+y#"), "isolated"))
    (model / "tokenizer.json").write_bytes(content)
    result = worker(base, tmp_path)(unit(model))
    assert result.error is not None
    assert "The tokenizer" in result.error.detail


WORD = "embeddings.word_embeddings.weight"
OUTPUT = "encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (WORD, float("nan")), (WORD, float("inf")), (WORD, 3e38),
        (OUTPUT, float("nan")), (OUTPUT, -float("inf")), (OUTPUT, 3e38),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "rows", [pytest.param(slice(None), marks=pytest.mark.slow), slice(3, 4)], ids=["all", "one row"]
)
def test_weights_that_are_not_finite_give_no_measures(base, tmp_path, name, value, rows):
    """Refused by name. A NaN in the row of a word that is not in the probe used to make `readable` 0 silently."""

    def change(tensor: torch.Tensor) -> None:
        tensor[rows] = value

    model = altered(saved(tmp_path / "model", WORDS), name, change)
    result = worker(base, tmp_path)(unit(model))
    if result.error is None:  # a huge word that nothing drew
        assert (name, value) == (WORD, 3e38)
        profile = ProfileStore(AtlasFolder(tmp_path)).read(result.unit.identity.digest)
        assert all(np.isfinite(values).all() for values in (*profile.values.values(), *profile.errors.values()))
    else:
        assert result.error.reason == "not_finite", result.error


@pytest.mark.parametrize(
    ("shapes", "fill", "config", "reason"),
    [
        (((1, 300_000), (300_000, 1)), 0.1, {}, "shape_mismatch"),
        (((1, 32), (1, 1)), 0.1, {}, "shape_mismatch"),
        (((1, 1), (32, 1)), 0.1, {}, "shape_mismatch"),
        (((1, 32), (32, 1)), float("nan"), {}, "not_finite"),
        (((1, 32), (32, 1)), 1e15, {"lora_alpha": 9e29}, "not_finite"),
        (((1, 32), (32, 1)), 0.1, {"lora_alpha": float("inf")}, "malformed"),
        (((1, 32), (32, 1)), 0.1, {"r": 10**9}, "malformed"),
        (((1, 32), (32, 1)), 0.1, {"r": 0}, "malformed"),
        (((1, 32), (32, 1)), 0.1, {"alpha_pattern": {r"(a)\1": 3}}, "adapter_unsupported"),
        (((1, 32), (32, 1)), 0.1, {"alpha_pattern": {"(a+)+$": 3}}, None),
        (((1, 32), (32, 1)), 0.1, {}, None),
    ],
)
def test_hostile_adapters(base, tmp_path, shapes, fill, config, reason):
    """Factors whose product has another shape, is 360 GB from 2 MB, or is not finite are refused before it is computed."""
    said = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["query"]} | config
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(said))
    path = "base_model.model.encoder.layer.0.attention.self.query"
    factors = {f"{path}.lora_{side}.weight": torch.full(shape, fill) for side, shape in zip("AB", shapes, strict=True)}
    save_file(factors, tmp_path / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    with at_most(3 << 30), deadline(20):
        result = worker(base, tmp_path)(unit(tmp_path / "adapter", relation="adapter"))
    assert (result.error and result.error.reason) == reason, result.error
