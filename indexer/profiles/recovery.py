"""The input again, from a layer's output alone: by descent on embeddings, and by a linear map as its start.

A decoder is given h_l and nothing of the input; what it says is compared with the truth elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from indexer.profiles.draws import normal
from indexer.profiles.layers import Layers, gradient_of
from indexer.profiles.neighbours import nearest_tokens

STEPS = 30
RATE = 0.1  # of the standard deviation of the embeddings
START_NOISE = 0.1  # likewise
FINAL_SHARE = 0.1
SHIFT = 0.35  # likewise


@dataclass(frozen=True)
class SeedRecipe:
    """The seeds' own descent: start N(½, 1/20), 0.1·‖h − h*‖₁ summed, plain steps, rate → rate/10 linearly."""

    steps: int = 500
    rate: float = 1.0
    start_mean: float = 0.5
    start_noise: float = 0.05
    weight: float = 0.1


def embedding_sd(layers: Layers) -> float:
    """The standard deviation of the vocabulary's numbers about the mean embedding."""
    rows = layers.tokens
    return float((rows - rows.mean(dim=0)).square().mean().sqrt())


def blank_start(layers: Layers, shape: torch.Size, seed: int) -> torch.Tensor:
    """What one can say of the input without having seen anything: the mean embedding, and a little noise."""
    noise = normal((shape[0], shape[1], layers.tokens.shape[1]), seed, "start", layers.device)
    return layers.tokens.mean(dim=0) + START_NOISE * embedding_sd(layers) * noise


def recover(
    layers: Layers, layer: int, target: torch.Tensor, unit: float, start: torch.Tensor, steps: int = STEPS,
    keep: slice = slice(None),
) -> torch.Tensor:  # fmt: skip
    """Embeddings (sequences, positions, width) whose h_l comes near ``target``, by Adam on the L1 distance.

    ``unit`` is s_l; ``keep``: only these positions of the output are compared.
    """
    rate = RATE * embedding_sd(layers)
    guess = start.detach().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([guess], lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * cosine(step, steps)
        difference = (layers.state(guess, layer) - target)[:, keep] / unit
        loss = difference.abs().mean(dim=(1, 2)).sum()
        guess.grad = gradient_of(loss, guess)
        optimizer.step()
    return guess.detach()


def recover_as_seed(
    layers: Layers, layer: int, target: torch.Tensor, seed: int, recipe: SeedRecipe, keep: slice = slice(None)
) -> torch.Tensor:
    """The same by the seeds' recipe. It may diverge: then what is there is returned."""
    noise = normal((*target.shape[:2], layers.tokens.shape[1]), seed, "start", layers.device)
    guess = recipe.start_mean + recipe.start_noise * noise
    for step in range(recipe.steps):
        leaf = guess.requires_grad_(True)
        loss = recipe.weight * (layers.state(leaf, layer) - target)[:, keep].abs().sum()
        guess = leaf.detach() - linear(step, recipe.steps) * recipe.rate * gradient_of(loss, leaf)
        if not torch.isfinite(guess).all():
            return leaf.detach()
    return guess


def words_of(layers: Layers, embeddings: torch.Tensor, count: int = 1) -> torch.Tensor:
    """The nearest tokens (…, count)."""
    return nearest_tokens(layers, embeddings, count)


def words_as_seed(layers: Layers, embeddings: torch.Tensor, count: int = 1) -> torch.Tensor:
    """The seeds' decoding: the largest entries of e·W⁺, W the vocabulary (tokens, width)."""
    rows = layers.tokens.double()
    ordinary = layers.ordinary_ids.to(rows.device)
    weights = torch.linalg.lstsq(rows.T @ rows, embeddings.reshape(-1, rows.shape[1]).double().T).solution
    scores = rows[ordinary] @ weights
    found = ordinary[scores.topk(min(count, len(ordinary)), dim=0).indices.T]
    return found.reshape(*embeddings.shape[:-1], -1)


@dataclass(frozen=True)
class Closer:
    """The seeds' criterion (4) by sequence: ‖O(e_g) − O(e)‖₁, and ‖O(e′) − O(e)‖₁ with e′ = e + N(0, σ)."""

    found: torch.Tensor
    shifted: torch.Tensor

    @property
    def is_met(self) -> torch.Tensor:
        """1 where the generated input's output lies nearer than the shifted one's, else 0."""
        return (self.found < self.shifted).double()

    @property
    def ratio(self) -> torch.Tensor:
        """How many times nearer it lies."""
        return (self.shifted / self.found.clamp_min(1e-30)).double()


def criterion(
    layers: Layers, layer: int, inputs: torch.Tensor, guess: torch.Tensor, seed: int, shift: float | None = None
) -> Closer:
    """``shift`` is σ, by default SHIFT times the embeddings' standard deviation (1/20 is about that for GPT-2)."""
    size = SHIFT * embedding_sd(layers) if shift is None else shift
    shifted = inputs + size * normal(tuple(inputs.shape), seed, "shift", inputs.device)
    with torch.no_grad():
        truth, found, other = (layers.state(one, layer) for one in (inputs, guess, shifted))
    return Closer(*((one - truth).abs().sum(dim=(1, 2)).cpu() for one in (found, other)))


def cosine(step: int, steps: int) -> float:
    """From 1 to FINAL_SHARE along a cosine."""
    return FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * step / steps)) / 2


def linear(step: int, steps: int) -> float:
    """From 1 to FINAL_SHARE in a straight line."""
    return 1 - (1 - FINAL_SHARE) * step / steps
