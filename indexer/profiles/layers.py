"""A model as a function of its input, layer by layer.

h_l (l = 1 … L) is the output of block l, h_0 the input of the first block. The input is continuous: embeddings
(sequences, positions, width) before anything is added to them, or pixels (images, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from indexer.errors import AtlasError

Stem = Callable[[torch.Tensor], torch.Tensor]
States = dict[int, torch.Tensor]

# Behind a mask nothing moves at all; an untrained encoder moves by little.
SAME = 1e-9


class Layers:
    """A stem and the blocks behind it.

    ``stem`` is an ``nn.Embedding`` (then the inputs are its rows), or anything that turns the continuous input into
    h_0. ``vocabulary`` (tokens, width) holds what an input position may be, where inputs are tokens; ``special_ids``
    are tokens that are never drawn. ``patch`` is the side of a patch in pixels where inputs are images of
    ``image_shape`` (channels, height, width) with values in ``pixel_range``.

    A block is any module or function; where it returns a tuple, its first part counts.
    """

    def __init__(
        self,
        stem: Stem | nn.Module,
        blocks: Sequence[Callable[[torch.Tensor], Any]],
        *,
        vocabulary: torch.Tensor | None = None,
        special_ids: Collection[int] = (),
        patch: int | None = None,
        image_shape: tuple[int, int, int] | None = None,
        pixel_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        if isinstance(stem, nn.Embedding):
            special_ids = {*special_ids, *([] if stem.padding_idx is None else [stem.padding_idx])}
            vocabulary, stem = stem.weight, _unchanged
        self.stem: Stem = stem
        self.blocks = list(blocks)
        self.vocabulary = None if vocabulary is None else vocabulary.detach()
        self.special_ids = frozenset(special_ids)
        self.patch = patch
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        if vocabulary is None and (patch is None or image_shape is None):
            raise ValueError("layers need a vocabulary, or a patch and an image_shape")

    @property
    def depth(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    @property
    def takes_images(self) -> bool:
        """Whether inputs are pixels."""
        return self.patch is not None

    @property
    def tokens(self) -> torch.Tensor:
        """The vocabulary (tokens, width). Raises AtlasError where inputs are images."""
        if self.vocabulary is None:
            raise AtlasError("This model takes images: it has no words.", "Ask for pictures, or name a text model.")
        return self.vocabulary

    @cached_property
    def ordinary_ids(self) -> torch.Tensor:
        """The ids that may be drawn and guessed: all but the special ones."""
        allowed = torch.ones(len(self.tokens), dtype=torch.bool)
        special = [one for one in self.special_ids if 0 <= one < len(allowed)]
        allowed[special] = False
        return allowed.nonzero()[:, 0]

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return torch.device("cpu") if self.vocabulary is None else self.vocabulary.device

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (sequences, positions) as the continuous input."""
        return self.tokens[ids.to(self.device)]

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers; nothing deeper is computed.

        Raises AtlasError where a layer does not exist.
        """
        self.check(chosen)
        found: States = {}
        hidden = self.stem(inputs)
        for layer in range(max(chosen, default=0) + 1):
            if layer:
                # A copy: a block that works in place must not change what is kept, nor what was asked.
                hidden = first_part(self.blocks[layer - 1](hidden.clone()))
            if layer in chosen:
                found[layer] = hidden
        return found

    def state(self, inputs: torch.Tensor, layer: int) -> torch.Tensor:
        """h_l alone."""
        return self.states(inputs, [layer])[layer]

    def check(self, chosen: Collection[int]) -> None:
        """Raises AtlasError where one of the layers does not exist."""
        for layer in chosen:
            if not 0 <= layer <= self.depth:
                raise AtlasError(f"There is no layer {layer}.", f"The layers are 1 to {self.depth}.")

    def by_position(self, values: torch.Tensor) -> torch.Tensor:
        """Sum what belongs to the inputs (n, …) by token or by patch: (n, positions)."""
        if self.patch is None:
            return values.sum(dim=-1)
        return patches_of(values, self.patch).sum(dim=-1)

    def is_causal(self, positions: int) -> bool:
        """Whether no position of so many sees a later one, found by changing the last token."""
        if self.takes_images:
            return False
        generator = torch.Generator().manual_seed(0)
        places = torch.randint(len(self.ordinary_ids), (1, positions), generator=generator)
        inputs = self.embed(self.ordinary_ids[places])
        other = inputs.clone()
        other[:, -1] += 10 * self.tokens.std()
        with torch.no_grad():
            before, after = self.state(inputs, self.depth), self.state(other, self.depth)
        moved = (after - before)[:, :-1].norm()
        return bool(moved <= SAME * before.norm())


def gradient_of(value: torch.Tensor, inputs: torch.Tensor, *, again: bool = False) -> torch.Tensor:
    """∂value/∂inputs; zero where nothing of the value hangs on them. ``again``: it will be asked for once more."""
    if not value.requires_grad:
        return torch.zeros_like(inputs)
    (found,) = torch.autograd.grad(value, inputs, retain_graph=again, allow_unused=True)
    return torch.zeros_like(inputs) if found is None else found


@contextmanager
def as_used(layers: Layers) -> Iterator[None]:
    """Modules as they are used, not trained: no dropout; afterwards as they were."""
    modules = [one for one in (layers.stem, *layers.blocks) if isinstance(one, nn.Module)]
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _unchanged(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def first_part(output: Any) -> torch.Tensor:
    """What a block returns, or the first part of it."""
    found = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(found, torch.Tensor)
    return found


def patches_of(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Images (n, channels, height, width) as patches (n, patches, channels · side²), left to right, then down."""
    count, channels, height, width = pixels.shape
    cut = pixels.reshape(count, channels, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, (height // side) * (width // side), channels * side * side)


def images_of(patches: torch.Tensor, side: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The inverse of ``patches_of`` for images of ``shape`` (channels, height, width)."""
    channels, height, width = shape
    cut = patches.reshape(-1, height // side, width // side, channels, side, side)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, height, width)


def chosen_layers(depth: int, most: int = 12) -> list[int]:
    """All layers up to ``most``, else that many evenly spaced, the last always."""
    if depth <= most:
        return list(range(1, depth + 1))
    return sorted({round(step * depth / most) for step in range(1, most + 1)})
