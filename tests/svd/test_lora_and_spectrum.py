"""Singular triplets from LoRA's factors, and whole spectra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from indexer.deltas.svd import lora_svd, spectrum, truncated_svd
from indexer.records.record import ranks_at
from tests.svd.matrices import ENERGY, exact, random, shared_out, with_values

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


class TestLora:
    @pytest.mark.parametrize("shape", [(300, 200), (200, 300), (5, 400), (400, 5), (1, 1)])
    @pytest.mark.parametrize("inner", [1, 4, 16, 64])
    @pytest.mark.parametrize("scale", [2.0, -0.5])
    def test_against_the_product(self, shape: tuple[int, int], inner: int, scale: float) -> None:
        a, b = random(inner, shape[1]), random(shape[0], inner, seed=1)
        product = scale * b.double() @ a.double()
        values = np.linalg.svd(product.numpy(), compute_uv=False)
        factors = lora_svd(a, b, scale, 8)
        effective_rank = min(8, inner, *shape)
        assert (factors.u.shape, factors.s.shape, factors.v.shape) == ((shape[0], 8), (8,), (shape[1], 8))
        assert factors.s[:effective_rank].tolist() == pytest.approx(values[:effective_rank].tolist(), rel=1e-5)
        assert not factors.s[effective_rank:].any()
        assert not factors.u[:, effective_rank:].any()
        assert not factors.v[:, effective_rank:].any()
        assert factors.norm == pytest.approx(np.linalg.norm(values), rel=1e-10)
        # With its sign: b @ a times a negative scale is not b @ a.
        assert (product.T.float() @ factors.u - factors.v * factors.s).abs().max() < 1e-5 * factors.s[0]
        assert (product.float() @ factors.v - factors.u * factors.s).abs().max() < 1e-5 * factors.s[0]

    def test_the_product_is_never_formed(self) -> None:
        a, b = random(4, 300_000), random(300_000, 4, seed=1)  # a product of 360 GB
        factors = lora_svd(a, b, 1.0, 2)
        small = np.linalg.qr(b.double().numpy())[1] @ np.linalg.qr(a.double().numpy().T)[1].T
        assert factors.s.tolist() == pytest.approx(np.linalg.svd(small)[1][:2].tolist(), rel=1e-6)

    @pytest.mark.parametrize("which", ["a", "b", "scale"])
    def test_zero(self, which: str) -> None:
        a, b = random(4, 20), random(30, 4)
        factors = lora_svd(a * (which != "a"), b * (which != "b"), float(which != "scale"), 3)
        assert not any(bool(part.any()) for part in (factors.u, factors.s, factors.v))
        assert (factors.u.shape, factors.v.shape, factors.norm) == ((30, 3), (20, 3), 0)

    def test_deficient_factors(self) -> None:
        a, b = random(6, 40), random(50, 6, seed=1)
        a[3:] = a[:3]
        b[:, 0] = 0
        factors = lora_svd(a, b, 1.0, 6)
        values = np.linalg.svd((b.double() @ a.double()).numpy(), compute_uv=False)
        assert factors.s[:3].tolist() == pytest.approx(values[:3].tolist(), rel=1e-6)
        assert not factors.s[3:].any()
        assert not factors.u[:, 3:].any()

    @pytest.mark.parametrize("scale", [1e-25, 1e25])
    def test_scale(self, scale: float) -> None:
        a, b = random(4, 20), random(30, 4)
        factors = lora_svd(a * scale, b, 1.0, 4)
        plain = lora_svd(a, b, 1.0, 4)
        assert (factors.s.double().numpy() / scale) == pytest.approx(plain.s.numpy(), rel=1e-5)

    def test_bad_input(self) -> None:
        a, b = random(4, 20), random(30, 4)
        for bad_a, bad_b, scale in ((a * math.nan, b, 1.0), (a, b / 0, 1.0), (a, b, math.nan), (a, b, math.inf)):
            with pytest.raises(ValueError, match="NaN or infinite"):
                lora_svd(bad_a, bad_b, scale, 2)
        with pytest.raises(ValueError, match="do not multiply"):
            lora_svd(a, random(30, 5), 1.0, 2)
        with pytest.raises(ValueError, match="do not multiply"):
            lora_svd(a[0], b, 1.0, 2)
        with pytest.raises(ValueError, match="rank"):
            lora_svd(a, b, 1.0, 0)

    def test_agrees_with_the_dense_way(self) -> None:
        a, b = random(8, 300), random(400, 8, seed=1)
        thin, dense = lora_svd(a, b, 0.25, 8), truncated_svd(0.25 * b @ a, 8, 0)
        assert thin.s.numpy() == pytest.approx(dense.s.numpy(), rel=1e-3)
        cosines = (thin.v.T @ dense.v).abs().diagonal()
        assert float(cosines.min()) > 0.99


class TestSpectrum:
    @pytest.mark.parametrize(
        "matrix",
        [
            *(
                pytest.param(with_values(*shape, shared_out(ENERGY[family], 256)), id=family)
                for family, shape in (
                    ("query", (256, 256)),
                    ("feedforward1", (1024, 256)),
                    ("feedforward2", (256, 1024)),
                )
            ),
            pytest.param(random(300, 250), id="gaussian"),
            pytest.param(random(300, 250) + 5, id="offset"),
            pytest.param(with_values(300, 250, np.r_[1, np.full(249, 0.004)]), id="one dominates"),
            pytest.param(with_values(300, 250, np.r_[1, np.full(249, 0.01)]), id="energy in the tail"),
            pytest.param(with_values(300, 250, 0.5 ** np.arange(250)), id="geometric"),
            pytest.param(with_values(300, 250, np.ones(250)), id="all equal"),
            pytest.param(random(300, 6) @ random(6, 250, seed=1), id="low rank"),
            pytest.param(random(300, 250) * 1e-30, id="tiny"),
            pytest.param(random(300, 250) * 1e30, id="huge"),
            pytest.param(random(300, 256) * (torch.arange(256) % 4 == 1), id="columns frozen"),
            pytest.param(random(768, 768) * (torch.arange(768) % 16 == 1), id="most columns frozen"),
            pytest.param(torch.diag(torch.linspace(1, 0, 200)), id="diagonal"),
            pytest.param(random(1, 50), id="row"),
            pytest.param(random(50, 1), id="column"),
            pytest.param(random(40, 30), id="small"),
        ],
    )
    def test_against_exact(self, matrix: torch.Tensor) -> None:
        true, values_found = exact(matrix)[1], spectrum(matrix)
        assert values_found.shape == (min(matrix.shape),)
        assert values_found.dtype == torch.float32
        assert bool((values_found[:-1] >= values_found[1:]).all())
        assert np.abs(values_found.double().numpy() ** 2 - true**2).max() < 1e-5 * true[0] ** 2
        shares = np.cumsum(true**2) / (true**2).sum()
        for threshold in THRESHOLDS:
            assert abs(ranks_at(values_found, [threshold])[0] - (int((shares < threshold).sum()) + 1)) <= 1

    def test_deltas_of_real_training(self, trained: dict[str, torch.Tensor]) -> None:
        for delta in trained.values():
            true, values_found = exact(delta)[1], spectrum(delta).numpy()
            strong = true > 0.01 * true[0]
            assert values_found[strong] == pytest.approx(true[strong], rel=2e-3)

    def test_where_single_precision_gives_up(self, monkeypatch) -> None:
        """LAPACK does, on many matrices with columns of zeros; which ones depends on the build."""
        in_any_precision = torch.linalg.eigvalsh

        def only_in_double(matrix: torch.Tensor, UPLO: str) -> torch.Tensor:
            if matrix.dtype == torch.float32:
                raise torch.linalg.LinAlgError("failed to converge")
            return in_any_precision(matrix, UPLO=UPLO)

        monkeypatch.setattr(torch.linalg, "eigvalsh", only_in_double)
        matrix = random(300, 200)
        assert spectrum(matrix).tolist() == pytest.approx(exact(matrix)[1].tolist(), rel=1e-4)

    @pytest.mark.parametrize("shape", [(30, 200), (0, 4), (4, 0)])
    def test_zero(self, shape: tuple[int, int]) -> None:
        assert spectrum(torch.zeros(shape)).tolist() == [0] * min(shape)
