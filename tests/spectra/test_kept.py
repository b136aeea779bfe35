"""Spectra on disk and in the database."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.publish.rows import rows_of_record
from indexer.records.record import read_record, write_record
from tests import checkpoints
from tests.spectra.recorded import KINDS, base_in, noise, record_of


def test_spectra_and_fused_matrices_survive_the_disk(tmp_path):
    kind = KINDS["phi3"]
    base, weights = base_in(tmp_path, kind)
    folder = checkpoints.save(tmp_path / "tuned", kind, kind.changed(weights, noise()))
    record = record_of(folder, base)
    write_record(record, tmp_path / "r.safetensors")
    back = read_record(tmp_path / "r.safetensors")
    for matrix, matrix_read in zip(
        [*record.deltas, *record.fused_matrices], [*back.deltas, *back.fused_matrices], strict=True
    ):
        np.testing.assert_array_equal(matrix.spectrum, matrix_read.spectrum)
        np.testing.assert_array_equal(matrix.weights, matrix_read.weights)
    assert [(matrix.parts, matrix.shape, matrix.name) for matrix in back.fused_matrices] == [
        (matrix.parts, matrix.shape, matrix.name) for matrix in record.fused_matrices
    ]
    plain = record_of(folder, base, spectra=False)
    assert plain.fused_matrices == ()
    assert not plain.has_spectra
    assert {delta.weights is None and delta.spectrum is None for delta in plain.deltas} == {True}


def test_rows_hold_every_rank(tmp_path):
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    tuned = kind.changed(weights, noise())
    record = record_of(checkpoints.save(tmp_path / "tuned", kind, tuned), base)
    changes = {name: tuned[name].astype(np.float64) - weights[name] for name in weights}
    rows = rows_of_record(1, "k", record)
    assert rows["records"][0]["has_spectra"] is True
    for row in [*rows["deltas"], *rows["fused_matrices"]]:
        where = row["stack"], row["layer"], row["family"]
        change, weight = (
            kind.whole(tensors, *where) if "families" in row else kind.places[where].get(tensors)
            for tensors in (changes, tuned)
        )
        assert row["norm"] == pytest.approx(np.linalg.norm(change), rel=1e-5)
        assert (row["out_features"], row["in_features"]) == change.shape
        for percent in (50, 80, 90, 95, 99):
            assert row[f"rank_{percent}"] == checkpoints.rank_of(change, percent / 100)
            assert row[f"weight_rank_{percent}"] == checkpoints.rank_of(weight, percent / 100)
    assert [row["families"] for row in rows["fused_matrices"]] == [["query", "key", "value"]] * 2
