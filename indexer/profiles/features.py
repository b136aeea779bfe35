"""Feature visualisation: the image to which a neuron responds, by gradient ascent on its activation from faint noise.

A step is the gradient divided by its root mean square, one norm for all pixels. Adam would move all pixels equally far,
whatever their influence, and so suggest a broad receptive field where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from indexer.errors import AtlasError
from indexer.profiles.layers import Layers, gradient_of, patchify
from indexer.profiles.statistics import seeded_generator

STEPS = 100
UNCHANGED = 0.1
# The original papers' c in c·Σ(200 − a).
_ORIGINAL_WEIGHT = {"words": 0.1, "images": 20.0}


# STEPS steps at a scale of the model's image size; the rate and the blur (if any) change linearly from first to second.
Stage = tuple[float, tuple[float, float], tuple[float, float] | None]


@dataclass(frozen=True)
class Ascent:
    """The settings of an ascent.

    ``is_plain``: steps of ``weight`` times the gradient; else of the normalised gradient, and pixels are clamped.
    ``start``: the range of the uniform noise at the start; ``jitter``: a share of the image's side.
    """

    stages: tuple[Stage, ...]
    start: tuple[float, float]
    jitter: float = 0.0
    is_plain: bool = False
    weight: float = 1.0


DEFAULT = Ascent(((1, (0.1, 0.02), (0.8, 0.3)),), (0.45, 0.55), jitter=2 / 32)
SHARP = Ascent(((1, (0.05, 0.01), None),), (0.45, 0.55))


def original_ascent(takes_words: bool, is_plain: bool) -> Ascent:
    """The original papers' method: three octaves with blur and jitter, or (``is_plain``) one without."""
    weight = _ORIGINAL_WEIGHT["words" if takes_words else "images"]
    octaves: tuple[Stage, ...] = (
        (1, (0.5, 0.4), (2.4, 0.8)),
        (2.5, (0.4, 0.3), (1.5, 0.4)),
        (600 / 224, (0.3, 0.2), (1.1, 0.3)),
    )
    plain: tuple[Stage, ...] = ((1, (0.5, 0.4), None),)
    return Ascent(plain if is_plain else octaves, (0.5, 0.6), is_plain=True, weight=weight)


