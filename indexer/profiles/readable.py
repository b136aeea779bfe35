"""A linear map from a layer's output back to the embeddings: what can be read off without any search."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from indexer.errors import Failed
from indexer.profiles.layers import Layers
from indexer.profiles.probes import random_ids

FEWEST_TOKENS = 2560
TOKENS_PER_WIDTH = 4
RIDGE = 1e-3  # of the mean of the diagonal
# Of the uncentred second moment, beside RIDGE: of a constant layer centring leaves nothing, or nothing but float64's
# rounding (1e-16 of that moment times the number of sums), and no map may be read from that.
RIDGE_FLOOR = 1e-12
AT_ONCE = 512  # tokens of one forward pass


@dataclass(frozen=True)
class Readout:
    """By layer the map (width + 1, embedding width); the last row is its constant part."""

    maps: dict[int, torch.Tensor]

    def guess(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Embeddings (…, embedding width) as read from h_l (…, width)."""
        found = self.maps[layer]
        return hidden.to(found.dtype) @ found[:-1] + found[-1]


def fit_readout(layers: Layers, chosen: Collection[int], tokens: int, seed: int = 0) -> Readout:
    """Ridge regression on random sequences of ``tokens`` tokens, one forward pass for all layers.

    Raises Failed("not_finite") where outputs overflow.

    On random tokens: a map that was fitted on text knows which words are likely, and reads nothing else.
    """
    sums: dict[int, _Sums] = {}
    width = layers.tokens.shape[1]
    needed, drawn = max(FEWEST_TOKENS, TOKENS_PER_WIDTH * width), 0
    ids = random_ids(layers, -(-needed // tokens), tokens, seed, "readable")
    for batch in ids.split(max(1, AT_ONCE // tokens)):
        inputs = layers.embed(batch)
        with torch.no_grad():
            found = layers.states(inputs, chosen)
        for layer in chosen:
            rows = found[layer].reshape(-1, found[layer].shape[-1])
            sums.setdefault(layer, _Sums.of(rows.shape[1], width, rows)).add(rows, inputs.reshape(-1, width))
        drawn += batch.numel()
    # One by one out of the table: the sums of twelve layers of 768 take 100 MB.
    maps = {layer: sums.pop(layer).solved(drawn) for layer in list(sums)}
    for layer, solved in maps.items():
        if not torch.isfinite(solved).all():
            raise Failed("not_finite", f"the outputs of layer {layer} for random tokens hold NaN or infinite values")
    return Readout(maps)


@dataclass
class _Sums:
    """What a regression needs: sums of rows, of embeddings, and of their products."""

    products: torch.Tensor
    crossed: torch.Tensor
    rows: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, width: int, embedding: int, like: torch.Tensor) -> _Sums:
        shapes = ((width, width), (width, embedding), (width,), (embedding,))
        return cls(*(torch.zeros(shape, dtype=torch.float64, device=like.device) for shape in shapes))

    def add(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        left, right = rows.double(), targets.double()
        self.products += left.T @ left
        self.crossed += left.T @ right
        self.rows += left.sum(dim=0)
        self.targets += right.sum(dim=0)

    def solved(self, count: int) -> torch.Tensor:
        mean, target = self.rows / count, self.targets / count
        products = self.products - count * torch.outer(mean, mean)
        crossed = self.crossed - count * torch.outer(mean, target)
        ridge = RIDGE * products.diagonal().mean() + RIDGE_FLOOR * self.products.diagonal().mean()
        products.diagonal().add_(ridge.clamp_min(1e-30))
        slope = torch.linalg.solve(products, crossed)
        return torch.cat([slope, (target - mean @ slope)[None]]).float()
