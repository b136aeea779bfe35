"""Whole spectra in the records: against NumPy's SVD of the files, for every way to store a matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.delta import LoraDelta, dense_deltas, layout_against
from indexer.deltas.spectra import Spectra
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.records.record import Record
from indexer.sources.registry import ModelRef
from tests import checkpoints
from tests.checkpoints import Kind
from tests.spectra.recorded import KINDS, base_in, check_values, noise, record_of

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


def check_record(record: Record, kind: Kind, base: dict, tuned: dict) -> None:
    """Every spectrum and every rank, of δW and of W, split and whole."""
    assert record.has_spectra
    changes = {name: tuned[name].astype(np.float64) - base[name] for name in base}
    assert len(record.deltas) == len(kind.places)
    for delta in record.deltas:
        matrix = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        check_values(delta.spectrum, matrix.get(changes))
        check_values(delta.weights, matrix.get(tuned))
        for threshold in THRESHOLDS:
            assert delta.change_ranks([threshold])[0] == checkpoints.rank_of(matrix.get(changes), threshold)
            assert delta.weight_ranks([threshold])[0] == checkpoints.rank_of(matrix.get(tuned), threshold)
    expected = {(stack, layer, name) for stack, layer, _ in kind.places for name in kind.fused_matrices}
    assert {(fused.parts[0].stack, fused.parts[0].layer, fused.family) for fused in record.fused_matrices} == expected
    for fused in record.fused_matrices:
        position = fused.parts[0].stack, fused.parts[0].layer, fused.family
        assert tuple(part.family for part in fused.parts) == kind.fused_matrices[fused.family]
        assert fused.shape == kind.whole(tuned, *position).shape
        check_values(fused.spectrum, kind.whole(changes, *position))
        check_values(fused.weights, kind.whole(tuned, *position))
        for threshold in THRESHOLDS:
            assert fused.change_ranks([threshold])[0] == checkpoints.rank_of(kind.whole(changes, *position), threshold)
            assert fused.weight_ranks([threshold])[0] == checkpoints.rank_of(kind.whole(tuned, *position), threshold)


@pytest.mark.parametrize("name", KINDS)
def test_a_full_fine_tune_against_numpy(name, tmp_path):
    kind = KINDS[name]
    base, weights = base_in(tmp_path, kind)
    tuned = kind.changed(weights, noise())
    check_record(record_of(checkpoints.save(tmp_path / "tuned", kind, tuned), base), kind, weights, tuned)


def lora(kind: Kind, weights: dict, modules: dict[str, str], rank: int = 3) -> tuple[dict, dict]:
    """Factors for these modules (name → tensor), and the weights with the adapter merged in, α = 2r."""
    rng = np.random.default_rng(5)
    factors, merged = {}, {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    for module, tensor in modules.items():
        matrix = next(matrix for matrix in kind.places.values() if matrix.tensor == tensor)
        rows, columns = merged[tensor].T.shape if matrix.transposed else merged[tensor].shape
        a, b = (0.05 * rng.normal(size=shape).astype(np.float32) for shape in ((rank, columns), (rows, rank)))
        factors[module] = (a, b)
        change = 2.0 * b.astype(np.float64) @ a
        merged[tensor] += change.T if matrix.transposed else change
    return factors, merged


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("roberta", {f"roberta.encoder.layer.{i}.attention.self.{part}": f"encoder.layer.{i}.attention.self.{part}.weight"
                     for i in range(2) for part in ("query", "value")}),
        ("gpt2", {f"transformer.h.{i}.attn.c_attn": f"h.{i}.attn.c_attn.weight" for i in range(2)}),
        ("gpt2", {"transformer.h.1.mlp.c_fc": "h.1.mlp.c_fc.weight"}),
        ("phi3", {"model.layers.1.self_attn.qkv_proj": "model.layers.1.self_attn.qkv_proj.weight",
                  "model.layers.0.mlp.down_proj": "model.layers.0.mlp.down_proj.weight"}),
    ],
    ids=["roberta", "fused", "beside-fused", "grouped"],
)  # fmt: skip
def test_an_adapter_against_numpy(name, modules, tmp_path):
    """Ranks of δW are those of the factors exactly, at 100 % too; W is the base's plus the product, or the base's."""
    kind = KINDS[name]
    base, weights = base_in(tmp_path, kind)
    factors, merged = lora(kind, weights, modules)
    changes = {tensor: merged[tensor] - weights[tensor] for tensor in weights}
    record = record_of(checkpoints.save_lora(tmp_path / "lora", "org/base", factors, alpha=6), base, relation="adapter")
    assert record.has_spectra
    for delta in record.deltas:
        matrix = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        is_touched = matrix.tensor in modules.values()
        assert (delta.spectrum is not None) == is_touched
        assert delta.change_ranks([1.0])[0] == (3 if is_touched else 0)
        check_values(delta.weights, matrix.get(merged))
        if is_touched:
            assert delta.spectrum.shape == (min(delta.shape),)
            check_values(delta.spectrum, matrix.get(changes))
    for fused in record.fused_matrices:
        position = fused.parts[0].stack, fused.parts[0].layer, fused.family
        is_touched = (
            kind.places[position[0], position[1], kind.fused_matrices[fused.family][0]].tensor in modules.values()
        )
        assert fused.change_ranks([1.0])[0] == (3 if is_touched else 0)
        check_values(fused.weights, kind.whole(merged, *position))
        if is_touched:
            check_values(fused.spectrum, kind.whole(changes, *position))


def test_a_fused_matrix_of_which_an_adapter_changes_a_part(tmp_path):
    """An adapter of a model whose modules are split in memory, while the base's file has them fused."""
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    rng = np.random.default_rng(2)
    spectra, changed = Spectra(base, "cpu"), np.zeros((72, 24))
    for part, (family, rank) in {0: ("query", 2), 2: ("value", 4)}.items():
        a, b = (0.1 * rng.normal(size=shape).astype(np.float32) for shape in ((rank, 24), (24, rank)))
        changed[24 * part : 24 * part + 24] = 0.5 * b.astype(np.float64) @ a
        delta = LoraDelta(DeltaKey("", 1, family), torch.tensor(a), torch.tensor(b), 0.5)
        values, _ = spectra.singular_values(delta)
        assert np.count_nonzero(values) == rank
    untouched, fused = spectra.fused_matrices()
    assert untouched.spectrum is None
    assert np.count_nonzero(fused.spectrum) == 6
    check_values(fused.spectrum, changed)
    check_values(fused.weights, kind.whole(weights, "", 1, "query_key_value") + changed)


