"""Adapters that rotate or reflect the inputs of a matrix: OFT, BOFT and HRA, as PEFT does (docs/guide/adapters.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from indexer.errors import Skipped
from indexer.untrusted import shown

_NEUMANN_TERMS = 5  # PEFT's default (tuners/oft/config.py)
_MOST_TERMS = 100


def _skew(values: torch.Tensor, size: int) -> torch.Tensor:
    """(k, size·(size−1)/2) entries above the diagonal, row by row → (k, size, size) skew-symmetric."""
    matrices = torch.zeros(len(values), size, size)
    rows, columns = torch.triu_indices(size, size, 1)
    matrices[:, rows, columns] = values
    return matrices - matrices.mT


def _cayley(skew: torch.Tensor) -> torch.Tensor:
    """(I − Q)(I + Q)⁻¹ of each skew-symmetric Q."""
    identity = torch.eye(skew.shape[-1]).expand_as(skew)
    return torch.linalg.solve(identity + skew, identity - skew, left=False)


def oft_blocks(config: Mapping[str, object], values: torch.Tensor, width: int, path: str) -> torch.Tensor:
    """The rotations (k, size, size) of blocks of the input, one after the other."""
    if values.ndim != 2:
        raise Skipped("malformed", f"the rotations of the adapter's {shown(path)} are not a matrix")
    size = (1 + math.isqrt(1 + 8 * values.shape[1])) // 2
    is_shared = config.get("block_share") is True
    count = width // size
    if size * (size - 1) // 2 != values.shape[1] or count * size != width or len(values) != (1 if is_shared else count):
        raise Skipped("shape_mismatch", f"the rotations of the adapter's {shown(path)} do not fit {width} inputs")
    if config.get("coft") is True:
        # Constrained OFT: the generators are scaled back to a length of at most eps/√k.
        eps = config.get("eps", 6e-5)
        if type(eps) not in (int, float):
            raise Skipped("malformed", "eps in adapter_config.json is not a number")
        lengths = torch.linalg.vector_norm(_skew(values, size), dim=(1, 2))
        most = float(eps) / math.sqrt(len(values))  # type: ignore[arg-type]
        values = values * torch.where(lengths > most, most / lengths, 1.0)[:, None]
    skew = _skew(values, size)
    if config.get("use_cayley_neumann", True) is not True:
        rotations = _cayley(skew)
    else:
        # The Neumann series of the Cayley transform. Up to PEFT 0.17 the last term counted twice as well.
        terms = config.get("num_cayley_neumann_terms", _NEUMANN_TERMS)
        if type(terms) is not int or not 1 <= terms <= _MOST_TERMS:
            raise Skipped("malformed", "num_cayley_neumann_terms in adapter_config.json is not a number of terms")
        # PEFT 0.18 began to write its version.
        is_old = "peft_version" not in config
        highest = terms - 1 if is_old or terms < 3 else max(terms - 1, 3)
        rotations, power = torch.eye(size).repeat(len(skew), 1, 1), torch.eye(size).expand_as(skew)
        for degree in range(1, highest + 1):
            power = power @ skew
            rotations += power if degree == highest and terms > 2 and not is_old else 2 * power
    return rotations.expand(count, size, size)


def rotated(weight: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """W · diag(R_1, R_2, …)ᵀ."""
    count, size, _ = blocks.shape
    return torch.einsum("okj,kij->oki", weight.unflatten(1, (count, size)), blocks).flatten(1, 2)


def boft(
    values: torch.Tensor, scales: torch.Tensor, width: int, wrong_shape: Callable[[str], Skipped]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rotations of blocks of the input, each step of permuted inputs (a butterfly), then scales of the rows."""
    if values.ndim != 4 or values.shape[2] != values.shape[3] or values.shape[1] * values.shape[2] != width:
        raise wrong_shape("the rotations")
    steps, count, size, _ = values.shape
    if steps > 1 and (size % 2 or count % 2 ** (steps - 1) or steps > 32):
        raise wrong_shape("the butterflies")
    rotations = _cayley((0.5 * (values - values.mT)).flatten(0, 1)).unflatten(0, (steps, count))
    orders = []
    for step in range(steps):
        order = torch.arange(width)
        if steps > 1:
            # Within blocks that double at every step, the even half-blocks come first.
            length = width // (count // 2**step)
            halves = order.reshape(-1, length // (size // 2), size // 2)
            order = torch.cat((halves[:, 0::2], halves[:, 1::2]), dim=1).flatten()
        orders.append(order)

    def change(weight: torch.Tensor) -> torch.Tensor:
        turned = weight
        for order, blocks in zip(orders, rotations, strict=True):
            turned = rotated(turned[:, torch.argsort(order)], blocks)[:, order]
        return turned * scales - weight

    return change


def hra(directions: torch.Tensor, *, is_orthonormal: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """W · H_1 · H_2 · … with the reflections H = I − 2uuᵀ; with ``is_orthonormal`` of Gram–Schmidt's u."""
    columns: list[torch.Tensor] = []
    for column in directions.unbind(1):
        for earlier in columns if is_orthonormal else ():
            column = column - (earlier @ column) * earlier
        columns.append(column / torch.linalg.vector_norm(column))

    def change(weight: torch.Tensor) -> torch.Tensor:
        turned = weight
        for column in columns:
            turned = turned - 2 * torch.outer(turned @ column, column)
        return turned - weight

    return change
