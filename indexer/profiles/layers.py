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
# Candidates kept beyond those asked for, so that float32 rounding cannot drop one of them before the exact sort.
_SPARE = 8


class Layers:
    """A stem and the blocks that follow it.

    ``stem`` is an ``nn.Embedding`` (then the inputs are its rows), or any function from the continuous input to h_0.
    ``vocabulary`` (tokens, width) holds the possible inputs of a position where inputs are tokens; ``special_ids`` are
    tokens that are never drawn. For images, ``patch`` is the side of a patch in pixels, ``image_shape`` is (channels,
    height, width) and values lie between 0 and 1.

    A block is any module or function; of a tuple that it returns, the first element is used.
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
        """The ids that may be drawn and guessed: all but the special ones."""
        allowed = torch.ones(len(self.tokens), dtype=torch.bool)
        special = [one for one in self.special_ids if 0 <= one < len(allowed)]
        allowed[special] = False
        return allowed.nonzero()[:, 0]

    @property
    def device(self) -> torch.device:
        """The device it computes on: that of the first block's weights, else of the vocabulary."""
        first = self.blocks[0] if self.blocks else None
        weights = next(first.parameters(), self.vocabulary) if isinstance(first, nn.Module) else self.vocabulary
        return torch.device("cpu") if weights is None else weights.device

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (sequences, positions) as the continuous input. Raises AtlasError if the model lacks one."""
        # Those of a tokenizer come from the processor; those that were computed on a GPU are looked up without a wait.
        if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.tokens):
            raise AtlasError(
                f"The model has {len(self.tokens)} tokens, the input has token {int(ids.max())}.",
                "Its tokenizer does not fit its weights: choose another model.",
            )
        return self.tokens[ids.to(self.device)]

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers, which exist; nothing deeper is computed."""
        found: States = {}
        hidden = self.stem(inputs)
        for layer in range(max(chosen, default=0) + 1):
            if layer:
                # A copy: a block that works in place must change neither the input nor an earlier layer's output.
                hidden = _first_part(self.blocks[layer - 1](hidden.clone()))
            if layer in chosen:
                found[layer] = hidden
        return found

    def state(self, inputs: torch.Tensor, layer: int) -> torch.Tensor:
        """h_l alone."""
        return self.states(inputs, [layer])[layer]

    def choose(self, wanted: Collection[int] | None = None) -> list[int]:
        """The layers ``wanted``, by default those of ``chosen_layers``. Raises AtlasError if one does not exist."""
        chosen = list(wanted or chosen_layers(self.depth))
        for layer in chosen:
            if not 0 <= layer <= self.depth:
                raise AtlasError(f"There is no layer {layer}.", f"The layers are 1 to {self.depth}.")
        return chosen

    def by_position(self, values: torch.Tensor) -> torch.Tensor:
        """Sum values of the inputs' shape (n, …) by token or by patch: (n, positions)."""
        if self.patch is None:
            return values.sum(dim=-1)
        return patchify(values, self.patch).sum(dim=-1)

    def is_causal(self, positions: int) -> bool:
        """Whether no position of a sequence of this length sees a later one; tested by changing the last token."""
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


class HookedLayers(Layers):
    """The layers of a real model, taken by forward hooks on its blocks.

    ``stem`` calls the whole model on the continuous input; ``blocks`` are modules of it, each called once, in order.
    The forward pass stops after the deepest layer asked for. ``output_hidden_states`` would not do: its last entry
    comes after a final norm in GPT-2 and Llama.

    With ``takes_inputs``, a layer's state is its block's input instead of its output; the blocks are then modules
    inside the real ones, and there is no layer 0.
    """

    takes_inputs = False

    def states(self, inputs: torch.Tensor, chosen: Collection[int]) -> States:
        """h_l of the chosen layers: the input of the first block, and the outputs of the others."""
        found: States = {}
        last = max(chosen, default=0)

        def keep_input(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            found[0] = _first_part(positional) if positional else named["hidden_states"]
            if last == 0:
                raise _DeepestLayerReached

        def keep_output(layer: int, module: nn.Module, received: Any, output: Any) -> None:
            found[layer] = _first_part(received if self.takes_inputs else output)
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
        return {layer: found[layer] for layer in sorted(chosen)}


class _DeepestLayerReached(Exception):
    """Stops a forward pass."""


class CheckedIndices(TorchDispatchMode):
    """Raises IndexError before an index beyond a table is used.

    The processor raises an error too. A GPU fails later, and with it all that this process does on it from then on.
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


def fitting_tokens(layers: Layers, wanted: int = TOKENS) -> int:
    """How many tokens a sequence may have: ``wanted``, or less if the model has fewer positions.

    Raises AtlasError if not even FEWEST_TOKENS fit.
    """
    for tokens in range(wanted, FEWEST_TOKENS - 1, -1):
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
    best = flat.new_full((len(flat), 0), 0.0)
    found = ids.new_zeros((len(flat), 0))
    for start in range(0, len(ids), _PIECE):
        piece = ids[start : start + _PIECE]
        rows = layers.tokens[piece]
        distances = rows.square().sum(dim=1) - 2 * flat @ rows.T
        best = torch.cat([best, distances], dim=1)
        found = torch.cat([found, piece.expand(len(flat), -1)], dim=1)
        best, places = best.topk(min(count + _SPARE, best.shape[1]), dim=1, largest=False)
        found = found.gather(1, places)
    found = found.sort(dim=1).values
    at_once = max(1, _PIECE // max(1, found.shape[1]))
    ordered = []
    for some, near in zip(flat.split(at_once), found.split(at_once), strict=True):
        distances = (layers.tokens[near].double() - some.double()[:, None]).square().sum(dim=2)
        ordered.append(near.gather(1, distances.sort(dim=1, stable=True).indices))
    return torch.cat(ordered)[:, :count].reshape(*points.shape[:-1], count)


def gradient_of(value: torch.Tensor, inputs: torch.Tensor, *, keep_graph: bool = False) -> torch.Tensor:
    """∂value/∂inputs; zero where the value does not depend on them."""
    if not value.requires_grad:
        return torch.zeros_like(inputs)
    (found,) = torch.autograd.grad(value, inputs, retain_graph=keep_graph, allow_unused=True)
    return torch.zeros_like(inputs) if found is None else found


@contextmanager
def eval_mode(layers: Layers) -> Iterator[None]:
    """Put all modules in evaluation mode (no dropout), and back afterwards."""
    modules = [one for one in (layers.stem, *layers.blocks) if isinstance(one, nn.Module)]
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
    found = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(found, torch.Tensor)
    return found


def patchify(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Images (n, channels, height, width) as patches (n, patches, channels · side²), left to right, then down."""
    count, channels, height, width = pixels.shape
    cut = pixels.reshape(count, channels, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, (height // side) * (width // side), channels * side * side)


def unpatchify(patches: torch.Tensor, side: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The inverse of ``patchify`` for images of ``shape`` (channels, height, width)."""
    channels, height, width = shape
    cut = patches.reshape(-1, height // side, width // side, channels, side, side)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, height, width)


def chosen_layers(depth: int) -> list[int]:
    """All layers up to _MOST_CHOSEN, else that many evenly spaced, always with the last."""
    if depth <= _MOST_CHOSEN:
        return list(range(1, depth + 1))
    return sorted({round(step * depth / _MOST_CHOSEN) for step in range(1, _MOST_CHOSEN + 1)})
