"""Nearest tokens: 50,000 at a time do not fit, so the vocabulary is gone through in pieces."""

from __future__ import annotations

import torch

from indexer.profiles.layers import Layers

PIECE = 2048
# Beyond those asked, so that what float32 puts in the wrong order is put right before the last are left out.
SPARE = 8


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
        best, places = best.topk(min(count + SPARE, best.shape[1]), dim=1, largest=False)
        found = found.gather(1, places)
    at_once = max(1, PIECE // max(1, found.shape[1]))
    ordered = [
        _in_order(layers, some, near) for some, near in zip(flat.split(at_once), found.split(at_once), strict=True)
    ]
    return torch.cat(ordered)[:, :count].reshape(*points.shape[:-1], count)


def _in_order(layers: Layers, points: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """The tokens ``found`` (points, tokens) by their distance in float64; of equal ones the smaller id first."""
    found = found.sort(dim=1).values
    distances = (layers.tokens[found].double() - points.double()[:, None]).square().sum(dim=2)
    return found.gather(1, distances.sort(dim=1, stable=True).indices)


def right(guess: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The share of right tokens in each sequence."""
    return (guess.cpu() == ids.cpu()).double().mean(dim=1)
