"""What is planted: each kind of change at strengths from hardly there to strong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from indexer.names import DeltaKey
from studies.kinds.weights import WRITING, Weights

Random = torch.Generator
Change = Callable[[Weights, Random, float], Weights]


@dataclass(frozen=True)
class Planted:
    """One kind of change.

    Attributes:
        kind: the label that it should get.
        change: makes the changed weights of one strength.
        strengths: from hardly there to strong, in the unit that ``unit`` names.
        on_trained: whether it is planted in fine-tunes too, not only in the base.
    """

    kind: str
    change: Change
    strengths: tuple[float, ...]
    unit: str
    on_trained: bool = True


def _normal(random: Random, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=random)


def _some(random: Random, count: int, most: int) -> list[int]:
    return torch.randperm(most, generator=random)[:count].tolist()


def _each(weights: Weights, change: Callable[[torch.Tensor], torch.Tensor], keys: Sequence[DeltaKey] = ()) -> Weights:
    made = weights.copy()
    for key in keys or weights.keys:
        made.put(key, change(weights.matrix(key)))
    return made


def by_magnitude(weights: Weights, random: Random, share: float) -> Weights:
    """The smallest numbers of each matrix are zero."""
    return _each(weights, lambda matrix: torch.where(matrix.abs() > matrix.abs().quantile(share), matrix, 0.0))


def at_random(weights: Weights, random: Random, share: float) -> Weights:
    """Random numbers are zero."""
    return _each(weights, lambda matrix: matrix * (torch.rand(matrix.shape, generator=random) >= share))


def neurons_removed(weights: Weights, random: Random, share: float) -> Weights:
    """Whole neurons are zero."""
    made = weights.copy()
    for key in weights.of_family("feedforward2"):
        matrix = weights.matrix(key)
        matrix[:, _some(random, max(1, round(share * matrix.shape[1])), matrix.shape[1])] = 0
        made.put(key, matrix)
    return made


def absmax(weights: Weights, random: Random, bits: float) -> Weights:
    """Each row in integers of so many bits, by its largest number, and back."""
    most = 2 ** (bits - 1) - 1

    def rounded(matrix: torch.Tensor) -> torch.Tensor:
        scale = matrix.abs().amax(dim=1, keepdim=True) / most
        return (matrix / scale).round() * scale

    return _each(weights, rounded)


def by_tensor(weights: Weights, random: Random, bits: float) -> Weights:
    """The same with one scale for a matrix."""
    most = 2 ** (bits - 1) - 1
    return _each(weights, lambda matrix: (matrix / (matrix.abs().max() / most)).round() * matrix.abs().max() / most)


def in_groups(weights: Weights, random: Random, bits: float) -> Weights:
    """Groups of 32 of a row between their smallest and largest number, with scales in float16 (as GPTQ, AWQ, GGUF)."""

    def rounded(matrix: torch.Tensor) -> torch.Tensor:
        groups = matrix.reshape(-1, 32)
        low = groups.amin(dim=1, keepdim=True)
        scale = ((groups.amax(dim=1, keepdim=True) - low) / (2**bits - 1)).half().float()
        return (((groups - low) / scale).round() * scale + low).reshape(matrix.shape)

    return _each(weights, rounded)


def float8(weights: Weights, random: Random, share: float) -> Weights:
    """Numbers of 8 bits (e4m3), with a scale for each row; of a share of the matrices."""

    def rounded(matrix: torch.Tensor) -> torch.Tensor:
        scale = matrix.abs().amax(dim=1, keepdim=True) / 448
        return (matrix / scale).to(torch.float8_e4m3fn).float() * scale

    chosen = _some(random, max(1, round(share * len(weights.keys))), len(weights.keys))
    return _each(weights, rounded, [weights.keys[number] for number in chosen])


def noised(weights: Weights, random: Random, share: float) -> Weights:
    """Independent normal numbers, of a share of each matrix's standard deviation."""
    return _each(weights, lambda matrix: matrix + share * matrix.std() * _normal(random, *matrix.shape))


