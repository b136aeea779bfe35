"""All singular values of one matrix, by the eigenvalues of its Gram matrix."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from indexer.deltas.scaling import PRECISE_BELOW, in_safe_range

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

# Columns of the Gram matrix made at a time: only what lies on and above the diagonal is needed.
_GRAM_COLUMNS = 96


@torch.no_grad()
def spectrum(matrix: torch.Tensor) -> torch.Tensor:
    """All singular values of ``matrix`` (out, in): (min(out, in),) float32, descending.

    Square roots of the eigenvalues of the float32 Gram matrix of the shorter side, several times faster than
    ``torch.linalg.svdvals``. Squares are good to a few 1e-6 · σ_1²: shares of energy come out right, but a σ
    below a few thousandths of σ_1 is only known to be that small.

    Raises ValueError: not two-dimensional, NaN or Inf.
    """
    if matrix.ndim != 2:
        raise ValueError(f"a matrix has two dimensions, not the shape {tuple(matrix.shape)}")
    scaled, scale, norm = in_safe_range(matrix, None)
    if norm == 0:
        return torch.zeros(min(matrix.shape), device=matrix.device)
    gram = _upper_gram(scaled if scaled.shape[0] >= scaled.shape[1] else scaled.t())
    squares = _eigenvalues(gram).flip(0)
    return (squares.clamp_min(0).sqrt().double() * scale).float()


def _eigenvalues(upper: torch.Tensor) -> torch.Tensor:
    """Eigenvalues, ascending, of the symmetric matrix whose upper triangle is given."""
    if upper.device.type == "cpu" and upper.dtype == torch.float32:
        from scipy.linalg import LinAlgError, eigh

        # OpenBLAS reduces it in two thirds of the time that MKL takes, in column order, from the upper triangle.
        columns = np.asfortranarray(upper.numpy())
        try:
            with _blas_threads().limit(limits=1, user_api="blas"):
                return torch.from_numpy(eigh(columns, lower=False, eigvals_only=True, driver="ev", check_finite=False))
        except LinAlgError:
            pass
    try:
        return torch.linalg.eigvalsh(upper, UPLO="U")
    except torch.linalg.LinAlgError:
        # Single precision gives up on many matrices with columns of zeros (a partly frozen layer).
        return torch.linalg.eigvalsh(upper.double(), UPLO="U")


@lru_cache(maxsize=1)
def _blas_threads() -> ThreadpoolController:
    """Two thread counts give different last bits. Looking for the libraries takes long, so it is done once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _upper_gram(tall: torch.Tensor) -> torch.Tensor:
    """AᵀA, block by block, of which the blocks below the diagonal are left zero."""
    size = tall.shape[1]
    if size <= PRECISE_BELOW:
        precise = tall.double()
        return precise.t() @ precise
    gram = tall.new_zeros(size, size)
    for start in range(0, size, _GRAM_COLUMNS):
        stop = start + _GRAM_COLUMNS
        torch.mm(tall[:, start:stop].t(), tall[:, start:], out=gram[start:stop, start:])
    return gram
