"""Image stems before a language model's layers: patches take the place of words (the seeds' first experiment)."""

from __future__ import annotations

import torch

from indexer.errors import AtlasError
from indexer.profiles.draws import normal
from indexer.profiles.hooked import StemmedLayers
from indexer.profiles.layers import Layers, patches_of
from indexer.profiles.loading import LoadedModel, check_width
from indexer.profiles.probes import fitting_tokens

# (patch, side of the image) in pixels: the seeds' own where the model is wide enough, else small ones.
SIZES = ((16, 224), (8, 64), (4, 32))
CHANNELS = 3


def image_stem(layers: Layers, seed: int = 0) -> StemmedLayers:
    """A seeded orthonormal map from patches to the model's width.

    Scaled so that a patch of variance 1 (of pixels from −1 to 1) is as long as an embedding.
    """
    width = layers.tokens.shape[1]
    patch, side = _fitting(layers, width)
    numbers = CHANNELS * patch * patch
    drawn = normal((width, width), seed, "stem").double()
    columns = torch.linalg.qr(drawn)[0][:numbers].float().to(layers.device)
    length = float(layers.tokens.square().sum(dim=1).mean().sqrt())
    matrix = columns * (length / numbers**0.5)
    return StemmedLayers(
        lambda pixels: patches_of(2 * pixels - 1, patch) @ matrix,
        layers,
        patch=patch,
        image_shape=(CHANNELS, side, side),
    )


def named_stem(layers: Layers, vit: LoadedModel) -> StemmedLayers:
    """The patch convolution of a vision transformer before a language model's layers.

    Raises AtlasError where its width is another, or it has no such convolution.
    """
    convolution = next((one for one in vit.model.modules() if isinstance(one, torch.nn.Conv2d)), None)
    images = vit.layers
    if convolution is None or images.patch is None or images.image_shape is None:
        raise AtlasError("The stem's model does not cut images into patches.", "Name a ViT, or use `stem='image'`.")
    check_width(convolution.out_channels, layers.tokens.shape[1])
    side = images.image_shape[1]
    while (side // images.patch) ** 2 > fitting_tokens(layers, (side // images.patch) ** 2):
        side -= images.patch
    found = convolution.to(layers.device)
    return StemmedLayers(
        lambda pixels: found(2 * pixels - 1).flatten(2).transpose(1, 2),
        layers,
        patch=images.patch,
        image_shape=(images.image_shape[0], side, side),
    )


def _fitting(layers: Layers, width: int) -> tuple[int, int]:
    """The largest patch that the width holds, and the largest square of such patches that the positions hold."""
    for patch, side in SIZES:
        if CHANNELS * patch * patch <= width:
            across = int(fitting_tokens(layers, (side // patch) ** 2) ** 0.5)
            return patch, across * patch
    raise AtlasError(f"Layers of width {width} hold no patch of {CHANNELS} · 4 · 4 numbers.", "Choose a wider model.")
