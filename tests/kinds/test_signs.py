"""Signs against closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2Model

from indexer.deltas.signs import _distinct, _edges, _grid_share, _median_of_law, _rescaling, _shape_of_change
from indexer.deltas.vectorise import vectorise
from indexer.records.identity import Spec, Unit
from indexer.records.record import read_record, write_record
from indexer.records.signs import COLUMNS
from indexer.sources.registry import ModelRef
from studies.kinds import changes
from studies.kinds.weights import Reader, Weights

pytestmark = pytest.mark.slow


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(40, 300), (128, 128), (300, 40)])
def test_the_spectrum_of_independent_numbers_is_that_of_the_law(shape):
    matrix = normal(*shape)
    values = torch.linalg.svdvals(matrix) ** 2
    largest, median = _edges(values.flip(0), shape)
    assert largest == pytest.approx(1, abs=0.08)
    assert median == pytest.approx(1, abs=0.08)
    with_direction = torch.linalg.svdvals(matrix + 3 * torch.outer(normal(shape[0], seed=1), normal(shape[1], seed=2)))
    assert _edges((with_direction**2).flip(0), shape)[0] > 2


def test_the_median_of_the_law():
    ratio = 0.25
    values = np.linalg.eigvalsh((lambda some: some @ some.T / 2000)(np.random.default_rng(0).normal(size=(500, 2000))))
    assert _median_of_law(ratio) == pytest.approx(np.median(values), rel=0.01)


@pytest.mark.parametrize("rank", [1, 5, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rank_is_that_apart_from_rounding(rank, dtype):
    base = normal(48, 100).to(dtype)
    whole = (base.double() + normal(48, rank, seed=1) @ normal(rank, 100, seed=2)).to(dtype)
    rows = whole.double()
    delta = rows - base.double()
    steps = torch.exp2(torch.floor(torch.log2(rows.abs()))) * torch.finfo(dtype).eps
    signs, (left, right) = _shape_of_change(delta, float(delta.square().sum()), 3 * float(steps.square().sum()) / 12)
    assert signs["rank"] == rank
    assert signs["full_rank"] == 48
    first = torch.linalg.svd(delta)
    assert abs(float(left @ first.U[:, 0])) == pytest.approx(1, abs=1e-6)
    assert abs(float(right @ first.Vh[0])) == pytest.approx(1, abs=1e-6)
    assert _shape_of_change(normal(48, 100), 1.0, 0.0)[0]["rank"] == 48
    assert _shape_of_change(normal(100, 48), 1.0, 0.0)[0]["rank"] == 48


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_numbers_on_a_grid(bits):
    rows = normal(16, 320)
    scale = rows.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert _grid_share((rows / scale).round() * scale) > 0.9 or _distinct((rows / scale).round() * scale) < 0.3
    assert _grid_share(rows) < 0.05
    assert _distinct(rows) == 1.0
    pruned = torch.where(rows.abs() > rows.abs().quantile(0.9), rows, 0.0)
    assert _grid_share(pruned) == 0.0
    assert _distinct(pruned) == 1.0


def test_scales_of_rows_and_columns_leave_nothing():
    base = normal(20, 30)
    for changed, name in (
        (base * normal(30, seed=1), "columns"),
        (base * normal(20, 1, seed=1), "rows"),
        (0.9 * base, "scalar"),
    ):
        left = _rescaling(changed, base, float((changed - base).square().sum()))
        assert left[name] < 1e-12
        assert left["rows" if name == "columns" else "columns"] > 0.3 or name == "scalar"


@pytest.fixture(scope="module")
def reader(hub, tmp_path_factory):
    return Reader(hub.store / "org/tiny-base", tmp_path_factory.mktemp("reader"))


def test_records_keep_their_signs(reader, hub, tmp_path):
    record = reader.record(hub.store / "bob/adamw")
    write_record(record, tmp_path / "record.safetensors")
    kept = read_record(tmp_path / "record.safetensors")
    assert kept.signs is not None
    assert kept.signs.matrices.shape == (len(record.deltas), len(COLUMNS))
    np.testing.assert_array_equal(kept.signs.matrices, record.signs.matrices)
    assert kept.signs.as_row() == record.signs.as_row()


def test_signs_do_not_depend_on_what_else_was_read(tmp_path):
    """Rows that a sample has are those on which a full record measures."""
    torch.manual_seed(0)
    GPT2Model(GPT2Config(n_embd=128, n_layer=2, n_head=2, vocab_size=50, n_positions=8)).save_pretrained(tmp_path / "b")
    reader = Reader(tmp_path / "b", tmp_path / "work")
    weights = Weights.read(tmp_path / "b")
    changes.abliterated(weights, torch.Generator().manual_seed(0), 0.5).save(tmp_path / "m")
    sample = reader.record(tmp_path / "m")
    assert sample.is_sampled
    unit = Unit(
        ModelRef("x/y", folder=tmp_path / "m"), "d" * 40, reader.name, "c" * 40, "finetune", Spec(), representations=()
    )
    full = vectorise(unit, reader.base)
    assert not full.is_sampled
    np.testing.assert_allclose(full.signs.matrices, sample.signs.matrices, rtol=1e-4, atol=1e-6)
