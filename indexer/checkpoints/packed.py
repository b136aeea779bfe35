"""Matrices of GPTQ and AWQ: codes packed into whole numbers of 32 bits, input by input.

| form | ``qweight`` (int32) | ``qzeros`` (int32) | ``scales`` | value |
|---|---|---|---|---|
| gptq | (in·bits/32, out), packed along the inputs | (groups, out·bits/32) | (groups, out) | \
scale · (code − zero − 1); without − 1 in format gptq_v2 |
| awq (GEMM) | (in, out/8), packed along the outputs | (groups, out/8) | (groups, out) | scale · (code − zero) |

GPTQ (arXiv 2210.17323) takes 2, 3, 4 or 8 bits; ``g_idx`` (in) is the group of each input, which follows the order of
activations if ``desc_act``; without it groups are consecutive. AWQ (arXiv 2306.00978) takes 4 bits; in a number, codes
stand in the order 0 2 4 6 1 3 5 7. The rows of such a matrix do not lie together, so all of it is read. What the codes
are depends on calibration data: they cannot be made again from the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from indexer.checkpoints.quantised_matrix import Codes, QuantisedMatrix
from indexer.checkpoints.stored_tensor import TensorInfo

_BITS = (2, 3, 4, 8)
_AWQ_BITS = 4
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_LARGEST = 2**40


@dataclass(frozen=True)
class PackedMatrix(QuantisedMatrix):
    """The parts are ``qweight``, ``qzeros``, ``scales`` and, of some GPTQ files, ``g_idx``.

    ``groups``: how many there are; ``group``: how many inputs one has, without ``g_idx``; ``shift``: added to zeros.
    """

    form: Literal["gptq", "awq"]
    groups: int
    group: int
    shift: int = 0

    @property
    def label(self) -> str:
        """``4 bits``."""
        return f"{self.bits} bits"

    @property
    def format(self) -> str:
        """See ``QuantisedMatrix``."""
        return self.form.upper()

    def stored_rows(self, rows: object) -> None:
        """All of the tensor is needed."""
        return None

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """See ``QuantisedMatrix``."""
        rows = torch.arange(self.shape[0]) if rows is None else rows
        scales = tensors[self.parts[2]].float()[:, rows]
        zeros = self._unpacked_along_outputs(tensors[self.parts[1]])[:, rows].float() + self.shift
        codes = self._codes(tensors, rows).float()
        if len(self.parts) > 3:
            # A hostile index may name a group that is not there.
            group = tensors[self.parts[3]].long().clamp(0, self.groups - 1)
        else:
            group = torch.arange(self.shape[1]) // self.group
        return ((codes - zeros[group]) * scales[group]).mT.contiguous()

    def codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Codes:
        """A byte for each number."""
        return self._codes(tensors, rows).mT.contiguous().to(torch.uint8).numpy()

    def _codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        """The codes of some outputs, (in, rows)."""
        stored = tensors[self.parts[0]]
        if self.form == "awq":
            return self._unpacked_along_outputs(stored)[:, rows]
        return _unpacked(stored[:, rows].mT, self.bits).mT

    def _unpacked_along_outputs(self, stored: torch.Tensor) -> torch.Tensor:
        codes = _unpacked(stored, self.bits)
        if self.form == "awq":
            codes = codes.unflatten(1, (-1, len(_AWQ_ORDER)))[:, :, list(np.argsort(_AWQ_ORDER))].flatten(1)
        return codes


def _unpacked(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """(rows, n) int32 → (rows, n · 32 / bits): the codes, consecutive from the lowest bit on."""
    octets = stored.contiguous().view(torch.uint8).numpy().reshape(len(stored), -1)
    digits = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(stored), -1, bits)
    return torch.from_numpy(np.packbits(digits, axis=2, bitorder="little")[:, :, 0].astype(np.int32))


def packed_matrices(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, QuantisedMatrix]:
    """The matrices in these forms, by the names that their weights would have. All that is given is untrusted.

    A matrix whose parts contradict each other is left out.
    """
    settings = config.get("quantization_config")
    settings = settings if isinstance(settings, Mapping) else {}
    matrices: dict[str, QuantisedMatrix] = {}
    for name, info in tensors.items():
        module, ending, rest = name.rpartition(".qweight")
        if ending and not rest and info.dtype_name == "I32" and len(info.shape) == 2:
            parts = [tensors.get(f"{module}.{part}") for part in ("qzeros", "scales")]
            matrix = _matrix(info, parts, tensors.get(f"{module}.g_idx"), settings)
            if matrix is not None:
                matrices[f"{module}.weight"] = matrix
    return matrices


def _matrix(
    weight: TensorInfo, parts: list[TensorInfo | None], index: TensorInfo | None, settings: Mapping[str, Any]
) -> PackedMatrix | None:
    """The form of one matrix, or None. Every size is checked, so that decoding cannot fail."""
    zeros, scales = parts
    if zeros is None or scales is None or len(zeros.shape) != 2 or len(scales.shape) != 2:
        return None
    groups, out = scales.shape
    is_consistent = scales.dtype_name in ("F16", "BF16", "F32") and zeros.dtype_name == "I32"
    if not is_consistent or zeros.shape[0] != groups or not (0 < groups < _LARGEST and 0 < out < _LARGEST):
        return None
    names: tuple[str, ...] = (weight.name, zeros.name, scales.name)
    bits = zeros.shape[1] * 32 // out
    if bits not in _BITS or zeros.shape[1] * 32 != out * bits:
        return None
    if bits == _AWQ_BITS and weight.shape[1] * 8 == out and index is None:
        inner = weight.shape[0]
        if settings.get("version") not in (None, "gemm", "GEMM") or inner % groups:
            return None
        return PackedMatrix((out, inner), names, bits, "awq", groups, inner // groups)
    inner = weight.shape[0] * 32 // bits
    if weight.shape[1] != out or weight.shape[0] * 32 != inner * bits or not 0 < inner < _LARGEST:
        return None
    if index is not None:
        if index.dtype_name != "I32" or math.prod(index.shape) != inner:
            return None
        names = (*names, index.name)
    elif inner % groups:
        return None
    is_second = str(settings.get("checkpoint_format", settings.get("format"))) == "gptq_v2"
    return PackedMatrix((out, inner), names, bits, "gptq", groups, max(inner // groups, 1), 0 if is_second else 1)