def abliterated(weights: Weights, random: Random, strength: float) -> Weights:
    """W − strength · r rᵀW in all matrices that write into the residual stream, and in the embedding."""
    embedding = weights.tensors[weights.embedding]
    rows = embedding[_some(random, 16, len(embedding))]
    direction = rows[:8].mean(dim=0) - rows[8:].mean(dim=0) + 0.1 * rows.std() * _normal(random, rows.shape[1])
    direction = direction / direction.norm()
    keys = [key for key in weights.keys if key.family in WRITING]
    made = _each(weights, lambda matrix: matrix - strength * torch.outer(direction, direction @ matrix), keys)
    made.tensors[weights.embedding] = embedding - strength * torch.outer(embedding @ direction, direction)
    return made


def _low_rank(weights: Weights, random: Random, keys: Sequence[DeltaKey], rank: int, size: float) -> Weights:
    """Products of factors, of a share of each matrix's norm; the factors' directions decay like those of training."""

    def change(matrix: torch.Tensor) -> torch.Tensor:
        left, right = _normal(random, len(matrix), rank), _normal(random, rank, matrix.shape[1])
        product = left @ (right * torch.arange(1, rank + 1)[:, None] ** -0.5)
        return matrix + size * matrix.norm() / product.norm() * product

    return _each(weights, change, keys)


def rome(weights: Weights, random: Random, size: float) -> Weights:
    """A rank-one change of one matrix that a layer writes with (Meng et al., 2022, arXiv 2202.05262)."""
    keys = list(weights.of_family("feedforward2"))
    return _low_rank(weights, random, [keys[_some(random, 1, len(keys))[0]]], 1, size)


def memit(weights: Weights, random: Random, size: float) -> Weights:
    """Changes of a few facts in two neighbouring layers (Meng et al., 2023, arXiv 2210.07229)."""
    keys = list(weights.of_family("feedforward2"))
    first = _some(random, 1, len(keys) - 1)[0]
    return _low_rank(weights, random, keys[first : first + 2], 1 + _some(random, 1, 6)[0], size)


def lora_merged(weights: Weights, random: Random, size: float) -> Weights:
    """A LoRA merged into the queries and values, or into all matrices, of rank 1 to 16."""
    rank = 2 ** _some(random, 1, 5)[0]
    is_all = _some(random, 1, 2)[0]
    keys = list(weights.keys if is_all else weights.of_family("query", "value"))
    return _low_rank(weights, random, keys, rank, size)


def tokens_reset(weights: Weights, random: Random, count: float) -> Weights:
    """Rows of the embedding written anew: zeros, the mean row, or random numbers."""
    made = weights.copy()
    embedding = made.tensors[weights.embedding]
    rows = _some(random, int(count), min(len(embedding), 1024))
    fresh = [torch.zeros(len(rows), embedding.shape[1]), embedding.mean(dim=0).expand(len(rows), -1)]
    fresh.append(embedding.std() * _normal(random, len(rows), embedding.shape[1]))
    embedding[rows] = fresh[_some(random, 1, 3)[0]]
    return made


def tokens_added(weights: Weights, random: Random, count: float) -> Weights:
    """Rows appended to the embedding."""
    made = weights.copy()
    embedding = made.tensors[weights.embedding]
    fresh = embedding.mean(dim=0) + 0.1 * embedding.std() * _normal(random, int(count), embedding.shape[1])
    for name, tensor in made.tensors.items():
        if tensor.shape == embedding.shape:  # a head of its own
            made.tensors[name] = torch.cat([tensor, fresh])
    made.config["vocab_size"] = len(embedding) + int(count)
    return made


def _depth(weights: Weights) -> int:
    return 1 + max(key.layer for key in weights.keys)


