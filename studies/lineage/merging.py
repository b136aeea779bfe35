"""Weights made without training: merges by mergekit's definitions, and matrices rounded to 8 and 4 bits.

Goddard et al. (2024), "Arcee's MergeKit"; Yadav et al. (2023), TIES; Yu et al. (2024), DARE; Dettmers et al. (2022),
LLM.int8(); Dettmers et al. (2023), QLoRA (NF4). Everything works on one matrix at a time, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SLERP_PARALLEL = 0.9995  # mergekit's DOT_THRESHOLD: nearer than that it interpolates linearly
NF4_BLOCK = 64
NF4 = torch.tensor(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
)  # fmt: skip


def merged(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """One tensor of a merge. ``depth`` (0 … 1): the position of its layer, for recipes that change with depth."""
    return METHODS[how["method"]](name, base, parents, how, depth)


def linear(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """The weighted mean."""
    return _weighted(parents, how["weights"]) / sum(how["weights"])


def task_arithmetic(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """The base plus a weighted sum of the parents' changes."""
    return base + _weighted([parent - base for parent in parents], how["weights"])


def slerp(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """Spherical interpolation of two whole tensors; with several shares they are spread over the depth."""
    shares = how["weights"]
    place = depth * (len(shares) - 1)
    low = min(int(place), max(len(shares) - 2, 0))
    t = shares[low] + (shares[min(low + 1, len(shares) - 1)] - shares[low]) * (place - low)
    if len(shares) > 1 and ("intermediate" in name or "mlp" in name):
        t = 1 - t
    first, second = parents
    cosine = torch.clamp((first * second).sum() / (first.norm() * second.norm()), -1, 1)
    if abs(float(cosine)) > SLERP_PARALLEL:
        return (1 - t) * first + t * second
    angle = torch.arccos(cosine)
    return (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / torch.sin(angle)


def ties(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """Trim each delta to its largest entries, elect a sign for every entry, average those that agree with it."""
    trimmed = [_largest(parent - base, how["density"]) for parent in parents]
    weighted = torch.stack([weight * delta for weight, delta in zip(how["weights"], trimmed, strict=True)])
    weights = torch.tensor(how["weights"]).reshape(-1, *[1] * base.ndim)
    agreeing = (weighted.sign() == weighted.sum(0).sign()) & (weighted != 0)
    share = (weights * agreeing).sum(0)
    return base + (weighted * agreeing).sum(0) / torch.where(share == 0, 1.0, share)


def dare(name: str, base: Tensor, parents: Sequence[Tensor], how: Mapping[str, Any], depth: float) -> Tensor:
    """Drop entries of each delta at random, rescale the others, and add (dare_linear)."""
    draw = torch.Generator().manual_seed(how["seed"] * 1000 + sum(name.encode()))
    kept = [
        torch.bernoulli(torch.full_like(base, how["density"]), generator=draw) * (parent - base) / how["density"]
        for parent in parents
    ]
    return base + _weighted(kept, how["weights"])


METHODS: Mapping[str, Callable[[str, Tensor, Sequence[Tensor], Mapping[str, Any], float], Tensor]] = {
    "linear": linear,
    "task_arithmetic": task_arithmetic,
    "slerp": slerp,
    "ties": ties,
    "dare": dare,
}


def int8(matrix: Tensor) -> Tensor:
    """Rounded to 255 steps of each row's largest entry, and back."""
    step = matrix.abs().amax(dim=1, keepdim=True) / 127
    return (matrix / step).round() * step


def nf4(matrix: Tensor) -> Tensor:
    """Each block of 64 entries rounded to the 16 levels of NF4 times its largest, and back."""
    blocks = matrix.reshape(-1, NF4_BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    codes = (blocks / largest)[..., None].sub(NF4).abs().argmin(dim=-1)
    return (NF4[codes] * largest).reshape(matrix.shape)


def _weighted(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return torch.stack([weight * tensor for weight, tensor in zip(weights, tensors, strict=True)]).sum(0)


def _largest(delta: Tensor, density: float) -> Tensor:
    """The ``density`` largest entries, zeros elsewhere."""
    kept = max(1, int(density * delta.numel()))
    chosen = delta.abs().flatten().topk(kept).indices
    mask = torch.zeros(delta.numel())
    mask[chosen] = 1
    return delta * mask.reshape(delta.shape)
