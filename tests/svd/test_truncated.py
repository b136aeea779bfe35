"""The top singular triplets of a dense change."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.deltas import svd
from indexer.deltas.svd import Factors, lora_svd, spectrum, truncated_svd
from tests.halves import a_few
from tests.svd.matrices import ENERGY, exact, random, shared_out, with_values


def worst_error(factors: Factors, matrix: torch.Tensor) -> float:
    """The largest relative error of a σ that the matrix numerically has."""
    values = exact(matrix)[1][: len(factors.s)]
    real = values > 1.5e-7 * max(matrix.shape) * values[0]
    values_found = factors.s.double().numpy()[: len(values)]
    return float(np.abs(values_found / np.where(real, values, 1) - 1)[real].max())


def mismatch(factors: Factors, matrix: torch.Tensor) -> float:
    """How far u and v are from being each other's images, on the side where they are most so."""
    left = torch.linalg.vector_norm(matrix.T @ factors.u - factors.v * factors.s, dim=0)
    right = torch.linalg.vector_norm(matrix @ factors.v - factors.u * factors.s, dim=0)
    return float(min(left.max(), right.max()) / factors.s[0])


def assert_good(matrix: torch.Tensor, rank: int = 8, seed: int = 3) -> Factors:
    """Values within 1 %, orthonormal vectors that belong together, energy captured as well as can be."""
    factors = truncated_svd(matrix, rank, seed)
    assert factors.u.shape == (matrix.shape[0], rank)
    assert factors.v.shape == (matrix.shape[1], rank)
    assert all(part.dtype == torch.float32 for part in (factors.u, factors.s, factors.v))
    assert worst_error(factors, matrix) < 0.01
    assert bool((factors.s[:-1] >= factors.s[1:]).all())
    present = torch.diag((factors.s > 0).float())
    assert (factors.u.T @ factors.u - present).abs().max() < 5e-5
    assert (factors.v.T @ factors.v - present).abs().max() < 5e-5
    assert mismatch(factors, matrix) < 1e-3
    values = exact(matrix)[1]
    missed = torch.linalg.vector_norm(matrix.double() - (factors.u * factors.s).double() @ factors.v.double().T)
    assert float(missed) <= 1.01 * np.linalg.norm(values[rank:]) + 1e-4 * values[0]
    assert factors.norm == pytest.approx(np.linalg.norm(values), rel=1e-5)
    return factors


