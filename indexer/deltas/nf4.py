"""A base's matrix rounded to 4-bit NormalFloat (NF4), to recognise models that were made from a dequantised base.

NF4 (Dettmers et al. 2023, "QLoRA", arXiv 2305.14314, section 3 and appendix E; the format of bitsandbytes) takes a
matrix (out, in) row by row as one sequence, in blocks of 64 numbers. A number is divided by the largest absolute value
of its block and replaced by the nearest of 16 levels, the quantiles of a normal distribution. Double quantisation also
stores these scales in few bits: minus their mean over the whole matrix, they are divided, in blocks of 256, by their
largest absolute value, and replaced by the nearest of the 256 levels of the dynamic 8-bit type (Dettmers et al. 2022,
"8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861, section 2). Nothing here is random, so a base in
16 or 32 bits gives the same values everywhere.

A fine-tune that was made from such a copy and saved in 16 bits differs from the base by the change of training and by
the error of this rounding, a tenth of the weights' size, which has full rank and does not depend on training.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.layout import Matrix
from indexer.deltas.base import BaseMatrices
from indexer.names import DeltaKey

BLOCK = 64
_SCALES_BLOCK = 256

# The levels as bitsandbytes writes them, float32.
_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_SMALLEST_SCALE = 1e-38  # of a block of zeros
_PIECE = 1 << 20  # numbers that are rounded at a time


def on_grid(
    base: BaseMatrices, key: DeltaKey, lines: NDArray[np.int64] | None, *, first: torch.dtype | None, double: bool
) -> torch.Tensor:
    """The matrix of a base, or some ``lines`` of it (as ``BaseMatrices.lines``), rounded to NF4: (rows, in) float32.

    ``first``: the dtype to which the base was rounded before, None for its own; ``double``: with double quantisation.
    Raises Skipped("base_sampled") if the atlas does not keep the whole matrix.
    """
    matrix = base.layout.by_key[key]
    width = matrix.shape[1]
    if width % BLOCK:  # blocks run on from one row to the next
        tensor = _rounded_first(_module_weight(base, matrix), first).reshape(-1)
        spread = _scales(tensor, None, double=double).repeat_interleave(BLOCK)[: len(tensor)]
        largest = _largest(tensor, BLOCK).repeat_interleave(BLOCK)[: len(tensor)]
        values = (_codes(tensor, largest) * spread).reshape(-1, width)[_out_rows(matrix)]
        if lines is None:
            return values
        return values[:, lines] if matrix.transposed else values[lines]
    rows = np.arange(matrix.shape[0]) if lines is None or matrix.transposed else lines
    key_of_scales = (matrix.key, rows.tobytes(), first, double)
    scales = base.scales.get(key_of_scales)
    if scales is None:
        if double:
            scales = _scales(_module_weight(base, matrix), first, double=True).reshape(-1, width // BLOCK)
            scales = scales[_out_rows(matrix)[rows]]
        else:
            scales = _scales(base.matrix(matrix.key)[rows], first, double=False).reshape(-1, width // BLOCK)
        if lines is not None:  # the scales of samples are few, and the same for all models
            base.scales[key_of_scales] = scales
    weight = base.matrix(matrix.key)
    values = torch.empty(len(rows), width)
    step = max(1, _PIECE // width)
    for start in range(0, len(rows), step):
        part = _rounded_first(weight[rows[start : start + step]], first)
        blocks = part.reshape(len(part), -1, BLOCK)
        levels = _codes(blocks, blocks.abs().amax(2, keepdim=True))
        values[start : start + step] = (levels * scales[start : start + step, :, None]).reshape(part.shape)
    return values[:, lines] if lines is not None and matrix.transposed else values


def _module_weight(base: BaseMatrices, matrix: Matrix) -> torch.Tensor:
    """The weight (out, in) of the module that holds a matrix: fused matrices are quantised together."""
    parts = base.layout.by_tensor[matrix.tensor]
    if matrix.rows is None or sum(part.shape[0] for part in parts) != matrix.stored_rows:
        return base.matrix(matrix.key)
    weight = torch.empty(matrix.stored_rows, matrix.shape[1], dtype=base.matrix(matrix.key).dtype)
    for part in parts:
        weight[_out_rows(part)] = base.matrix(part.key)
    return weight


def _out_rows(matrix: Matrix) -> NDArray[np.int64]:
    """The rows of the module's weight (out, in) that belong to the matrix."""
    rows = np.arange(matrix.shape[0])
    if matrix.rows is None:
        return rows
    group, row = np.divmod(rows, matrix.rows.stop - matrix.rows.start)
    out_rows: NDArray[np.int64] = group * matrix.rows.size + matrix.rows.start + row
    return out_rows


def _rounded_first(values: torch.Tensor, first: torch.dtype | None) -> torch.Tensor:
    return (values if first is None else values.to(first)).to(torch.float32)


def _scales(tensor: torch.Tensor, first: torch.dtype | None, *, double: bool) -> torch.Tensor:
    """The scale of each block of a tensor; if ``double``, after double quantisation."""
    values, step = tensor.reshape(-1), _PIECE // BLOCK * BLOCK
    pieces = [_largest(_rounded_first(part, first), BLOCK) for part in values.split(step)]
    scales = torch.cat(pieces)
    if not double:
        return scales
    mean = scales.mean()
    centred = scales - mean
    largest = _largest(centred, _SCALES_BLOCK).repeat_interleave(_SCALES_BLOCK)[: len(centred)]
    levels = dynamic_levels()
    scaled = (centred * (1.0 / largest.clamp(min=_SMALLEST_SCALE))).clamp(-1, 1)
    return levels[torch.bucketize(scaled, _bounds(levels))] * largest + mean


def _largest(values: torch.Tensor, size: int) -> torch.Tensor:
    """The largest absolute value of each block of ``size`` numbers; the last block may be shorter."""
    full = len(values) // size * size
    largest = values[:full].reshape(-1, size).abs().amax(1)
    return largest if full == len(values) else torch.cat([largest, values[full:].abs().amax()[None]])


def _codes(values: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """The level that is nearest to each value divided by the largest absolute value of its block."""
    levels = torch.tensor(_LEVELS)
    scaled = (values * (1.0 / largest.clamp(min=_SMALLEST_SCALE))).clamp(-1, 1)
    return levels[torch.bucketize(scaled, _bounds(levels))]


def _bounds(levels: torch.Tensor) -> torch.Tensor:
    return (levels[:-1] + levels[1:]) / 2


@cache
def dynamic_levels() -> torch.Tensor:
    """The 256 levels of the signed dynamic 8-bit type: 0, 1, and ± 10^(e − 6) · the centres of 2^e parts of [.1, 1]."""
    levels = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        centres = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)).tolist()
        levels += centres + [-centre for centre in centres]
    return torch.tensor(sorted(levels))
