"""Images that a person names, and those that come with scikit-learn, as pixels from 0 to 1."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from indexer.errors import AtlasError
from indexer.profiles.probes import Probe, image_probe
from indexer.regular_files import read_regular

MOST_BYTES = 64 << 20
MOST_PIXELS = 1 << 26
DIGITS = 14
HINT = "Give a PNG or JPEG file."
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def read_image(path: Path, shape: tuple[int, int, int]) -> torch.Tensor:
    """An image file as (channels, height, width) from 0 to 1, the middle square of it scaled.

    Raises AtlasError where it is none, or has more than MOST_PIXELS: its header is read before a pixel is.
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
        raise AtlasError(f"{path} is no image that can be read ({type(error).__name__}).", HINT) from error
    found = torch.from_numpy(pixels)
    return found[None] if found.ndim == 2 else found.permute(2, 0, 1)


def named_images(paths: Sequence[Path], shape: tuple[int, int, int]) -> Probe:
    """A probe of image files."""
    found = [read_image(path, shape) for path in paths]
    for path, pixels in zip(paths, found, strict=True):
        if not float(pixels.flatten(1).std(dim=1).max()) > 0:
            raise AtlasError(f"{path} has one colour only: there is nothing in it to lose.", "Give another image.")
    return image_probe(torch.stack(found))


def shipped_images(shape: tuple[int, int, int]) -> Probe:
    """scikit-learn's digits, and the middle of its two photographs, in the model's own size."""
    from sklearn.datasets import load_digits, load_sample_images

    digits = torch.tensor(load_digits().images[:DIGITS] / 16, dtype=torch.float32)[:, None]
    photographs = []
    for image in load_sample_images().images:
        pixels = torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1) / 255
        side = min(pixels.shape[1:])
        top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
        photographs.append(pixels[:, top : top + side, left : left + side])
    return image_probe(torch.stack([_fitted(one, shape) for one in (*digits, *photographs)]))


def _fitted(pixels: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    channels = pixels.mean(dim=0, keepdim=True) if shape[0] == 1 else pixels.expand(shape[0], -1, -1)
    return torch.nn.functional.interpolate(
        channels[None], size=shape[1:], mode="bilinear", antialias=True, align_corners=False
    )[0].clamp(0, 1)


def images_sha256(paths: Sequence[Path]) -> str:
    """Of the files' content, one after the other. Raises AtlasError where one cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    """Of a regular file. Raises AtlasError where it is none, or has more than MOST_BYTES."""
    try:
        return read_regular(path, most=MOST_BYTES, through_links=True)
    except FileNotFoundError as error:
        raise AtlasError(f"There is no file {path}.", HINT) from error
    except OSError as error:
        raise AtlasError(f"{path} cannot be read: {error.strerror}.", HINT) from error
