"""Matrices that are stored as codes of a few bits and scales: their forms and their values.

| form | tensors of a matrix (out, in) | value | source |
|---|---|---|---|
| fp8 | ``weight`` F8_E4M3, ``weight_scale_inv`` or ``weight_scale``: one, one a row, or one a block | code · scale | \
DeepSeek-V3 (arXiv 2412.19437, 3.3.2), transformers fp8 and fbgemm_fp8, compressed-tensors float-quantized |
| int8 | ``weight`` I8, ``weight_scale`` as above | code · scale | compressed-tensors int-quantized |
| nvfp4 | ``weight_packed`` or ``weight`` U8 (out, in/2), ``weight_scale`` F8_E4M3 (out, in/16), \
``weight_global_scale`` or ``weight_scale_2`` | E2M1 · scale / global_scale, or E2M1 · scale · scale_2 | \
compressed-tensors nvfp4-pack-quantized; NVIDIA ModelOpt |
| mxfp4 | ``weight_packed`` U8 (out, in/2), ``weight_scale`` U8 (out, in/32) | E2M1 · 2^(scale − 127) | \
OCP Microscaling Formats 1.0 |
| mlx | ``weight`` U32 (out, in·bits/32), ``scales`` and ``biases`` (out, in/group) | code · scale + bias | \
MLX ``quantize``, mode affine |

The first of two E2M1 codes in a byte has the lower four bits; codes of MLX are consecutive from the lowest bit on.

A base in any of these forms is exact: fine-tunes start from these values, rounded to bfloat16, as libraries load
them. A fine-tune in such a form contains a rounding error besides its change. At 8 bits the base is rounded with the
fine-tune's scales before they are compared, so the difference is zero where nothing changed. At 4 bits the step is
larger than the change of most weights, and such a fine-tune is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from indexer.checkpoints.stored_tensor import TensorInfo
from indexer.errors import Skipped
from indexer.untrusted import shown

Form = Literal["fp8", "int8", "nvfp4", "mxfp4", "mlx"]

_CODES = (".weight", ".weight_packed")
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_LARGEST_E4M3 = 448.0
_MOST = 2**40
_PIECE = 1 << 20  # numbers that are decoded at a time


@dataclass(frozen=True)
class QuantisedMatrix:
    """The stored form of one matrix (out, in).

    ``parts``: the names of the tensor of codes and of the tensors of scales.

    ``block``: the (rows, columns) that share a scale; ``signs``: +1 if a scale multiplies, −1 if it divides.
    """

    form: Form
    bits: int
    shape: tuple[int, int]
    parts: tuple[str, ...]
    block: tuple[int, int]
    signs: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The form in words: ``fp8``, ``mlx (8 bits)``."""
        return f"mlx ({self.bits} bits)" if self.form == "mlx" else self.form

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """The values (rows, in), bfloat16. ``rows``: the rows of the matrix in the codes; None for all."""
        codes = tensors[self.parts[0]]
        rows = torch.arange(self.shape[0]) if rows is None else rows
        values = torch.empty(len(rows), self.shape[1], dtype=torch.bfloat16)
        for piece in self._pieces(len(rows)):
            scale, bias = self._scales(tensors, rows[piece])
            numbers = codes[piece].float() if self.form in ("fp8", "int8") else self._unpacked(codes[piece])
            values[piece] = numbers.mul_(scale).add_(bias)
        return values

    def rounded(
        self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Other ``values`` (rows, in) rounded with these scales: to the nearest code and back, bfloat16."""
        rows = torch.arange(self.shape[0]) if rows is None else rows
        values_rounded = torch.empty(len(rows), self.shape[1], dtype=torch.bfloat16)
        for piece in self._pieces(len(rows)):
            scale, bias = self._scales(tensors, rows[piece])
            scaled = torch.where(scale == 0, 0.0, (values[piece].float() - bias) / scale)
            if self.form == "fp8":
                codes = scaled.clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn).float()
            elif self.form == "int8":
                codes = scaled.round().clamp(-128, 127)
            else:
                codes = scaled.round().clamp(0, 2**self.bits - 1)
            values_rounded[piece] = codes.mul_(scale).add_(bias)
        return values_rounded

    def _pieces(self, count: int) -> list[slice]:
        """Slices of a few rows: a whole matrix would need several times its memory."""
        step = max(1, _PIECE // self.shape[1])
        return [slice(start, start + step) for start in range(0, count, step)]

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        """Codes as numbers, float32 (rows, in)."""
        width = self.shape[1]
        if self.form in ("nvfp4", "mxfp4"):
            pairs = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
            return torch.where(pairs > 7, -_E2M1[pairs & 7], _E2M1[pairs & 7])
        octets = packed.contiguous().view(torch.uint8).int()
        first = torch.arange(width) * self.bits
        # A code may lie in two bytes; after the last code there is no second byte.
        octets = torch.cat((octets, octets.new_zeros(len(octets), 1)), dim=1)
        pairs = octets[:, first // 8] | (octets[:, first // 8 + 1] << 8)
        return ((pairs >> (first % 8)) & (2**self.bits - 1)).float()

    def _scales(
        self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The factor and the summand of every value, float32, broadcast to (rows, in)."""
        first = tensors[self.parts[1]]
        scale = torch.exp2(first.float() - 127) if self.form == "mxfp4" else first.float()
        scale = self._spread(scale, rows)
        for part, sign in zip(self.parts[2:], self.signs, strict=False):
            scale = scale * tensors[part].float().reshape(()) ** sign
        return scale, self._spread(tensors[self.parts[2]].float(), rows) if self.form == "mlx" else 0.0

    def _spread(self, scale: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if scale.numel() == 1:
            return scale.reshape(1, 1)
        scale = scale.reshape(len(scale), -1)
        scale = scale[rows // self.block[0]]
        return scale if scale.shape[1] == 1 else scale.repeat_interleave(self.block[1], dim=1)[:, : self.shape[1]]


def quantised_matrices(
    tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> tuple[dict[str, QuantisedMatrix], dict[str, TensorInfo]]:
    """The matrices that are stored in one of the known forms, by the names of their weights; and the logical tensors.

    Among the logical tensors each such matrix has the shape and dtype of its values, and its parts are left out. Both
    arguments are untrusted. A matrix whose parts contradict each other is not changed, and is refused when it is read.
    """
    matrices: dict[str, QuantisedMatrix] = {}
    for name, info in tensors.items():
        ending = next((ending for ending in _CODES if name.endswith(ending)), None)
        if ending is None or len(info.shape) != 2 or info.dtype_name not in ("F8_E4M3", "I8", "U8", "U32"):
            continue
        matrix = _recognised(name, name.removesuffix(ending), info, tensors, config)
        if matrix is not None:
            matrices[f"{name.removesuffix(ending)}.weight"] = matrix
    if not matrices:
        return {}, dict(tensors)
    hidden = {part for matrix in matrices.values() for part in matrix.parts}
    logical = {name: info for name, info in tensors.items() if name not in hidden}
    for name, matrix in matrices.items():
        size = 2 * matrix.shape[0] * matrix.shape[1]
        logical[name] = TensorInfo(name, torch.bfloat16, matrix.shape, size, tensors[matrix.parts[0]].dtype_name)
    return matrices, logical


def _recognised(
    name: str, module: str, info: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> QuantisedMatrix | None:
    """The form of one matrix, or None. Every size is checked, so that decoding cannot fail."""

    def part(*endings: str) -> TensorInfo | None:
        return next((tensors[module + ending] for ending in endings if module + ending in tensors), None)

    out, width = info.shape
    if not (0 < out < _MOST and 0 < width < _MOST):
        return None
    scale = part(".weight_scale_inv", ".weight_scale")
    if info.dtype_name in ("F8_E4M3", "I8"):
        if scale is None or scale.dtype_name not in ("F32", "F16", "BF16", "F64"):
            return None
        block = _block_of(scale.shape, (out, width), config)
        return block and QuantisedMatrix(
            "int8" if info.dtype_name == "I8" else "fp8", 8, (out, width), (name, scale.name), block
        )
    if info.dtype_name == "U8" and scale is not None:
        shape = (out, 2 * width)
        overall, divides = part(".weight_global_scale"), True
        if overall is None:
            overall, divides = part(".weight_scale_2"), False
        if scale.dtype_name == "F8_E4M3" and overall is not None and math.prod(overall.shape) == 1:
            if scale.shape == (out, shape[1] // 16) and shape[1] % 16 == 0:
                sign = -1 if divides else 1
                return QuantisedMatrix("nvfp4", 4, shape, (name, scale.name, overall.name), (1, 16), (sign,))
        elif scale.dtype_name == "U8" and scale.shape == (out, shape[1] // 32) and shape[1] % 32 == 0:
            return QuantisedMatrix("mxfp4", 4, shape, (name, scale.name), (1, 32))
    scales, biases = part(".scales"), part(".biases")
    if info.dtype_name == "U32" and scales is not None and biases is not None and scales.shape == biases.shape:
        bits = _mlx_bits(config, module)
        columns, remainder = divmod(32 * width, bits) if bits else (0, 1)
        if (
            bits
            and not remainder
            and len(scales.shape) == 2
            and scales.shape[0] == out
            and 0 < scales.shape[1] <= columns
        ):
            group, remainder = divmod(columns, scales.shape[1])
            readable = {scales.dtype_name, biases.dtype_name} <= {"F32", "F16", "BF16"}
            if not remainder and readable:
                return QuantisedMatrix("mlx", bits, (out, columns), (name, scales.name, biases.name), (1, group))
    return None


def _block_of(scale: tuple[int, ...], shape: tuple[int, int], config: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many rows and columns share a scale, from the scales' shape and the config; None if they do not fit."""
    if scale in ((), (1,), (1, 1)):
        return shape
    if scale in ((shape[0],), (shape[0], 1)):
        return 1, shape[1]
    settings = config.get("quantization_config")
    stated = settings.get("weight_block_size") if isinstance(settings, dict) else None
    rows, columns = 128, 128
    if isinstance(stated, list) and len(stated) == 2 and all(type(size) is int and 0 < size < 2**20 for size in stated):
        rows, columns = stated
    return (rows, columns) if scale == (-(-shape[0] // rows), -(-shape[1] // columns)) else None


def _mlx_bits(config: Mapping[str, Any], module: str) -> int | None:
    """The bits of a module's codes by config.json, which may name modules with settings of their own."""
    settings = config.get("quantization") or config.get("quantization_config")
    if not isinstance(settings, dict):
        return None
    module_settings = settings.get(module)
    for table in (module_settings, settings):
        if isinstance(table, dict) and table.get("bits") in _MLX_BITS and type(table["bits"]) is int:
            return int(table["bits"]) if table.get("mode", "affine") == "affine" else None
    return None


QUANTISATION_KEYS = ("quantization_config", "compression_config", "quantization")
# Methods whose quantised tensors are recognised by their names and dtypes; the model's other tensors are as usual.
_BY_TENSORS = frozenset(("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp4"))
# Name endings of quantised tensors that are not read, for models whose config.json does not mention quantisation.
_ENDINGS = {
    ".qweight": "GPTQ or AWQ",
    ".SCB": "bitsandbytes (8 bits)",
    ".quant_map": "bitsandbytes (4 bits)",
    ".weight_packed": "compressed-tensors",
}


def stated_method(config: Mapping[str, Any]) -> str | None:
    """The method of quantisation in config.json, "mlx" for MLX's, which has no name there; None without one.

    A method that is switched off does not count.
    """
    for key in QUANTISATION_KEYS:
        settings = config.get(key)
        if not settings:
            continue
        settings = settings if isinstance(settings, dict) else {}
        method = settings.get("quant_method") or settings.get("method")
        if method is None and "bits" in settings and "group_size" in settings:
            return "mlx"
        if method == "bitsandbytes" and not settings.get("load_in_4bit") and not settings.get("load_in_8bit"):
            continue  # written for a model that was loaded with quantisation turned off
        return str(method or "an unnamed method")
    return None


def refuse_quantised(tensors: Mapping[str, TensorInfo], readable: Collection[str], config: Mapping[str, Any]) -> None:
    """Raise Skipped("quantized") if there are quantised matrices other than the ``readable`` ones."""
    for name in tensors:
        for ending, method in _ENDINGS.items():
            if name.endswith(ending):
                raise Skipped("quantized", f"the weights are quantised by {method}: there is {shown(name)}")
    stated = stated_method(config)
    if stated is not None and stated not in _BY_TENSORS and not (stated == "mlx" and readable):
        raise Skipped("quantized", f"the weights are quantised by {shown(stated, 40)}")


def refuse_coarse(matrices: Mapping[str, QuantisedMatrix]) -> None:
    """Raise Skipped("quantized") for a fine-tune whose codes are too coarse to show its change."""
    for name, matrix in matrices.items():
        if matrix.bits < 8:
            raise Skipped(
                "quantized",
                f"{shown(name)} is stored in {matrix.bits} bits ({matrix.form}), whose steps are larger than what "
                "fine-tuning changes; such a model can be a base, and a copy of it in 8 or 16 bits can be read",
            )