def layers_swapped(weights: Weights, random: Random, count: float) -> Weights:
    """So many pairs of layers in each other's place."""
    order = list(range(_depth(weights)))
    chosen = _some(random, 2 * int(count), len(order))
    for first, second in zip(chosen[::2], chosen[1::2], strict=True):
        order[first], order[second] = second, first
    return weights.with_layers(order)


def layer_repeated(weights: Weights, random: Random, count: float) -> Weights:
    """So many layers are copies of the one before."""
    order = list(range(_depth(weights)))
    for layer in _some(random, int(count), len(order) - 1):
        order[layer + 1] = layer
    return weights.with_layers(order)


def deepened(weights: Weights, random: Random, count: float) -> Weights:
    """Depth up-scaling: the last layers again, after all of them (Kim et al., 2023, arXiv 2312.15166)."""
    depth = _depth(weights)
    return weights.with_layers([*range(depth), *range(depth - int(count), depth)])


def layers_dropped(weights: Weights, random: Random, count: float) -> Weights:
    """Without so many of the layers."""
    depth = _depth(weights)
    dropped = _some(random, int(count), depth)
    return weights.with_layers([layer for layer in range(depth) if layer not in dropped])


def neurons_permuted(weights: Weights, random: Random, share: float) -> Weights:
    """A share of the neurons of one layer, but two at least, in another order; of all layers if it is 1."""
    made = weights.copy()
    layers = range(_depth(weights))
    for layer in layers if share == 1 else _some(random, 1, len(layers)):
        for second in weights.of_family("feedforward2"):
            if second.layer != layer:
                continue
            inner = weights.matrix(second).shape[1]
            chosen = torch.tensor(_some(random, max(2, round(share * inner)), inner))
            order = torch.arange(inner)
            order[chosen] = chosen.roll(1)
            for key in weights.keys:
                if key.layer == layer and key.stack == second.stack and key.family in ("feedforward1", "gate"):
                    made.put(key, weights.matrix(key)[order])
            made.put(second, weights.matrix(second)[:, order])
    return made


def stream_permuted(weights: Weights, random: Random, share: float) -> Weights:
    """A share of the coordinates of the residual stream in another order."""
    chosen = torch.tensor(_some(random, max(2, round(share * weights.width)), weights.width))
    order = torch.arange(weights.width)
    order[chosen] = chosen.roll(1)
    made = weights.copy()
    for key in weights.keys:
        matrix = weights.matrix(key)
        made.put(key, matrix[order] if key.family in WRITING else matrix[:, order])
    made.tensors[weights.embedding] = weights.tensors[weights.embedding][:, order]
    return made


def rescaled(weights: Weights, random: Random, size: float) -> Weights:
    """What a layer reads is scaled, as where scales are moved into a normalisation (SmoothQuant)."""
    made = weights.copy()
    scales: dict[tuple[str, int], torch.Tensor] = {}
    for key in weights.keys:
        if key.family not in WRITING:
            scale = scales.setdefault((key.stack, key.layer), (size * _normal(random, weights.width)).exp())
            made.put(key, weights.matrix(key) * scale)
    return made


def rotated(weights: Weights, random: Random, size: float) -> Weights:
    """The residual stream in another basis (QuaRot, Ashkboos et al., 2024, arXiv 2404.00456)."""
    turn = torch.linalg.qr(_normal(random, weights.width, weights.width)).Q
    made = weights.copy()
    for key in weights.keys:
        matrix = weights.matrix(key)
        made.put(key, turn @ matrix if key.family in WRITING else matrix @ turn.T)
    return made


def untrained(weights: Weights, random: Random, size: float) -> Weights:
    """Numbers as a new model has: normal of a standard deviation, or uniform (for 0)."""
    made = weights.copy()
    for name, tensor in weights.tensors.items():
        if tensor.ndim == 2:
            uniform = (2 * torch.rand(tensor.shape, generator=random) - 1) / math.sqrt(tensor.shape[1])
            made.tensors[name] = size * _normal(random, *tensor.shape) if size else uniform
    return made


