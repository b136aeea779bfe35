"""Matrices with spectra that are known, and how far an answer is from them."""

from __future__ import annotations

import numpy as np
import torch

# Shares of the energy that the top 1, 2, 4, 8 and 16 singular values of real fine-tuning deltas hold.
ENERGY = {
    "query": (0.35, 0.47, 0.57, 0.66, 0.75),
    "key": (0.26, 0.38, 0.49, 0.61, 0.72),
    "value": (0.44, 0.60, 0.70, 0.77, 0.83),
    "output": (0.51, 0.67, 0.75, 0.81, 0.86),
    "feedforward1": (0.33, 0.47, 0.57, 0.64, 0.71),
    "feedforward2": (0.51, 0.66, 0.75, 0.81, 0.86),
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def with_values(rows: int, columns: int, values, seed: int = 0) -> torch.Tensor:
    """A float32 matrix with the given singular values and random singular vectors."""
    draw = np.random.default_rng(seed)
    values = np.asarray(values, dtype=np.float64)
    left = np.linalg.qr(draw.standard_normal((rows, len(values))))[0]
    right = np.linalg.qr(draw.standard_normal((columns, len(values))))[0]
    return torch.from_numpy(((left * values) @ right.T).astype(np.float32))


def shared_out(shares: tuple[float, ...], count: int) -> np.ndarray:
    """``count`` descending values whose squares add up to the given shares at 1, 2, 4, 8, 16."""
    at = np.log2([1, 2, 3, 5, 9, 17, 1 + count])
    energy = np.interp(np.log2(1 + np.arange(count + 1)), at, [0, *shares, 1])
    return np.sqrt(np.sort(np.diff(energy))[::-1])


def exact(matrix: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    u, s, vt = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    return u, s, vt.T
