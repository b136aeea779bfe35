"""Modules whose layers keep, drop or mix what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from indexer.profiles.layers import Layers

WIDTH = 128
TOKENS = 4096


def vocabulary(tokens: int = TOKENS, width: int = WIDTH, scale: float = 0.02, seed: int = 0) -> nn.Embedding:
    """Normal embeddings."""
    generator = torch.Generator().manual_seed(seed)
    return nn.Embedding.from_pretrained(scale * torch.randn(tokens, width, generator=generator))


def directions(rank: int, width: int = WIDTH, seed: int = 1) -> torch.Tensor:
    """Orthonormal columns (width, rank)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:, :rank]


def identities(depth: int = 3) -> Layers:
    return Layers(vocabulary(), [nn.Identity() for _ in range(depth)])


def projected(rank: int, *, is_wide: bool = True) -> Layers:
    """One linear map to ``rank`` directions, left in all dimensions or written in ``rank`` numbers."""
    basis = directions(rank)
    matrix = basis @ basis.T if is_wide else basis
    return Layers(vocabulary(), [lambda hidden: hidden @ matrix])


def after(block: Callable[[torch.Tensor], torch.Tensor], depth: int = 2) -> Layers:
    return Layers(vocabulary(), [block] * depth)


class Mixing(nn.Module):
    """The original papers' toy: all positions together, n·d → 4·n·d → n·d with GELU between."""

    def __init__(self, positions: int, width: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = positions * width
        self.up = torch.randn(size, 4 * size, generator=generator) / size**0.5
        self.down = torch.randn(4 * size, size, generator=generator) / (4 * size) ** 0.5

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(1) @ self.up
        return (nn.functional.gelu(flat) @ self.down).reshape(hidden.shape)


class Attention(nn.Module):
    """A residual block with one causal head, untrained."""

    def __init__(self, width: int = WIDTH, seed: int = 0, size: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.maps = [size * torch.randn(width, width, generator=generator) / width**0.5 for _ in range(3)]

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        query, key, value = (hidden @ matrix for matrix in self.maps)
        scores = query @ key.transpose(1, 2) / hidden.shape[-1] ** 0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return hidden + weights @ value, None


def running_sum(hidden: torch.Tensor) -> torch.Tensor:
    """h_t is the sum of e_s, s ≤ t: the original papers' toy."""
    return hidden.cumsum(dim=1)
