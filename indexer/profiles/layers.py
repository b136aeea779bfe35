"""A model as a function of its input, layer by layer.

h_l (l = 1 … L) is the output of block l; h_0 is the input of the first block. The input is continuous: embeddings
(sequences, positions, width) before anything is added to them, or pixels (images, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from indexer.errors import AtlasError

Stem = Callable[[torch.Tensor], torch.Tensor]
States = dict[int, torch.Tensor]

# With a causal mask a later token does not change earlier outputs; in an untrained encoder it changes them a little.
SAME = 1e-9
TOKENS = 16  # of a sequence
FEWEST_TOKENS = 4
_MOST_CHOSEN = 12  # layers that are measured by default
_PIECE = 2048  # tokens of the vocabulary that are compared at once: 50,000 do not fit
# Additional candidates, so that float32 rounding cannot drop one of the requested tokens before the exact sort.
_SPARE = 8


class Layers:
    """A stem and the blocks that follow it.

    - ``stem``: an ``nn.Embedding`` (then the inputs are its rows), or any function from the continuous input to h_0.
    - ``blocks``: modules or functions. If one returns a tuple, its first element is used.
    - ``vocabulary`` (tokens, width): the possible inputs of a position if the inputs are tokens.
    - ``special_ids``: tokens that are never drawn.
    - ``patch``, ``image_shape``: for images, the side of a patch in pixels, and (channels, height, width). Pixels lie
      between 0 and 1.
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
    ) -> None:
        if isinstance(stem, nn.Embedding):
            special_ids = {*special_ids, *([] if stem.padding_idx is None else [stem.padding_idx])}
            vocabulary, stem = stem.weight, nn.Identity()
        self.stem: Stem = stem
        self.blocks = list(blocks)
        self.depth = len(self.blocks)
        self.vocabulary = None if vocabulary is None else vocabulary.detach()
        self.special_ids = frozenset(special_ids)
        self.takes_images = patch is not None
        self.patch = patch
        self.image_shape = image_shape
        if vocabulary is None and (patch is None or image_shape is None):
            raise ValueError("layers need a vocabulary, or a patch and an image_shape")

    @property
    def tokens(self) -> torch.Tensor:
        """The vocabulary (tokens, width). Raises AtlasError if inputs are images."""
        if self.vocabulary is None:
            raise AtlasError("This model takes images, not words.", "Ask for pictures, or name a text model.")
        return self.vocabulary

    @cached_property
    def ordinary_ids(self) -> torch.Tensor:
        """The ids that may be drawn and guessed: all except the special ids."""
        is_ordinary = torch.ones(len(self.tokens), dtype=torch.bool)
        special = [token for token in self.special_ids if 0 <= token < len(is_ordinary)]
        is_ordinary[special] = False
        return is_ordinary.nonzero()[:, 0]

    @property
    def device(self) -> torch.device:
        """The device it computes on: that of the first block's weights, else of the vocabulary."""
        first = self.blocks[0] if self.blocks else None
        weights = next(first.parameters(), self.vocabulary) if isinstance(first, nn.Module) else self.vocabulary
        return torch.device("cpu") if weights is None else weights.device

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (sequences, positions) as the continuous input. Raises AtlasError if the model lacks one."""
        # Ids of a tokenizer are on the processor. Ids on a GPU were computed, and a check would wait for the GPU.
        if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.tokens):
            raise AtlasError(
                f"The model has {len(self.tokens)} tokens, the input has token {int(ids.max())}.",
                "Its tokenizer does not fit its weights: choose another model.",
            )
        return self.tokens[ids.to(self.device)]

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers, which must exist. No deeper layer is computed."""
        states: States = {}
        hidden = self.stem(inputs)
        for layer in range(max(chosen, default=0) + 1):
            if layer:
                # A copy, because a block may change its input in place, which is the output of the layer before.
                hidden = _first_part(self.blocks[layer - 1](hidden.clone()))
            if layer in chosen:
                states[layer] = hidden
        return states

    def state(self, inputs: torch.Tensor, layer: int) -> torch.Tensor:
        """h_l alone."""
        return self.states(inputs, [layer])[layer]

    def choose(self, numbers: Collection[int] | None = None) -> list[int]:
        """The layers of these numbers, by default ``chosen_layers``. Raises AtlasError if one does not exist."""
        layers = list(numbers or chosen_layers(self.depth))
        for layer in layers:
            if not 0 <= layer <= self.depth:
                raise AtlasError(f"There is no layer {layer}.", f"The layers are 1 to {self.depth}.")
        return layers

    def by_position(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of the inputs' shape (n, …) by token or by patch: (n, positions)."""
        if self.patch is None:
            return values.sum(dim=-1)
        return patchify(values, self.patch).sum(dim=-1)

    def is_causal(self, positions: int) -> bool:
        """Whether no position of a sequence of this length depends on a later one, tested with another last token."""
        if self.takes_images:
            return False
        generator = torch.Generator().manual_seed(0)
        indices = torch.randint(len(self.ordinary_ids), (1, positions), generator=generator)
        inputs = self.embed(self.ordinary_ids[indices])
        changed = inputs.clone()
        changed[:, -1] += 10 * self.tokens.std()
        with torch.no_grad():
            before, after = self.state(inputs, self.depth), self.state(changed, self.depth)
        difference = (after - before)[:, :-1].norm()
        return bool(difference <= SAME * before.norm())


class HookedLayers(Layers):
    """The layers of a real model, read by forward hooks on its blocks.

    ``stem`` calls the whole model on the continuous input; ``blocks`` are modules of it, each called once, in order.
    The forward pass stops after the deepest requested layer. ``output_hidden_states`` is not used, because its last
    entry comes after a final norm in GPT-2 and Llama.

    With ``takes_inputs``, a layer's state is its block's input instead of its output; the blocks are then modules
    inside the real ones, and there is no layer 0.
    """

    takes_inputs = False

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers: the input of the first block, and the outputs of the others."""
        states: States = {}
        last = max(chosen, default=0)

        def keep_input(module: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            states[0] = _first_part(positional) if positional else keywords["hidden_states"]
            if last == 0:
                raise _DeepestLayerReached

        def keep_output(layer: int, module: nn.Module, received: Any, output: Any) -> None:
            states[layer] = _first_part(received if self.takes_inputs else output)
            if layer == last:
                raise _DeepestLayerReached

        hooks = [self.blocks[0].register_forward_pre_hook(keep_input, with_kwargs=True)]  # type: ignore[attr-defined]
        hooks += [
            block.register_forward_hook(partial(keep_output, layer))  # type: ignore[attr-defined]
            for layer, block in enumerate(self.blocks, start=1)
            if layer in chosen
        ]
        try:
            self.stem(inputs)
        except _DeepestLayerReached:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return {layer: states[layer] for layer in sorted(chosen)}


class _DeepestLayerReached(Exception):
    """Stops a forward pass."""


class CheckedIndices(TorchDispatchMode):
    """Raises IndexError before an index beyond a table is used.

    The processor raises an error itself. A GPU fails later, and then all later work of this process on it fails.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        pairs: Iterable[tuple[int, torch.Tensor | None]] = ()
        match name:
            case "embedding":
                pairs = [(args[0].shape[0], args[1])]
            case "gather" | "index_select":
                pairs = [(args[0].shape[args[1]], args[2])]
            case "index":
                pairs = zip(args[0].shape, args[1], strict=False)
        for size, index in pairs:
            if index is not None and index.dtype != torch.bool and index.numel():
                low, high = map(int, index.aminmax())
                if low < (-size if name == "index" else 0) or high >= size:
                    raise IndexError(f"indices {low} to {high} of {size} rows")
        return func(*args, **kwargs or {})


def fitting_tokens(layers: Layers, most: int = TOKENS) -> int:
    """How many tokens a sequence may have: ``most``, or fewer if the model has fewer positions.

    Raises AtlasError if not even FEWEST_TOKENS fit.
    """
    for tokens in range(most, FEWEST_TOKENS - 1, -1):
        try:
            with torch.no_grad(), CheckedIndices():
                layers.state(layers.embed(layers.ordinary_ids[:1].expand(1, tokens)), 1)
        except (IndexError, RuntimeError):
            continue
        return tokens
    raise AtlasError(f"The model takes fewer than {FEWEST_TOKENS} tokens at a time.", "Choose another model.")


def nearest_tokens(layers: Layers, points: torch.Tensor, count: int = 1) -> torch.Tensor:
    """The ids (…, count) of the ordinary tokens nearest to ``points`` (…, width), nearest first (Euclidean).

    Candidates are found in float32, piece by piece of the vocabulary, then sorted by their distances in float64, ties
    by id.
    """
    flat = points.reshape(-1, points.shape[-1]).to(layers.tokens.dtype)
    ids = layers.ordinary_ids.to(flat.device)
    count = min(count, len(ids))
    nearest_distances = flat.new_full((len(flat), 0), 0.0)
    candidates = ids.new_zeros((len(flat), 0))
    for start in range(0, len(ids), _PIECE):
        piece = ids[start : start + _PIECE]
        rows = layers.tokens[piece]
        distances = rows.square().sum(dim=1) - 2 * flat @ rows.T
        nearest_distances = torch.cat([nearest_distances, distances], dim=1)
        candidates = torch.cat([candidates, piece.expand(len(flat), -1)], dim=1)
        nearest_distances, positions = nearest_distances.topk(
            min(count + _SPARE, nearest_distances.shape[1]), dim=1, largest=False
        )
        candidates = candidates.gather(1, positions)
    candidates = candidates.sort(dim=1).values
    at_once = max(1, _PIECE // max(1, candidates.shape[1]))
    ordered = []
    for points_of_chunk, ids_of_chunk in zip(flat.split(at_once), candidates.split(at_once), strict=True):
        distances = (layers.tokens[ids_of_chunk].double() - points_of_chunk.double()[:, None]).square().sum(dim=2)
        ordered.append(ids_of_chunk.gather(1, distances.sort(dim=1, stable=True).indices))
    return torch.cat(ordered)[:, :count].reshape(*points.shape[:-1], count)


def gradient_of(value: torch.Tensor, inputs: torch.Tensor, *, keep_graph: bool = False) -> torch.Tensor:
    """∂value/∂inputs; zero for inputs on which the value does not depend."""
    if not value.requires_grad:
        return torch.zeros_like(inputs)
    (gradient,) = torch.autograd.grad(value, inputs, retain_graph=keep_graph, allow_unused=True)
    return torch.zeros_like(inputs) if gradient is None else gradient


@contextmanager
def eval_mode(layers: Layers) -> Iterator[None]:
    """Put all modules in evaluation mode (no dropout), and back afterwards."""
    modules = [module for module in (layers.stem, *layers.blocks) if isinstance(module, nn.Module)]
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _first_part(output: Any) -> torch.Tensor:
    """The tensor that a block returns, or the first element of its tuple."""
    tensor = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(tensor, torch.Tensor)
    return tensor


def patchify(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Images (n, channels, height, width) as patches (n, patches, channels · side²), left to right, then down."""
    count, channels, height, width = pixels.shape
    tiles = pixels.reshape(count, channels, height // side, side, width // side, side)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(count, (height // side) * (width // side), channels * side * side)


def unpatchify(patches: torch.Tensor, side: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The inverse of ``patchify`` for images of ``shape`` (channels, height, width)."""
    channels, height, width = shape
    tiles = patches.reshape(-1, height // side, width // side, channels, side, side)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, height, width)


def chosen_layers(depth: int) -> list[int]:
    """All layers of up to _MOST_CHOSEN, else that many evenly spaced layers, always with the last."""
    if depth <= _MOST_CHOSEN:
        return list(range(1, depth + 1))
    return sorted({round(step * depth / _MOST_CHOSEN) for step in range(1, _MOST_CHOSEN + 1)})