@dataclass(frozen=True)
class Feature:
    """The image found for a neuron (None: for all neurons together).

    ``image`` (channels, height, width) from 0 to 1; ``activation``: the neuron's on that image, ``best_probe``: the
    highest among the probe images; ``change_by_row`` and ``change_by_column``: the share of the squared change from the
    start by row of patches, from the top, and by column, from the left.

    The other two describe the change by the ascent: the difference from the same run without a gradient.
    ``unchanged``: the share of patches that changed by less than UNCHANGED of the root mean square. ``consistency``:
    the mean cosine of the changes of two patches; 0 if they are unrelated, 1 if every patch shows the same.
    """

    layer: int
    neuron: int | None
    image: torch.Tensor
    activation: float
    best_probe: float | None
    change_by_row: tuple[float, ...]
    change_by_column: tuple[float, ...]
    unchanged: float = 0.0
    consistency: float = 0.0


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
    """For each of ``neurons`` an image that raises its activation.

    - ``neurons``: their numbers; None stands for all neurons together.
    - ``patch``: the patch at which the activation is raised; by default its mean over all patches.
    - ``probe``: images whose activations are compared with that of the result.

    Raises AtlasError if a neuron or a patch does not exist.
    """
    assert layers.image_shape is not None
    assert layers.patch is not None
    shape, side = layers.image_shape, layers.patch
    with torch.no_grad():
        width = layers.state(torch.zeros(1, *shape, device=layers.device), layer).shape[-1]
    for neuron in neurons:
        if neuron is not None and not 0 <= neuron < width:
            raise AtlasError(f"There is no neuron {neuron}.", f"The neurons are 0 to {width - 1}.")
    patches = (shape[1] // side) * (shape[2] // side)
    if patch is not None and not 0 <= patch < patches:
        raise AtlasError(f"There is no patch {patch}.", f"The patches are 0 to {patches - 1}.")

    def activations(pixels: torch.Tensor, neuron_of_image: Sequence[int | None], is_sum: bool = False) -> torch.Tensor:
        """(images,) the activation on each image of its neuron in ``neuron_of_image``."""
        hidden = layers.state(pixels, layer)[:, -patches:]  # without the tokens that a stem puts before the patches
        if patch is not None:
            hidden = hidden[:, patch : patch + 1]
        values = [
            state if neuron is None else state[:, neuron] for state, neuron in zip(hidden, neuron_of_image, strict=True)
        ]
        return torch.stack([value.sum() if is_sum else value.mean() for value in values])

    drawn = torch.rand(shape, generator=seeded_generator(seed, "features")).to(layers.device)
    low, high = ascent.start
    start = (low + (high - low) * drawn).expand(len(neurons), *shape).clone()
    ascended = start.clone()
    idle = start[:1]
    for number, stage in enumerate(ascent.stages):
        ascended = _climb(
            layers, lambda pixels: activations(pixels, neurons, ascent.is_plain), ascent, stage, ascended, seed + number
        )
        idle = _climb(layers, lambda pixels: pixels.new_zeros(1), ascent, stage, idle, seed + number)
    changes = patchify(_scaled(ascended, shape[1:]) - _scaled(idle, shape[1:]), side).double()
    final = _scaled(ascended, shape[1:])
    with torch.no_grad():
        reached = activations(final, neurons)
        best_probe = None
        if probe is not None:
            images = probe.to(layers.device)
            best_probe = [float(activations(images, [neuron] * len(images)).max()) for neuron in neurons]
    features = []
    for index, neuron in enumerate(neurons):
        change = (final[index] - start[index])[None].double().square()
        squares = patchify(change, side).sum(dim=(0, 2)).reshape(-1, shape[2] // side)
        shares = squares / squares.sum().clamp_min(1e-300)
        sizes = changes[index].square().mean(dim=1)
        alike = torch.nn.functional.normalize(changes[index], dim=1).sum(dim=0).square().sum()
        changed_patches = int((sizes > 0).sum())
        features.append(
            Feature(
                layer=layer,
                neuron=neuron,
                image=final[index].clamp(0, 1).cpu(),
                activation=float(reached[index]),
                best_probe=None if best_probe is None else best_probe[index],
                change_by_row=tuple(shares.sum(dim=1).tolist()),
                change_by_column=tuple(shares.sum(dim=0).tolist()),
                unchanged=float((sizes < UNCHANGED**2 * sizes.mean()).double().mean()) if changed_patches else 1.0,
                consistency=(float(alike) - changed_patches) / (changed_patches * (changed_patches - 1))
                if changed_patches > 1
                else 0.0,
            )
        )
    return features


def _climb(
    layers: Layers, activations: Callable[[torch.Tensor], torch.Tensor], ascent: Ascent, stage: Stage,
    image: torch.Tensor, seed: int,
) -> torch.Tensor:  # fmt: skip
    """One stage. If its size is larger than the model's, each step uses a random crop."""
    assert layers.image_shape is not None
    side = layers.image_shape[1]
    scale, rates, blurs = stage
    size = round(scale * side)
    current = _scaled(image, (size, size))
    random = seeded_generator(seed, "jitter")
    most = round(ascent.jitter * side)
    for step in range(STEPS):
        progress = step / STEPS
        rate = rates[0] + (rates[1] - rates[0]) * progress
        top, left = torch.randint(0, size - side + 1, (2,), generator=random).tolist()
        down, right = torch.randint(-most, most + 1, (2,), generator=random).tolist() if most else (0, 0)
        leaf = current.detach().requires_grad_(True)
        crop = leaf[..., top : top + side, left : left + side].roll((down, right), dims=(2, 3))
        gradient = gradient_of(activations(crop).sum(), leaf)
        if not ascent.is_plain:
            gradient = gradient / gradient.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp_min(1e-30)
        current = current.detach() + rate * ascent.weight * gradient
        if blurs is not None:
            current = _blurred(current, blurs[0] + (blurs[1] - blurs[0]) * progress)
        if not ascent.is_plain:
            current = current.clamp(0, 1)
    return current.detach()


def _scaled(image: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    if tuple(image.shape[2:]) == tuple(size):
        return image
    scaled: torch.Tensor = torch.nn.functional.interpolate(
        image, size=size, mode="bilinear", align_corners=False, antialias=True
    )
    return scaled


def _blurred(image: torch.Tensor, sigma: float) -> torch.Tensor:
    """Blurred with a 3 × 3 Gaussian kernel."""
    side = torch.exp(torch.tensor([-0.5, 0.0, -0.5], device=image.device) / sigma**2)
    side = side / side.sum()
    kernel = torch.outer(side, side).expand(image.shape[1], 1, 3, 3)
    padded = torch.nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
    return torch.nn.functional.conv2d(padded, kernel, groups=image.shape[1])
