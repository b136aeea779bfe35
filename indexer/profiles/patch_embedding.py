"""Patch embeddings through which the layers of a language model take images: a seeded map, or that of a ViT."""

from __future__ import annotations

import torch

from indexer.errors import AtlasError, Call, Text
from indexer.profiles.layers import HookedLayers, fitting_tokens, patchify
from indexer.profiles.statistics import normal

_CHANNELS = 3
# (patch, side of the image) in pixels for a seeded embedding: the original papers' own if the model is wide enough.
SIZES = ((16, 224), (8, 64), (4, 32))


def seeded_patch_embedding(layers: HookedLayers, seed: int = 0) -> HookedLayers:
    """A language model's layers behind a seeded orthonormal map from patches to the model's width.

    Patches replace tokens; positions are added as for tokens. The map is scaled so that a patch of variance 1
    (of pixels from −1 to 1) is as long as an embedding. Raises AtlasError if the model is too narrow.
    """
    width = layers.tokens.shape[1]
    patch, side = next(((patch, side) for patch, side in SIZES if _CHANNELS * patch * patch <= width), (0, 0))
    if not patch:
        raise AtlasError(
            f"Layers of width {width} are too narrow for a patch of {_CHANNELS} · 4 · 4 numbers.",
            "Choose a wider model.",
        )
    # The largest square of patches for which the model has enough positions.
    side = int(fitting_tokens(layers, (side // patch) ** 2) ** 0.5) * patch
    numbers = _CHANNELS * patch * patch
    random = normal((width, width), seed, "stem").double()
    columns = torch.linalg.qr(random)[0][:numbers].float().to(layers.device)
    length = float(layers.tokens.square().sum(dim=1).mean().sqrt())
    matrix = columns * (length / numbers**0.5)
    return HookedLayers(
        lambda pixels: layers.stem(patchify(2 * pixels - 1, patch) @ matrix),
        layers.blocks,
        patch=patch,
        image_shape=(_CHANNELS, side, side),
    )


def borrowed_patch_embedding(layers: HookedLayers, model: torch.nn.Module, images: HookedLayers) -> HookedLayers:
    """A language model's layers behind the patch convolution of ``model``, a vision transformer with layers ``images``.

    Raises AtlasError if its width differs from the language model's, or it has no such convolution.
    """
    convolution = next((module for module in model.modules() if isinstance(module, torch.nn.Conv2d)), None)
    width = layers.tokens.shape[1]
    if convolution is None or images.patch is None or images.image_shape is None:
        raise AtlasError(
            "The stem's model does not cut images into patches.", Text("Name a ViT, or use ", Call(stem="image"), ".")
        )
    if convolution.out_channels != width:
        raise AtlasError(
            f"The stem makes patches of width {convolution.out_channels}, the model's layers take {width}.",
            Text("Use ", Call(stem="image"), "."),
        )
    side = images.image_shape[1]
    while (side // images.patch) ** 2 > fitting_tokens(layers, (side // images.patch) ** 2):
        side -= images.patch
    embed = convolution.to(layers.device)
    return HookedLayers(
        lambda pixels: layers.stem(embed(2 * pixels - 1).flatten(2).transpose(1, 2)),
        layers.blocks,
        patch=images.patch,
        image_shape=(images.image_shape[0], side, side),
    )
