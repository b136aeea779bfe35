"""Images again from a layer's output: how far they are from the truth, and in which rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from indexer.profiles.draws import normal, standard_error
from indexer.profiles.layers import Layers, gradient_of, patches_of
from indexer.profiles.recovery import cosine, linear

STEPS = 150
RATE = 0.1


@dataclass(frozen=True)
class SeedImageRecipe:
    """The seeds' own: start N(.7, 1/20), ‖·‖₁ summed, plain descent, rate 1e-3 → 1e-4 linearly."""

    steps: int = 1000
    rate: float = 1e-3
    start_mean: float = 0.7
    start_noise: float = 0.05


@dataclass(frozen=True)
class ImageError:
    """‖a_g − a‖ / ‖a − mean‖ over the images, and ``rows``: the share of its square by row of patches."""

    value: float
    error: float | None
    rows: tuple[float, ...]


def recover_images(layers: Layers, layer: int, target: torch.Tensor, unit: float, seed: int) -> torch.Tensor:
    """Pixels whose h_l comes near ``target``, by Adam on the L1 distance; held to the valid range after the last step.

    Pixels are sought in units of that range, from its middle.
    """
    low, high = layers.pixel_range
    noise = normal((len(target), *_shape(layers)), seed, "start", target.device)
    guess = (0.5 + 0.03 * noise).requires_grad_(True)
    optimizer = torch.optim.Adam([guess], lr=RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * cosine(step, STEPS)
        hidden = layers.state(low + (high - low) * guess, layer)
        loss = ((hidden - target) / unit).abs().mean(dim=(1, 2)).sum()
        guess.grad = gradient_of(loss, guess)
        optimizer.step()
    return (low + (high - low) * guess.detach()).clamp(low, high)


def recover_images_as_seed(
    layers: Layers, layer: int, target: torch.Tensor, seed: int, recipe: SeedImageRecipe
) -> torch.Tensor:
    """The same by the seeds' recipe, in the model's own units."""
    guess = recipe.start_mean + recipe.start_noise * normal((len(target), *_shape(layers)), seed, "start")
    guess = guess.to(target.device)
    for step in range(recipe.steps):
        leaf = guess.requires_grad_(True)
        gradient = gradient_of((layers.state(leaf, layer) - target).abs().sum(), leaf)
        guess = leaf.detach() - linear(step, recipe.steps) * recipe.rate * gradient
        if not torch.isfinite(guess).all():
            return leaf.detach()
    return guess


def image_error(layers: Layers, found: torch.Tensor, truth: torch.Tensor) -> ImageError:
    """How far ``found`` is from ``truth`` (images, channels, height, width)."""
    assert layers.patch is not None
    off = (found - truth).double().square()
    whole = (truth - truth.mean(dim=(2, 3), keepdim=True)).double().square()
    each = (off.flatten(1).sum(dim=1) / whole.flatten(1).sum(dim=1).clamp_min(1e-30)).sqrt()
    by_row = share_by_row(off, layers.patch)
    return ImageError(float(each.mean()), standard_error(each), by_row)


def share_by_row(values: torch.Tensor, side: int) -> tuple[float, ...]:
    """The share of every row of patches in a sum over images (images, channels, height, width)."""
    across = values.shape[3] // side
    rows = patches_of(values.double(), side).sum(dim=(0, 2)).reshape(-1, across).sum(dim=1)
    return tuple((rows / rows.sum().clamp_min(1e-300)).tolist())


def _shape(layers: Layers) -> tuple[int, int, int]:
    assert layers.image_shape is not None
    return layers.image_shape
