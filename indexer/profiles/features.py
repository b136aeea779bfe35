"""Feature visualisation: the image that a neuron responds to, by gradient ascent on its activation from faint noise.

A step is the gradient over its root mean square, one norm for all pixels. Adam would move every pixel equally far,
however little it matters, and so suggest a broad receptive field where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from indexer.errors import AtlasError
from indexer.profiles.layers import Layers, gradient_of, patchify
from indexer.profiles.statistics import seeded_generator

STEPS = 100
JITTER = 2 / 32  # of the image's side
# The original papers' c in c·Σ(200 − a).
ORIGINAL_WEIGHT = {"words": 0.1, "images": 20.0}


@dataclass(frozen=True)
class Stage:
    """STEPS steps at ``scale`` times the model's image size; rates and blurs change linearly from first to second."""

    scale: float
    rates: tuple[float, float]
    blurs: tuple[float, float] | None
    jitter: float = 0.0


@dataclass(frozen=True)
class Ascent:
    """How to ascend. ``is_plain``: by ``weight`` times the gradient; else by the normalised gradient, then clamped.

    The start is uniform noise in the range ``start``.
    """

    stages: tuple[Stage, ...]
    start: tuple[float, float]
    is_plain: bool = False
    weight: float = 1.0


DEFAULT = Ascent((Stage(1, (0.1, 0.02), (0.8, 0.3), JITTER),), (0.45, 0.55))
SHARP = Ascent((Stage(1, (0.05, 0.01), None),), (0.45, 0.55))


def original_ascent(takes_words: bool, is_plain: bool) -> Ascent:
    """The original papers' method: three octaves with blur and jitter, or (``is_plain``) one without."""
    weight = ORIGINAL_WEIGHT["words" if takes_words else "images"]
    octaves = (
        Stage(1, (0.5, 0.4), (2.4, 0.8)),
        Stage(2.5, (0.4, 0.3), (1.5, 0.4)),
        Stage(600 / 224, (0.3, 0.2), (1.1, 0.3)),
    )
    return Ascent((Stage(1, (0.5, 0.4), None),) if is_plain else octaves, (0.5, 0.6), True, weight)


@dataclass(frozen=True)
class Feature:
    """The image found for a neuron (None: for all neurons together).

    ``image`` (channels, height, width) from 0 to 1; ``activation``: the neuron's on that image, ``best_probe``: the
    highest among the probe images; ``change_by_row`` and ``change_by_column``: the share of the squared change from the
    start by row of patches, from the top, and by column, from the left.
    """

    layer: int
    neuron: int | None
    image: torch.Tensor
    activation: float
    best_probe: float | None
    change_by_row: tuple[float, ...]
    change_by_column: tuple[float, ...]


def find_features(
    layers: Layers,
    layer: int,
    neurons: Sequence[int | None],
    *,
    patch: int | None = None,
    ascent: Ascent = DEFAULT,
    seed: int = 0,
    probe: torch.Tensor | None = None,
) -> list[Feature]:
    """An image for each neuron's mean activation over patches, or at ``patch`` alone; None: all neurons together.

    Raises AtlasError if a neuron or a patch does not exist.
    """
    assert layers.image_shape is not None
    shape = layers.image_shape
    with torch.no_grad():
        width = layers.state(torch.zeros(1, *shape, device=layers.device), layer).shape[-1]
    _check_neurons(layers, neurons, patch, width)
    drawn = torch.rand(shape, generator=seeded_generator(seed, "features")).to(layers.device)
    low, high = ascent.start
    start = (low + (high - low) * drawn).expand(len(neurons), *shape).clone()
    found = start.clone()
    for number, stage in enumerate(ascent.stages):
        found = _climb(layers, layer, neurons, patch, ascent, stage, found, seed + number)
    final = _scaled(found, shape[1:])
    with torch.no_grad():
        reached = _activations(layers, layer, neurons, patch, final)
        best = None
        if probe is not None:
            images = probe.to(layers.device)
            each = [_activations(layers, layer, [neuron] * len(images), patch, images) for neuron in neurons]
            best = torch.stack(each).max(dim=1).values
    shares = [_shares(layers, (after - before)[None]) for after, before in zip(final, start, strict=True)]
    return [
        Feature(layer, neuron, final[place].clamp(0, 1).cpu(), float(reached[place]),
                None if best is None else float(best[place]), *shares[place])
        for place, neuron in enumerate(neurons)
    ]  # fmt: skip