class TestTruncated:
    @pytest.mark.parametrize("family", ENERGY)
    def test_spectra_like_those_of_real_deltas(self, family: str) -> None:
        shape = {"feedforward1": (1536, 384), "feedforward2": (384, 1536)}.get(family, (384, 384))
        matrix = with_values(*shape, shared_out(ENERGY[family], 384), seed=zlib.crc32(family.encode()))
        factors = assert_good(0.01 * matrix)
        assert 0 < factors.blocks <= 4

    def test_deltas_of_real_training(self, trained: dict[str, torch.Tensor]) -> None:
        assert {tuple(delta.shape) for delta in trained.values()} == {(192, 192), (768, 192), (192, 768)}
        assert all(assert_good(delta).blocks > 0 for delta in trained.values())

    def test_vectors_where_the_gaps_allow(self, trained: dict[str, torch.Tensor]) -> None:
        checked = 0
        for delta in trained.values():
            u, s, v = exact(delta)
            factors = truncated_svd(delta, 8, 0)
            apart = np.minimum(1 - s[1:9] / s[:8], np.append(1, s[:7] / s[1:8] - 1)) > 0.03
            for vectors, true in ((factors.u, u), (factors.v, v)):
                cosines = np.abs((vectors.double().numpy() * true[:, :8]).sum(0))
                assert cosines[apart].min() > 0.98
                assert np.median(cosines[apart]) > 0.999
            checked += int(apart.sum())
        assert checked > 40

    @pytest.mark.parametrize("seed", a_few(range(3), 1))
    @pytest.mark.parametrize("ratio", [0.9, 0.93, 0.96])
    def test_vectors_between_close_values(self, ratio: float, seed: int) -> None:
        matrix = with_values(500, 400, ratio ** np.arange(400), seed)
        u, _, v = exact(matrix)
        factors = truncated_svd(matrix, 8, seed)
        for vectors, true in ((factors.u, u), (factors.v, v)):
            assert np.abs((vectors.double().numpy() * true[:, :8]).sum(0)).min() > 0.99

    @pytest.mark.parametrize("seed", a_few(range(3), 1))
    @pytest.mark.parametrize(
        "matrix",
        [
            pytest.param(lambda: random(400, 300), id="gaussian"),
            pytest.param(lambda: random(1500, 130), id="gaussian tall"),
            pytest.param(lambda: random(110, 2000), id="gaussian wide"),
            pytest.param(lambda: random(300, 300).sign(), id="signs"),
            pytest.param(lambda: random(300, 300).abs(), id="positive"),
            pytest.param(lambda: random(400, 300) ** 5, id="heavy tails"),
            pytest.param(lambda: with_values(300, 300, np.linspace(1, 0.98, 300)), id="nearly all equal"),
            pytest.param(lambda: with_values(300, 300, np.linspace(1, 0.3, 300)), id="linear"),
            pytest.param(lambda: with_values(400, 300, np.arange(1, 301) ** -0.25), id="slow power"),
            pytest.param(lambda: with_values(400, 300, np.r_[np.ones(20), np.full(280, 0.5)]), id="twenty equal"),
            pytest.param(
                lambda: with_values(400, 300, np.r_[np.linspace(3, 2, 4), np.linspace(1, 0.8, 296)]), id="four lead"
            ),
            pytest.param(
                lambda: with_values(600, 500, np.r_[np.ones(4), np.full(12, 0.8), np.linspace(0.7, 0.01, 484)], 1),
                id="steps",
            ),
            pytest.param(lambda: with_values(400, 300, np.r_[1, np.linspace(0.01, 0.005, 299)]), id="one dominates"),
            pytest.param(
                lambda: with_values(400, 300, np.r_[1, np.linspace(0.001, 0.0005, 299)]), id="one dominates all"
            ),
            pytest.param(lambda: with_values(400, 300, 0.3 ** np.arange(300)), id="geometric"),
            pytest.param(lambda: torch.diag(torch.linspace(1, 0.1, 400)), id="diagonal"),
            pytest.param(lambda: torch.eye(300), id="identity"),
            pytest.param(lambda: torch.block_diag(*random(6, 60, 60)), id="blocks"),
            pytest.param(lambda: random(500, 400) * (torch.arange(500) % 8 == 1)[:, None], id="most rows empty"),
            pytest.param(lambda: random(500, 400) * (torch.arange(400) % 8 == 1), id="most columns empty"),
            pytest.param(lambda: random(400, 300) * (random(400, 300, seed=1) > 3), id="sparse"),
            pytest.param(lambda: torch.ones(400, 300), id="ones"),
        ],
    )
    def test_hard_spectra(self, matrix: Callable[[], torch.Tensor], seed: int) -> None:
        assert assert_good(matrix(), seed=seed).blocks > 0, "the iteration should have converged"

    @pytest.mark.parametrize("shape", [(1, 900), (900, 1), (1, 1), (2, 3), (4096, 64), (64, 4096), (97, 97)])
    @pytest.mark.parametrize("rank", [1, 8])
    def test_odd_shapes(self, shape: tuple[int, int], rank: int) -> None:
        assert_good(random(*shape), rank)

    @pytest.mark.parametrize("rank", [1, 2, 5, 16, 40, 300])
    def test_other_ranks(self, rank: int) -> None:
        assert_good(with_values(350, 300, shared_out(ENERGY["query"], 300)), rank)

    def test_more_than_there_is(self) -> None:
        matrix = random(40, 5)
        factors = assert_good(matrix, 12)
        assert np.allclose(factors.s[:5].numpy(), exact(matrix)[1], rtol=1e-5)
        assert not factors.s[5:].any()
        assert not factors.u[:, 5:].any()
        assert not factors.v[:, 5:].any()

    @pytest.mark.parametrize("shape", [(300, 200), (7, 3), (3, 0), (0, 0)])
    def test_zero(self, shape: tuple[int, int]) -> None:
        factors = truncated_svd(torch.zeros(shape), 4, 0)
        assert (factors.u.shape, factors.s.shape, factors.v.shape) == ((shape[0], 4), (4,), (shape[1], 4))
        assert not any(bool(part.any()) for part in (factors.u, factors.s, factors.v))
        assert factors.norm == 0

    @pytest.mark.parametrize("shape", [(500, 400), (400, 500), (60, 50)])
    @pytest.mark.parametrize("true_rank", [1, 3, 7, 8, 20])
    def test_exact_rank(self, shape: tuple[int, int], true_rank: int) -> None:
        factors = assert_good(random(shape[0], true_rank) @ random(true_rank, shape[1], seed=1))
        effective_rank = min(true_rank, 8)
        assert bool((factors.s[:effective_rank] > 0).all())
        assert not factors.s[effective_rank:].any()
        assert not factors.u[:, effective_rank:].any()
        assert not factors.v[:, effective_rank:].any()

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("rank", [1, 4, 8])
    def test_a_few_entries(self, rank: int, seed: int) -> None:
        matrix = torch.zeros(400, 300)
        matrix[7, 5], matrix[123, 44], matrix[9, 200] = 3, -2, 1
        factors = assert_good(matrix, rank, seed)
        assert factors.blocks > 0
        assert factors.s.tolist() == pytest.approx([3, 2, 1, 0, 0, 0, 0, 0][:rank], rel=1e-5)
        assert not factors.s[3:].any()

    def test_two_rows(self) -> None:
        matrix = torch.zeros(200, 768)
        matrix[0, :8], matrix[3, 334] = 2, 1
        for seed in range(160, 170):
            assert assert_good(matrix, 8, seed).s[:3].tolist() == pytest.approx([32**0.5, 1, 0], rel=1e-5)

    def test_stays_orthogonal_next_to_a_dominant_direction(self) -> None:
        """Twelve blocks or so, each of which could let the first direction back in."""
        assert assert_good(with_values(768, 700, np.r_[1, np.linspace(0.01, 0.005, 699)])).blocks > 5

    @pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e-12, 1e-5, 1e5, 1e12, 1e30, 1e34])
    @pytest.mark.parametrize("shape", [(300, 200), (30, 20)])
    def test_scale(self, scale: float, shape: tuple[int, int]) -> None:
        matrix = random(*shape)
        ones, scaled = truncated_svd(matrix, 8, 5), truncated_svd(matrix * scale, 8, 5)
        assert (scaled.s.double().numpy() / scale) == pytest.approx(ones.s.numpy(), rel=5e-3)
        assert worst_error(scaled, matrix * scale) < 0.01
        assert scaled.norm / scale == pytest.approx(ones.norm, rel=1e-5)
        assert (scaled.u.T @ scaled.u - torch.eye(8)).abs().max() < 1e-4

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("shape", [(300, 200), (3, 2)])
    def test_not_finite(self, bad: float, shape: tuple[int, int]) -> None:
        matrix = random(*shape)
        matrix[-1, 1] = bad
        with pytest.raises(ValueError, match="NaN or infinite"):
            truncated_svd(matrix, 2, 0)
        with pytest.raises(ValueError, match="NaN or infinite"):
            spectrum(matrix)

    @pytest.mark.parametrize("rank", [0, -1])
    def test_no_such_rank(self, rank: int) -> None:
        with pytest.raises(ValueError, match="rank"):
            truncated_svd(random(3, 2), rank, 0)

    @pytest.mark.parametrize("shape", [(6,), (2, 2, 2)])
    def test_not_a_matrix(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="two dimensions"):
            truncated_svd(random(*shape), 1, 0)
        with pytest.raises(ValueError, match="two dimensions"):
            spectrum(random(*shape))

    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(random(200, 300).T, id="transposed"),
            pytest.param(random(200, 900).T[300:600], id="part of a transposed"),
            pytest.param(random(900, 300)[300:600], id="rows"),
            pytest.param(random(300, 900)[:, 300:600], id="columns"),
            pytest.param(random(600, 600)[::2, ::3], id="strided"),
            pytest.param(random(300, 1).expand(300, 200), id="expanded"),
            pytest.param(random(300, 200).flip(0).requires_grad_(), id="wants gradients"),
            pytest.param(random(300, 200).double(), id="float64"),
            pytest.param(random(300, 200).bfloat16(), id="bfloat16"),
            pytest.param(random(300, 200).half(), id="float16"),
        ],
    )
    def test_any_layout(self, view: torch.Tensor) -> None:
        plain = view.detach().float().contiguous()
        factors = truncated_svd(view, 8, 1)
        assert worst_error(factors, plain) < 0.01
        assert mismatch(factors, plain) < 1e-3
        assert not any(part.requires_grad for part in (factors.u, factors.s, factors.v))
        assert all(part.is_contiguous() for part in (factors.u, factors.s, factors.v))
        # A σ below a few thousandths of the largest is only known to be that small.
        assert spectrum(view).tolist() == pytest.approx(exact(plain)[1].tolist(), abs=2e-3 * float(factors.s[0]))

    def test_input_is_left_alone(self) -> None:
        matrix = random(300, 200) * 1e-9
        copy = matrix.clone()
        truncated_svd(matrix, 8, 0)
        spectrum(matrix)
        assert torch.equal(matrix, copy)

    def test_same_input_same_bits(self) -> None:
        matrix = with_values(400, 300, shared_out(ENERGY["key"], 300))
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = truncated_svd(matrix, 8, 7)
        assert torch.equal(torch.get_rng_state(), state), "the global generator must not be touched"
        torch.manual_seed(2)
        again = truncated_svd(matrix.clone(), 8, 7, norm=first.norm)
        assert torch.equal(first.u, again.u)
        assert torch.equal(first.s, again.s)
        assert torch.equal(first.v, again.v)
        other = truncated_svd(matrix, 8, 8)
        assert not torch.equal(first.u, other.u)
        assert other.s.numpy() == pytest.approx(first.s.numpy(), rel=5e-3)

    @pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5, -(2**70)])
    def test_any_seed(self, seed: int) -> None:
        assert worst_error(truncated_svd(random(300, 200), 8, seed), random(300, 200)) < 0.01

    @pytest.mark.parametrize("shape", [(300, 200), (200, 300)])
    def test_exact_where_it_does_not_converge(self, shape: tuple[int, int], monkeypatch) -> None:
        monkeypatch.setattr(svd, "_MOST_BLOCKS", 2)
        factors = assert_good(random(*shape))
        assert factors.blocks == 0
        assert worst_error(factors, random(*shape)) < 1e-5

    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.integers(1, 150),
        columns=st.integers(1, 150),
        true_rank=st.integers(1, 150),
        rank=st.integers(1, 12),
        decay=st.floats(0.0, 2.0),
        seed=st.integers(0, 2**64),
    )
    def test_whatever_comes(self, rows: int, columns: int, true_rank: int, rank: int, decay: float, seed: int) -> None:
        values = np.arange(1, min(rows, columns, true_rank) + 1) ** -decay
        matrix = with_values(rows, columns, values, seed % 1000)
        factors = truncated_svd(matrix, rank, seed)
        assert worst_error(factors, matrix) < 0.01
        assert not factors.s[len(values) :].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(trained: dict[str, torch.Tensor]) -> None:
    for delta in (*trained.values(), random(400, 300), random(60, 50), torch.zeros(200, 150)):
        factors = truncated_svd(delta.cuda(), 8, 0)
        assert {part.device.type for part in (factors.u, factors.s, factors.v)} == {"cuda"}
        here = Factors(factors.u.cpu(), factors.s.cpu(), factors.v.cpu())
        if delta.any():
            assert worst_error(here, delta) < 0.01
        values = exact(delta)[1]
        assert spectrum(delta.cuda()).tolist() == pytest.approx(values.tolist(), abs=3e-3 * max(values[0], 1e-9))
    a, b = random(4, 200), random(300, 4, seed=1)
    assert lora_svd(a.cuda(), b.cuda(), 2.0, 4).s.tolist() == pytest.approx(lora_svd(a, b, 2.0, 4).s.tolist(), rel=1e-4)
