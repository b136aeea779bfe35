"""Whitens the inputs of a set of texts by those of reference texts; and the eigenvectors for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ReferenceMoments:
    """The reference's moments, by group of matrices with the same inputs.

    C is approximately Σ λ v vᵀ: ``values`` (k,) and ``vectors`` (d, k) by group, ``ridges`` ρ. ``roots``: the sketch
    (blocks, length) of (W C W)^½.
    """

    values: Mapping[str, Floats]
    vectors: Mapping[str, Floats]
    ridges: Mapping[str, float]
    roots: Floats


class Whitener:
    """W = (C + ρ)^-½ of one group, with C ≈ Σ λ v vᵀ.

    Along v with λ > ρ a number would be the difference of two large numbers, so these directions are split off first:
    W x = ρ^-½ x⊥ + Σ s vᵀx v, where x⊥ is x without them and s = (λ + ρ)^-½, minus ρ^-½ for the other directions.
    """

    def __init__(self, values: Floats, vectors: Floats, ridge: float) -> None:
        self.vectors, self.ridge = vectors, ridge
        self.is_large = values > ridge
        regularised = values.astype(np.float64) + ridge
        self.scale = (regularised**-0.5 - np.where(self.is_large, 0.0, ridge**-0.5)).astype(np.float32)
        self.squares = (1 / regularised - np.where(self.is_large, 0.0, 1 / ridge)).astype(np.float32)

    def parts(self, rows: Floats) -> tuple[Floats, NDArray[np.floating]]:
        """vᵀx (n, k) and x⊥ (n, d) of rows x (n, d). (W x)·(W y) = x⊥·y⊥/ρ + Σ ``squares`` vᵀx vᵀy."""
        projected: Floats = rows @ self.vectors
        return projected, rows - projected[:, self.is_large] @ self.vectors[:, self.is_large].T

    def whitened(self, moment: NDArray[np.floating]) -> Floats:
        """W M W."""
        large = self.vectors[:, self.is_large]
        white = (self.vectors * self.scale) @ self.vectors.T - np.float32(self.ridge**-0.5) * (large @ large.T)
        white[np.diag_indices_from(white)] += np.float32(self.ridge**-0.5)
        result: Floats = white @ moment.astype(np.float32) @ white
        return result


def moment_eigenvectors(rows: Floats) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Eigenvalues (k,), none negative, and eigenvectors (d, k) of the second moment of rows (n, d)."""
    count = max(1, len(rows))
    if len(rows) >= rows.shape[1]:
        return eigenvectors(rows.T @ rows / count)
    values, left_vectors = eigenvectors(rows @ rows.T / count)
    is_kept = values > 1e-6 * max(float(values.max(initial=0.0)), 1e-30)
    values, left_vectors = values[is_kept], left_vectors[:, is_kept]
    return values, rows.T @ left_vectors / np.sqrt(values * count).astype(np.float32)


def eigenvectors(matrix: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Eigenvalues, ascending, none negative, and eigenvectors of a symmetric matrix, in single precision."""
    tensor = torch.from_numpy(matrix.astype(np.float32))
    values, vectors = torch.linalg.eigh((tensor + tensor.T) / 2)  # in a third less time than NumPy
    return values.clamp(min=0).double().numpy(), vectors.numpy()
