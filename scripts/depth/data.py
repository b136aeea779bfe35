"""What the small models learn from: scikit-learn's digits and photographs, and Python's own help texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

SIDE = 32
DIGITS = 10
CLASSES = DIGITS + 2  # and the two photographs
CROPS = 180  # of each photograph, about as many as there are images of a digit


def images(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 3, SIDE, SIDE) from 0 to 1 and their classes, shuffled."""
    from sklearn.datasets import load_digits, load_sample_images

    found = load_digits()
    small = torch.tensor(found.images / 16, dtype=torch.float32)[:, None]
    digits = torch.nn.functional.interpolate(small, SIDE, mode="bilinear", align_corners=False).expand(-1, 3, -1, -1)
    classes = [torch.tensor(found.target, dtype=torch.long)]
    parts = [digits]
    random = np.random.default_rng(seed)
    for number, photograph in enumerate(load_sample_images().images):
        pixels = torch.tensor(np.asarray(photograph), dtype=torch.float32).permute(2, 0, 1) / 255
        parts.append(torch.stack([_crop(pixels, random) for _ in range(CROPS)]))
        classes.append(torch.full((CROPS,), DIGITS + number))
    order = torch.randperm(sum(map(len, parts)), generator=torch.Generator().manual_seed(seed))
    return torch.cat(parts)[order].contiguous(), torch.cat(classes)[order]


def _crop(pixels: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    side = int(random.integers(64, 300))
    top = int(random.integers(pixels.shape[1] - side))
    left = int(random.integers(pixels.shape[2] - side))
    cut = pixels[None, :, top : top + side, left : left + side]
    return torch.nn.functional.interpolate(cut, SIDE, mode="bilinear", antialias=True, align_corners=False)[0]


def token_ids(tokenizer: Path, most: int = 300_000) -> torch.Tensor:
    """Python's help texts (pydoc_data), as ids one after the other."""
    from pydoc_data import topics

    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(tokenizer))
    found.no_truncation()
    texts = [text for _, text in sorted(topics.topics.items())]
    ids = [one for encoding in found.encode_batch(texts, add_special_tokens=False) for one in encoding.ids]
    return torch.tensor(ids[:most])
