"""Where rounding exceeds the change more rows are read; and adapters, whose factors are read whole, on sampled models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.deltas.vectorise import vectorise
from indexer.errors import AtlasError
from indexer.records.representations.registry import REPRESENTATIONS, representation_named
from indexer.sources.registry import ModelRef
from tests.checkpoints import claim, save_lora
from tests.hubs import served
from tests.sampling import made
from tests.sampling.test_references import check

KIND = made.ROBERTA


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    weights = made.base_weights(KIND)
    return weights, made.stored_base(tmp_path_factory.mktemp("base"), KIND, weights)


def lines_of(record):
    return {delta.key.family: delta.lines for delta in record.deltas}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_change_below_its_rounding_is_read_further(base, tmp_path, dtype):
    weights, stored = base
    # Relative to the weights: half a unit in the last place of bfloat16 is 0.2 % of them, of float16 0.02 %.
    unit = 1.0 if dtype == torch.bfloat16 else 1 / 8
    for size, expected in ((3e-5 * unit, 128), (4e-4 * unit, None)):
        tuned = made.cast(made.tuned_of(KIND, weights, seed=2, size=size), dtype)
        record = made.record_of(made.save(tmp_path / str(size), KIND, tuned), stored)
        check(record, KIND, weights, tuned, more=expected is not None)
        if expected is None:
            assert lines_of(record) == {"feedforward2": 32} | dict.fromkeys(
                set(lines_of(record)) - {"feedforward2"}, 128
            )
        else:
            assert set(lines_of(record).values()) == {expected}


def test_a_float32_change_however_small_is_not(base, tmp_path):
    weights, stored = base
    tuned = made.tuned_of(KIND, weights, seed=2, size=1e-6)
    record = made.record_of(made.save(tmp_path / "it", KIND, tuned), stored)
    assert max(lines_of(record).values()) == 64


def test_a_copy_in_bfloat16_is_a_copy_and_read_once(base, tmp_path):
    weights, stored = base
    record = made.record_of(made.save(tmp_path / "it", KIND, made.cast(weights, torch.bfloat16)), stored)
    assert record.is_copy
    assert lines_of(record)["feedforward2"] == 32
    assert record.norm_error == 0.0


def test_partly_frozen_matrices_are_zero_without_an_error(base, tmp_path):
    weights, stored = base
    tuned = made.tuned_of(KIND, weights, seed=2)
    frozen = {name: weights[name] if ".layer.0." in name else one for name, one in tuned.items()}
    record = made.record_of(made.save(tmp_path / "it", KIND, frozen), stored)
    for delta in record.deltas:
        assert (delta.norm == 0.0) == (delta.key.layer == 0)
        assert (delta.norm_error == 0.0) == (delta.key.layer == 0)
        assert bool(delta.s.any()) == (delta.key.layer == 1)
    assert not record.is_copy
    assert record.base_cosine == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("size", [3e-3, 3e-5])
def test_an_adapter_on_a_sampled_model_is_the_sum_on_its_rows(base, tmp_path, monkeypatch, size):
    """With the smaller change in bfloat16 the model below is read twice: its rows then have to be those of the factors."""
    weights, stored = base
    tuned = made.cast(made.tuned_of(KIND, weights, seed=2, size=size), torch.bfloat16)
    made.save(tmp_path / "store" / "ann" / "tuned", KIND, tuned)
    claim(tmp_path / "store", "ann/tuned", made.BASE)
    rng = np.random.default_rng(5)
    factors = {}
    for place in KIND.places.values():
        rows, columns = place.stored
        scale = size / 4
        factors[place.tensor.removesuffix(".weight")] = (
            scale * rng.normal(size=(4, columns)),
            rng.normal(size=(rows, 4)),
        )
    folder = save_lora(tmp_path / "adapter", "ann/tuned", factors, alpha=8)
    summed = {
        f"{module}.weight": tuned[f"{module}.weight"].double() + torch.from_numpy(2 * b @ a)
        for module, (a, b) in factors.items()
    }
    parent = made.ModelVersion(ModelRef("ann/tuned"), "main", "finetune")
    unit = made.unit_of(folder, model="me/adapter", relation="adapter", parent=parent, row_base="ann/tuned")
    with served(tmp_path / "store", monkeypatch) as hub:
        record = vectorise(unit, stored, connections=4)
        of_weights = sum(one.body_bytes for one in hub.requests if one.role == "cdn")
    blocks = record.vectors[REPRESENTATIONS["input"].tag].reshape(len(record.deltas), -1)
    assert record.read == "sample"
    assert record.adapter_base.verdict == "finetune"
    assert of_weights < 0.6 * sum(2 * one.numel() for one in tuned.values())
    for delta, block in zip(record.deltas, blocks, strict=True):
        place = KIND.places[delta.key.stack, delta.key.layer, delta.key.family]
        rows = made.held(place.stored, 2, more=size == 3e-5)
        rounded = weights[place.tensor].to(torch.bfloat16).double()
        part = (summed[place.tensor] - rounded).numpy()[rows]
        _, s, vt = np.linalg.svd(part, full_matrices=False)
        share = len(rows) / place.stored[0]
        assert delta.lines == len(rows)
        assert delta.norm == pytest.approx(np.linalg.norm(part) / share**0.5, rel=1e-4)
        inner = (part * weights[place.tensor].double().numpy()[rows]).sum() / share
        assert delta.inner == pytest.approx(inner, rel=1e-3, abs=1e-4 * delta.norm)
        np.testing.assert_allclose(delta.s, s[:8] / share**0.5, rtol=1e-3)
        expected = made.sketch((vt[:8].T * s[:8]) @ vt[:8], str(delta.key), len(block))
        np.testing.assert_allclose(block, expected, atol=2e-3)


@pytest.mark.parametrize("name", ["output", "delta", "seed", "seed_scaled", "spectrum"])
def test_what_needs_all_rows_says_how_to_read_them(base, tmp_path, name):
    weights, stored = base
    folder = made.save(tmp_path / "it", KIND, made.tuned_of(KIND, weights, seed=2))
    sample, full = made.record_of(folder, stored), made.record_of(folder, stored, read="full")
    chosen = representation_named(name)
    assert chosen.is_held_by(full)
    assert not chosen.is_held_by(sample)
    assert len(chosen.vector(full))
    with pytest.raises(AtlasError, match="but only a sample of") as refused:
        chosen.vector(sample)
    assert "deepen('me/model')" in str(refused.value.hint)
    for held in ("input", "input_v1"):
        assert representation_named(held).is_held_by(sample)