def test_parts_that_come_apart_and_in_another_order_make_the_same_whole(tmp_path):
    """A fine-tune may store split what the base stores fused. Only what waits for the rest of a whole is held."""
    kind = checkpoints.gpt2(2, 160)  # wide enough for single precision: another order of rows would show
    base, weights = base_in(tmp_path, kind)
    folder = checkpoints.save(tmp_path / "tuned", kind, kind.changed(weights, noise()))
    record = record_of(folder, base)
    checkpoint = open_checkpoint(ModelRef("tuned", folder=folder))
    deltas = list(dense_deltas(checkpoint, layout_against(checkpoint, base), base, with_weights=True))
    spectra, waiting = Spectra(base, "cpu"), []
    for delta in sorted(deltas, key=lambda delta: (delta.key.family, -delta.key.layer)):
        spectra.singular_values(delta)
        waiting.append(sum(map(len, spectra._waiting.values())))
    assert waiting == [0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 2, 0]  # two layers of key, then query, then value
    for fused, expected in zip(spectra.fused_matrices(), record.fused_matrices, strict=True):
        np.testing.assert_array_equal(fused.spectrum, expected.spectrum)
        np.testing.assert_array_equal(fused.weights, expected.weights)


def test_untouched_and_unchanged_matrices_have_weights_and_no_change(tmp_path):
    """A copy: W is there, δW is zero and has no spectrum; all is complete."""
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    record = record_of(checkpoints.save(tmp_path / "copy", kind, weights), base)
    assert record.is_copy
    assert record.has_spectra
    assert {delta.spectrum for delta in record.deltas} == {fused.spectrum for fused in record.fused_matrices} == {None}
    assert {delta.change_ranks([0.5])[0] for delta in record.deltas} == {0}
    for delta in record.deltas:
        check_values(delta.weights, kind.places[delta.key.stack, delta.key.layer, delta.key.family].get(weights))


def test_a_half_precision_upload_has_the_weights_it_stores(tmp_path):
    kind = KINDS["roberta"]
    base, weights = base_in(tmp_path, kind)
    tuned = {name: tensor.astype(np.float16) for name, tensor in kind.changed(weights, noise(1e-2)).items()}
    record = record_of(checkpoints.save(tmp_path / "half", kind, tuned), base)
    for delta in record.deltas:
        matrix = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        check_values(delta.weights, matrix.get(tuned))
        rounded = matrix.get(weights).astype(np.float16).astype(np.float64)
        check_values(delta.spectrum, matrix.get(tuned).astype(np.float64) - rounded)


def test_an_adapter_whose_weights_overflow_is_skipped(tmp_path):
    kind = KINDS["roberta"]
    base, weights = base_in(tmp_path, kind)
    module = "roberta.encoder.layer.0.attention.self.query"
    factors, _ = lora(kind, weights, {module: "encoder.layer.0.attention.self.query.weight"})
    huge = {module: tuple(np.full_like(factor, 1e19) for factor in factors[module])}
    folder = checkpoints.save_lora(tmp_path / "huge", "org/base", huge, alpha=3000)
    with pytest.raises(Skipped, match=r"the change of the matrix 0\.query is beyond float32"):
        record_of(folder, base, relation="adapter")
