"""Nearest tokens: 50,000 at a time do not fit, so the vocabulary is gone through in pieces."""

from __future__ import annotations

import torch

from indexer.profiles.layers import Layers

PIECE = 8192


def nearest_tokens(layers: Layers, points: torch.Tensor, count: int = 1) -> torch.Tensor:
    """The ids (…, count) of the ordinary tokens nearest to ``points`` (…, width), nearest first (Euclidean)."""
    flat = points.reshape(-1, points.shape[-1]).to(layers.tokens.dtype)
    ids = layers.ordinary_ids.to(flat.device)
    count = min(count, len(ids))
    best = flat.new_full((len(flat), 0), 0.0)
    found = ids.new_zeros((len(flat), 0))
    for start in range(0, len(ids), PIECE):
        piece = ids[start : start + PIECE]
        rows = layers.tokens[piece]
        distances = rows.square().sum(dim=1) - 2 * flat @ rows.T
        best = torch.cat([best, distances], dim=1)
        found = torch.cat([found, piece.expand(len(flat), -1)], dim=1)
        best, places = best.topk(min(count, best.shape[1]), dim=1, largest=False)
        found = found.gather(1, places)
    return found.reshape(*points.shape[:-1], count)


def right(guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The share of right tokens in each sequence."""
    return (guess.cpu() == ids.cpu()).double().mean(dim=1)
