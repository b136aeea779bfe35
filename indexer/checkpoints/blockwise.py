"""Matrices that bitsandbytes stores in 4 bits: NF4 or FP4, with or without double quantisation.

A matrix (out, in) is one sequence, row by row, in blocks. A code is a place in ``quant_map``, which holds 16 levels;
the value is that level times the largest absolute value of the block, ``absmax``. With double quantisation ``absmax``
holds codes itself: places in ``nested_quant_map``, times ``nested_absmax`` of a block of them, plus an offset. The
first of two codes in a byte has the upper four bits. ``quant_state`` is JSON in a tensor of bytes: the shape, the sizes
of blocks, the offset, and the dtype from which the matrix was quantised (bitsandbytes, functional.QuantState).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix, octets
from indexer.checkpoints.stored_tensor import TensorInfo
from indexer.errors import WRONG_KINDS, Skipped
from indexer.untrusted import is_count, load_json, shown

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_MOST_STATE = 4096  # bytes of one JSON text
_MOST_STATES = 20_000
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_LARGEST = 2**40
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32)}


@dataclass(frozen=True)
class BlockwiseMatrix(QuantisedMatrix):
    """The parts are codes, ``absmax``, ``quant_map`` and, with double quantisation, the two nested ones.

    ``block``, ``nested_block``: numbers and scales that share a scale; ``source_dtype``: of the matrix before.
    """

    kind: str
    block: int
    source_dtype: torch.dtype
    nested_block: int = 0
    offset: float = 0.0

    @property
    def label(self) -> str:
        """``nf4``, or ``nf4 double`` with double quantisation."""
        return f"{self.kind} double" if self.nested_block else self.kind

    @property
    def format(self) -> str:
        """See ``QuantisedMatrix``."""
        return "bitsandbytes"

    def stored_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each row: the stored tensor has one column."""
        width = self.shape[1] // 2
        return (rows[:, None] * width + np.arange(width)).reshape(-1)

    def whole(self, codes: torch.Tensor) -> torch.Tensor:
        """As it is."""
        return codes

    def _levels_of(self, tensors: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor:
        """The code of every number, (rows, in)."""
        octets = tensors[self.parts[0]].reshape(rows, self.shape[1] // 2)
        return torch.stack((octets >> 4, octets & 15), dim=2).flatten(1).long()

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """See ``QuantisedMatrix``."""
        rows = torch.arange(self.shape[0]) if rows is None else rows
        scales, levels = tensors[self.parts[1]].reshape(-1), tensors[self.parts[2]].float().reshape(-1)
        if self.nested_block:
            nested_levels, nested_scales = (tensors[part].float().reshape(-1) for part in self.parts[3:5])
            scales = nested_levels[scales.long()] * nested_scales[torch.arange(len(scales)) // self.nested_block]
            scales = scales + self.offset
        numbers = rows[:, None] * self.shape[1] + torch.arange(self.shape[1])
        return levels[self._levels_of(tensors, len(rows))] * scales.float()[numbers // self.block]

    def codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Codes:
        """A byte for each number, the rank of its level, in which 0 and −0 are equal; and scales if they are plain."""
        ranks = _ranks(tensors[self.parts[2]].float().reshape(-1))[self._levels_of(tensors, len(rows)).numpy()]
        if self.nested_block or self.shape[1] % self.block:
            return ranks
        scales = tensors[self.parts[1]].reshape(self.shape[0], -1)[rows]
        return np.concatenate([ranks, octets(scales)], axis=1)

    def quantised(self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantised | None:
        """See ``QuantisedMatrix``; None if blocks run on from one row to the next."""
        if self.shape[1] % self.block:
            return None
        blocks = values.to(self.source_dtype).float().unflatten(1, (-1, self.block))
        largest = blocks.abs().amax(2, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        levels = torch.unique(tensors[self.parts[2]].float())
        scaled = (blocks * (1.0 / largest)).flatten(1)
        ranks = torch.bucketize(scaled, (levels[:-1] + levels[1:]) / 2)
        rounded = (levels[ranks].unflatten(1, (-1, self.block)) * largest).flatten(1)
        codes = octets(ranks.to(torch.uint8))
        return Quantised(
            codes if self.nested_block else np.concatenate([codes, octets(largest.flatten(1))], axis=1), rounded
        )


def _ranks(levels: torch.Tensor) -> Codes:
    """The place of each level among the distinct ones, ascending."""
    return torch.unique(levels, return_inverse=True)[1].to(torch.uint8).numpy()


def blockwise_matrices(
    tensors: Mapping[str, TensorInfo], read: Callable[[Collection[str]], Mapping[str, torch.Tensor]]
) -> dict[str, QuantisedMatrix]:
    """The matrices in this form, by their names. ``read``: reads small tensors. All that is given is untrusted.

    Raises Skipped("malformed") for a description that is not JSON, or does not fit the tensors beside it.
    """
    states: dict[str, str] = {}
    for name, info in tensors.items():
        matrix, marker, kind = name.partition(_STATE)
        if marker and kind in _KINDS and matrix in tensors:
            if info.dtype_name != "U8" or not 0 < info.nbytes <= _MOST_STATE or len(states) >= _MOST_STATES:
                raise Skipped("malformed", f"{shown(name)} cannot be a description of a quantised matrix")
            states[name] = matrix
    described = read(states) if states else {}
    matrices: dict[str, QuantisedMatrix] = {}
    for name, matrix in states.items():
        try:
            state = load_json(bytes(described[name].numpy()))
            matrices[matrix] = _matrix(matrix, name, state, tensors)
        except WRONG_KINDS as error:
            raise Skipped("malformed", f"{shown(name)} does not describe {shown(matrix)}") from error
    return matrices


def _matrix(name: str, described: str, state: Any, tensors: Mapping[str, TensorInfo]) -> BlockwiseMatrix:
    """One matrix. Every size is checked, so that decoding cannot fail. Raises one of WRONG_KINDS."""
    out, width = state["shape"]
    block, nested = state["blocksize"], state.get("nested_blocksize") or 0
    offset = float(state.get("nested_offset") or 0.0)
    if not (is_count(out) and is_count(width) and 0 < out < _LARGEST and 0 < width < _LARGEST and width % 2 == 0):
        raise ValueError("not a shape of whole bytes")
    if block not in _BLOCKS or (nested and nested not in _BLOCKS) or not math.isfinite(offset):
        raise ValueError("not sizes of blocks")
    scales = -(-out * width // block)
    parts = {name: ("U8", out * width // 2), f"{name}.absmax": ("U8" if nested else "F32", scales)}
    parts[f"{name}.quant_map"] = ("F32", 16)
    if nested:
        parts[f"{name}.nested_quant_map"] = ("F32", 256)
        parts[f"{name}.nested_absmax"] = ("F32", -(-scales // nested))
    for part, (dtype_name, count) in parts.items():
        info = tensors[part]
        if info.dtype_name != dtype_name or math.prod(info.shape) != count:
            raise ValueError("parts that do not fit")
    if tensors[name].shape != (out * width // 2, 1):
        raise ValueError("codes in another order")
    names = (*parts, described)
    kind = described.rpartition("__")[2]
    dtype = _DTYPES.get(str(state.get("dtype")), torch.float32)
    return BlockwiseMatrix((out, width), names, 4, kind, block, dtype, nested, offset)
