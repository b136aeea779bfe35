"""Second moments M of inputs, whitened by those of reference texts, C: W M W with W = (C + ρ)^-½."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Whitening:
    """The reference's moments, by group of matrices with the same inputs.

    C is approximately Σ λ v vᵀ: ``values`` (k,) and ``vectors`` (d, k) by group, ``ridges`` ρ. ``roots``: the sketch
    (blocks, length) of (W C W)^½.
    """

    values: Mapping[str, Floats]
    vectors: Mapping[str, Floats]
    ridges: Mapping[str, float]
    roots: Floats


class GroupWhitening:
    """W = (C + ρ)^-½ of one group, with C ≈ Σ λ v vᵀ, and ``sketches`` of the v by matrix.

    Along v with λ > ρ a number would be the difference of two large ones, so these directions are split off first:
    W x = ρ^-½ x⊥ + Σ s vᵀx v, where x⊥ is x without them and s = (λ + ρ)^-½, less ρ^-½ for the other directions.
    """

    def __init__(
        self,
        values: Floats,
        vectors: Floats,
        ridge: float,
        sketches: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    ) -> None:
        self.vectors, self.ridge = vectors, ridge
        self.is_large = values > ridge
        held = values.astype(np.float64) + ridge
        self.scale = (held**-0.5 - np.where(self.is_large, 0.0, ridge**-0.5)).astype(np.float32)
        self.squares = (1 / held - np.where(self.is_large, 0.0, 1 / ridge)).astype(np.float32)
        self.sketches = {key: tuple(one.astype(np.float32) for one in both) for key, both in sketches.items()}

    def gram(self, rows: Floats) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Of rows x (n, d): vᵀx (n, k), x⊥ (n, d), and the products (W x)·(W y) (n, n)."""
        projected = rows @ self.vectors
        rest = rows - projected[:, self.is_large] @ self.vectors[:, self.is_large].T
        return projected, rest, rest @ rest.T / np.float32(self.ridge) + (projected * self.squares) @ projected.T

    def around(self, moment: NDArray[np.floating]) -> Floats:
        """W M W."""
        large = self.vectors[:, self.is_large]
        white = (self.vectors * self.scale) @ self.vectors.T - np.float32(self.ridge**-0.5) * (large @ large.T)
        white[np.diag_indices_from(white)] += np.float32(self.ridge**-0.5)
        found: Floats = white @ moment.astype(np.float32) @ white
        return found


def eigen_of(matrix: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Eigenvalues, ascending, none negative, and eigenvectors of a symmetric matrix, in single precision."""
    whole = torch.from_numpy(matrix.astype(np.float32))
    values, vectors = torch.linalg.eigh((whole + whole.T) / 2)  # in a third less time than NumPy
    return values.clamp(min=0).double().numpy(), vectors.numpy()
