"""Random draws: one generator for each (seed, measure), the same at every layer and for every model."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, measure: str) -> torch.Generator:
    """A fresh generator. The global one is never used: what else was drawn must not matter."""
    digest = hashlib.sha256(f"{seed}|{measure}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def normal(shape: tuple[int, ...], seed: int, measure: str, device: torch.device | None = None) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator(seed, measure)).to(device or "cpu")


def standard_error(values: torch.Tensor) -> float | None:
    """The standard error of a mean over sequences; None for fewer than two."""
    found = values.double()
    return None if len(found) < 2 else float(found.std(unbiased=True) / len(found) ** 0.5)