def _check_neurons(layers: Layers, neurons: Sequence[int | None], patch: int | None, width: int) -> None:
    assert layers.image_shape is not None
    assert layers.patch is not None
    for neuron in neurons:
        if neuron is not None and not 0 <= neuron < width:
            raise AtlasError(f"There is no neuron {neuron}.", f"The neurons are 0 to {width - 1}.")
    patches = (layers.image_shape[1] // layers.patch) * (layers.image_shape[2] // layers.patch)
    if patch is not None and not 0 <= patch < patches:
        raise AtlasError(f"There is no patch {patch}.", f"The patches are 0 to {patches - 1}.")


def _climb(
    layers: Layers, layer: int, neurons: Sequence[int | None], patch: int | None, ascent: Ascent, stage: Stage,
    image: torch.Tensor, seed: int,
) -> torch.Tensor:  # fmt: skip
    """One stage. If its size is larger than the model's, each step uses a random crop."""
    assert layers.image_shape is not None
    side = layers.image_shape[1]
    size = round(stage.scale * side)
    found = _scaled(image, (size, size))
    random = seeded_generator(seed, "jitter")
    most = round(stage.jitter * side)
    for step in range(STEPS):
        done = step / STEPS
        rate = stage.rates[0] + (stage.rates[1] - stage.rates[0]) * done
        top, left = torch.randint(0, size - side + 1, (2,), generator=random).tolist()
        down, right = torch.randint(-most, most + 1, (2,), generator=random).tolist() if most else (0, 0)
        leaf = found.detach().requires_grad_(True)
        seen = leaf[..., top : top + side, left : left + side].roll((down, right), dims=(2, 3))
        value = _activations(layers, layer, neurons, patch, seen, is_sum=ascent.is_plain).sum()
        gradient = gradient_of(value, leaf)
        if not ascent.is_plain:
            gradient = gradient / gradient.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
        found = found.detach() + rate * ascent.weight * gradient
        if stage.blurs is not None:
            found = _blurred(found, stage.blurs[0] + (stage.blurs[1] - stage.blurs[0]) * done)
        if not ascent.is_plain:
            found = found.clamp(*layers.pixel_range)
    return found.detach()


def _activations(
    layers: Layers, layer: int, neurons: Sequence[int | None], patch: int | None, pixels: torch.Tensor,
    is_sum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """One number per image: the activation of neuron k on image k."""
    hidden = layers.state(pixels, layer)
    hidden = hidden[:, hidden.shape[1] - layers.by_position(pixels[:1]).shape[1] :]
    if patch is not None:
        hidden = hidden[:, patch : patch + 1]
    picked = [one[:, neuron] if neuron is not None else one for one, neuron in zip(hidden, neurons, strict=True)]
    return torch.stack([one.sum() if is_sum else one.mean() for one in picked])


def _shares(layers: Layers, change: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The squared change by row and by column of patches, each of sum 1."""
    assert layers.patch is not None
    across = change.shape[3] // layers.patch
    squares = patchify(change.double().square(), layers.patch).sum(dim=(0, 2)).reshape(-1, across)
    shares = squares / squares.sum().clamp_min(1e-300)
    return tuple(shares.sum(dim=1).tolist()), tuple(shares.sum(dim=0).tolist())


def _scaled(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    if tuple(image.shape[2:]) == tuple(size):
        return image
    found: torch.Tensor = torch.nn.functional.interpolate(
        image, size=size, mode="bilinear", align_corners=False, antialias=True
    )
    return found


def _blurred(image: torch.Tensor, sigma: float) -> torch.Tensor:
    """Blurred with a 3 × 3 Gaussian kernel."""
    side = torch.exp(torch.tensor([-0.5, 0.0, -0.5], device=image.device) / sigma**2)
    side = side / side.sum()
    kernel = torch.outer(side, side).expand(image.shape[1], 1, 3, 3)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
    return torch.nn.functional.conv2d(padded, kernel, groups=image.shape[1])
