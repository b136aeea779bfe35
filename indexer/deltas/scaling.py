"""Matrices made safe to decompose: float32, dense, of a norm whose fourth power float32 still holds."""

from __future__ import annotations

import math

import torch

# Frobenius norms within which σ⁴ stays well inside the range of float32.
_SAFE_NORM = (1e-4, 1e4)

# Up to this width float64 costs next to nothing.
PRECISE_BELOW = 128


def in_safe_range(matrix: torch.Tensor, norm: float | None) -> tuple[torch.Tensor, float, float]:
    """The matrix in float32, divided by a power of two if its scale calls for it; that power; its norm.

    Raises ValueError on NaN and Inf.
    """
    matrix = matrix.detach().to(torch.float32)
    if norm is None:
        norm = float(torch.linalg.vector_norm(matrix))
    scale = 1.0
    if not _SAFE_NORM[0] <= norm <= _SAFE_NORM[1]:
        largest = float(matrix.abs().max()) if matrix.numel() else 0.0
        if not math.isfinite(largest):
            raise ValueError("a matrix to decompose holds NaN or infinite values")
        if largest == 0:
            return matrix, scale, 0.0
        exponent = math.frexp(largest)[1]
        scale = 2.0**exponent
        # In two steps: the reciprocal of the smallest float32 is not a float32.
        first = -exponent // 2
        matrix = matrix * 2.0**first * 2.0 ** (-exponent - first)
        norm = float(torch.linalg.vector_norm(matrix)) * scale
    rows, columns = matrix.stride()
    dense = (columns == 1 and rows >= matrix.shape[1]) or (rows == 1 and columns >= matrix.shape[0])
    return matrix if dense else matrix.contiguous(), scale, norm
