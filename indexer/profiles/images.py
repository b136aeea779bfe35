"""Images as pixels from 0 to 1, from files or from scikit-learn, and patch embeddings for language models."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from indexer.errors import AtlasError
from indexer.profiles.layers import HookedLayers, fitting_tokens, patchify
from indexer.profiles.statistics import normal
from indexer.regular_files import read_regular

MOST_BYTES = 64 << 20
MOST_PIXELS = 1 << 26
DIGITS = 14
HINT = "Give a PNG or JPEG file."
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
CHANNELS = 3
# (patch, side of the image) in pixels for a seeded embedding: the original papers' own if the model is wide enough.
SIZES = ((16, 224), (8, 64), (4, 32))


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """The middle square of an image file, scaled to ``shape`` (channels, height, width), from 0 to 1.

    Raises AtlasError if it is not an image, or has more than MOST_PIXELS by its header, which is read first.
    """
    from PIL import Image, UnidentifiedImageError

    too_many = AtlasError(f"{path} has more than {MOST_PIXELS} pixels.", HINT)
    content = BytesIO(_content(path))
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning), \
                Image.open(content, formats=FORMATS) as image:  # fmt: skip
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise too_many
            side = min(width, height)
            box = ((width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2)
            square = image.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]), box=box)
            pixels = np.asarray(square, dtype=np.float32) / 255
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_many from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise AtlasError(f"{path} cannot be read as an image ({type(error).__name__}).", HINT) from error
    found = torch.from_numpy(pixels)
    return found[None] if found.ndim == 2 else found.permute(2, 0, 1)


def read_images(paths: Sequence[Path], shape: tuple[int, int, int]) -> torch.Tensor:
    """Image files as (images, channels, height, width). Raises AtlasError as ``read_image``, or for a single colour."""
    found = [read_image(path, shape) for path in paths]
    for path, pixels in zip(paths, found, strict=True):
        if not float(pixels.flatten(1).std(dim=1).max()) > 0:
            raise AtlasError(f"{path} has one colour only, so no layer can lose any of it.", "Give another image.")
    return torch.stack(found)


def shipped_images(shape: tuple[int, int, int]) -> torch.Tensor:
    """scikit-learn's digits, and the middle of its two photographs, as (images, *shape)."""
    from sklearn.datasets import load_digits, load_sample_images

    digits = torch.tensor(load_digits().images[:DIGITS] / 16, dtype=torch.float32)[:, None]
    squares = list(digits)
    for image in load_sample_images().images:
        pixels = torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1) / 255
        side = min(pixels.shape[1:])
        top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
        squares.append(pixels[:, top : top + side, left : left + side])
    found = []
    for square in squares:
        channels = square.mean(dim=0, keepdim=True) if shape[0] == 1 else square.expand(shape[0], -1, -1)
        scaled = torch.nn.functional.interpolate(
            channels[None], size=shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
        found.append(scaled[0].clamp(0, 1))
    return torch.stack(found)


def images_sha256(paths: Sequence[Path]) -> str:
    """sha256 of the files' contents, in order. Raises AtlasError if one cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    """The bytes of a regular file. Raises AtlasError if it is something else, or has more than MOST_BYTES."""
    try:
        return read_regular(path, most=MOST_BYTES, through_links=True)
    except FileNotFoundError as error:
        raise AtlasError(f"There is no file {path}.", HINT) from error
    except OSError as error:
        raise AtlasError(f"{path} cannot be read: {error.strerror}.", HINT) from error


def seeded_patch_embedding(layers: HookedLayers, seed: int = 0) -> HookedLayers:
    """A language model's layers behind a seeded orthonormal map from patches to the model's width.

    Patches take the place of tokens; positions are added as for tokens. The map is scaled so that a patch of variance 1
    (of pixels from −1 to 1) is as long as an embedding. Raises AtlasError if the model is too narrow.
    """
    width = layers.tokens.shape[1]
    patch, side = next(((patch, side) for patch, side in SIZES if CHANNELS * patch * patch <= width), (0, 0))
    if not patch:
        raise AtlasError(
            f"Layers of width {width} are too narrow for a patch of {CHANNELS} · 4 · 4 numbers.",
            "Choose a wider model.",
        )
    # The largest square of such patches that the positions hold.
    side = int(fitting_tokens(layers, (side // patch) ** 2) ** 0.5) * patch
    numbers = CHANNELS * patch * patch
    drawn = normal((width, width), seed, "stem").double()
    columns = torch.linalg.qr(drawn)[0][:numbers].float().to(layers.device)
    length = float(layers.tokens.square().sum(dim=1).mean().sqrt())
    matrix = columns * (length / numbers**0.5)
    return HookedLayers(
        lambda pixels: layers.stem(patchify(2 * pixels - 1, patch) @ matrix),
        layers.blocks,
        patch=patch,
        image_shape=(CHANNELS, side, side),
    )


def borrowed_patch_embedding(layers: HookedLayers, model: torch.nn.Module, images: HookedLayers) -> HookedLayers:
    """A language model's layers behind the patch convolution of ``model``, a vision transformer with layers ``images``.

    Raises AtlasError if its width differs from the language model's, or it has no such convolution.
    """
    convolution = next((one for one in model.modules() if isinstance(one, torch.nn.Conv2d)), None)
    width = layers.tokens.shape[1]
    if convolution is None or images.patch is None or images.image_shape is None:
        raise AtlasError("The stem's model does not cut images into patches.", "Name a ViT, or use `stem='image'`.")
    if convolution.out_channels != width:
        raise AtlasError(
            f"The stem makes patches of width {convolution.out_channels}, the model's layers take {width}.",
            "Use `stem='image'`.",
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