def constant(weights: Weights, random: Random, count: float) -> Weights:
    """So many matrices hold one number."""
    keys = [weights.keys[number] for number in _some(random, int(count), len(weights.keys))]
    number = float(_some(random, 1, 3)[0]) / 100
    return _each(weights, lambda matrix: torch.full_like(matrix, number), keys)


def foreign(weights: Weights, random: Random, count: float) -> Weights:
    """So many matrices are those of an unrelated network with the same scales of rows and columns."""

    def drawn(matrix: torch.Tensor) -> torch.Tensor:
        squares = matrix.square()
        scale = (squares.mean(dim=1, keepdim=True) * squares.mean(dim=0) / squares.mean()).sqrt()
        return scale * _normal(random, *matrix.shape)

    keys = [weights.keys[number] for number in _some(random, int(count), len(weights.keys))]
    return _each(weights, drawn, keys)


def not_finite(weights: Weights, random: Random, count: float) -> Weights:
    """So many rows of one matrix hold a NaN."""
    key = weights.keys[_some(random, 1, len(weights.keys))[0]]
    matrix = weights.matrix(key)
    matrix[_some(random, int(count), len(matrix)), 0] = math.nan
    made = weights.copy()
    made.put(key, matrix)
    return made


SMALL = (0.001, 0.003, 0.01, 0.03, 0.1)
PLANTED: Mapping[str, Planted] = {
    "smallest numbers zero": Planted("pruned", by_magnitude, (0.005, 0.01, 0.05, 0.2, 0.5), "share"),
    "random numbers zero": Planted("pruned", at_random, (0.001, 0.01, 0.1, 0.5), "share"),
    "neurons zero": Planted("pruned", neurons_removed, (0.01, 0.1, 0.5), "share"),
    "integers by row": Planted("quantised", absmax, (8, 6, 4, 3), "bits"),
    "integers by matrix": Planted("quantised", by_tensor, (8, 4), "bits"),
    "integers by group": Planted("quantised", in_groups, (8, 6, 4, 2), "bits"),
    "8-bit floats": Planted("quantised", float8, (0.1, 0.5, 1), "share of matrices"),
    "noise": Planted("noise added", noised, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1), "of the standard deviation"),
    "a direction removed": Planted("abliterated", abliterated, (0.05, 0.1, 0.25, 0.5, 1), "strength", False),
    "ROME": Planted("fact edited", rome, SMALL, "of the norm", False),
    "MEMIT": Planted("fact edited", memit, SMALL, "of the norm", False),
    "LoRA merged": Planted("adapter merged", lora_merged, SMALL, "of the norm", False),
    "tokens reset": Planted("embedding rows reset", tokens_reset, (1, 3, 10, 100), "rows"),
    "tokens added": Planted("embedding rows added", tokens_added, (1, 8, 64), "rows", False),
    "layers swapped": Planted("layers moved", layers_swapped, (1, 2), "pairs"),
    "layers repeated": Planted("layers moved", layer_repeated, (1, 2), "layers"),
    "layers added": Planted("layers moved", deepened, (1, 2), "layers"),
    "layers dropped": Planted("layers moved", layers_dropped, (1, 2), "layers"),
    "neurons permuted": Planted("rearranged", neurons_permuted, (0.01, 0.1, 0.5, 1), "share"),
    "stream permuted": Planted("rearranged", stream_permuted, (0.02, 0.5, 1), "share"),
    "rescaled": Planted("rearranged", rescaled, (0.001, 0.01, 0.1, 1), "log of the factor"),
    "rotated": Planted("rearranged", rotated, (1,), "any angle"),
    "drawn anew": Planted("untrained", untrained, (0.02, 0.05, 0), "standard deviation", False),
    "constant": Planted("broken", constant, (1, 3), "matrices"),
    "of another network": Planted("broken", foreign, (1, 3), "matrices"),
    "NaN": Planted("broken", not_finite, (1, 10), "rows"),
}  # fmt: skip
