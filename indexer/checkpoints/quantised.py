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
| bnb8 | ``weight`` I8, ``SCB``: one a row | code · SCB / 127 | bitsandbytes, 8 bits (arXiv 2208.07339) |
| bnb4 | ``weight`` U8 (out·in/2, 1), ``weight.absmax`` … | ``indexer.checkpoints.blockwise`` | |
| gptq, awq | ``qweight``, ``qzeros``, ``scales`` | ``indexer.checkpoints.packed`` | |

The first of two E2M1 codes in a byte has the lower four bits; codes of MLX are consecutive from the lowest bit on.

A base in any of these forms is exact: fine-tunes start from these values, rounded to bfloat16, as libraries load
them. A fine-tune in such a form contains a rounding error besides its change. At 8 bits the base is rounded with the
fine-tune's scales before they are compared, so the difference is zero where nothing changed. At 4 bits the step is
larger than the change of most weights, and such a fine-tune is refused. Files in the last three forms, and MLX's with
fewer than 8 bits, are conversions: no vector is made of them, but their source is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from indexer.checkpoints.blockwise import blockwise_matrices
from indexer.checkpoints.packed import packed_matrices
from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix, octets
from indexer.checkpoints.stored_tensor import TensorInfo
from indexer.errors import Skipped
from indexer.untrusted import shown

Form = Literal["fp8", "int8", "nvfp4", "mxfp4", "mlx", "bnb8"]

_CODES = (".weight", ".weight_packed")
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_LARGEST_E4M3 = 448.0
_MOST = 2**40
_PIECE = 1 << 20  # numbers that are decoded at a time


@dataclass(frozen=True)
class ScaledMatrix(QuantisedMatrix):
    """A matrix of codes and scales in separate tensors; the rows of its codes lie together.

    ``block``: the (rows, columns) that share a scale; ``signs``: +1 if a scale multiplies, −1 if it divides.
    """

    form: Form
    block: tuple[int, int]
    signs: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The form in words: ``fp8``, ``mlx (8 bits)``."""
        return {"mlx": f"mlx ({self.bits} bits)", "bnb8": "int8"}.get(self.form, self.form)

    @property
    def format(self) -> str:
        """MLX below 8 bits, and bitsandbytes."""
        return "bitsandbytes" if self.form == "bnb8" else "MLX" if self.form == "mlx" and self.bits < 8 else ""

    @property
    def dtype(self) -> torch.dtype:
        """As libraries load it."""
        return torch.float32 if self.form == "bnb8" else torch.bfloat16

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """See ``QuantisedMatrix``."""
        codes = tensors[self.parts[0]]
        rows = torch.arange(self.shape[0]) if rows is None else rows
        values = torch.empty(len(rows), self.shape[1], dtype=self.dtype)
        for piece in self._pieces(len(rows)):
            scale, bias = self._scales(tensors, rows[piece])
            numbers = codes[piece].float() if self.form in ("fp8", "int8", "bnb8") else self._unpacked(codes[piece])
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

    def codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Codes:
        """The codes and the scales of the rows."""
        stored = super().codes(tensors, rows)
        if self.form not in ("bnb8", "mlx"):
            return stored
        return np.concatenate([stored, *(octets(tensors[part][rows]) for part in self.parts[1:])], axis=1)

    def quantised(self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantised | None:
        """See ``QuantisedMatrix``: of bitsandbytes by its rows in float16, of MLX by groups."""
        if self.form == "bnb8":
            halves = values.to(torch.float16).float()
            largest = halves.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            codes = (halves * (127.0 / largest)).round().to(torch.int8)
            stored = np.concatenate([octets(codes), octets(largest)], axis=1)
            return Quantised(stored, codes.float() * largest / 127)
        return self._quantised_by_mlx(values, tensors[self.parts[1]].dtype) if self.form == "mlx" else None

    def _quantised_by_mlx(self, values: torch.Tensor, dtype: torch.dtype) -> Quantised:
        """As MLX's ``affine_quantize``: the scale fits the range of a group, and 0 lies on the grid."""
        values = values.to(dtype).float()
        bins = float(2**self.bits - 1)
        groups = values.unflatten(1, (-1, self.block[1]))
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        is_low = low.abs() > high.abs()
        scale = ((high - low) / bins).clamp(min=1e-7)
        scale = torch.where(is_low, scale, -scale)
        edge = torch.where(is_low, low, high)
        steps = (edge / scale).round()
        scale = torch.where(steps == 0, scale, edge / steps)
        bias = torch.where(steps == 0, 0.0, edge)
        numbers = ((groups - bias) / scale).round().clamp(0, bins)
        scale, bias = scale.to(dtype), bias.to(dtype)
        codes = numbers.to(torch.uint8).flatten(1).numpy()
        bits = np.unpackbits(codes[:, :, None], axis=2, count=self.bits, bitorder="little")
        packed = np.packbits(bits.reshape(len(codes), -1), axis=1, bitorder="little")
        stored = np.concatenate([packed, *(octets(part.flatten(1)) for part in (scale, bias))], axis=1)
        return Quantised(stored, (numbers * scale.float() + bias.float()).flatten(1))

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
        scale = self._spread(scale / 127 if self.form == "bnb8" else scale, rows)
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
    tensors: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
    read: Callable[[Collection[str]], Mapping[str, torch.Tensor]],
) -> dict[str, QuantisedMatrix]:
    """The matrices that are stored in one of the known forms, by the names of their weights.

    All that is given is untrusted. A matrix whose parts contradict each other is left out, and is refused when it is
    read. ``read``: reads small tensors; it is called only for those that say what bitsandbytes stored.
    """
    matrices: dict[str, QuantisedMatrix] = {**blockwise_matrices(tensors, read), **packed_matrices(tensors, config)}
    for name, info in tensors.items():
        ending = next((ending for ending in _CODES if name.endswith(ending)), None)
        if ending is None or len(info.shape) != 2 or info.dtype_name not in ("F8_E4M3", "I8", "U8", "U32"):
            continue
        matrix = _recognised(name, name.removesuffix(ending), info, tensors, config)
        if matrix is not None:
            matrices[f"{name.removesuffix(ending)}.weight"] = matrix
    return matrices


def logical_tensors(
    tensors: Mapping[str, TensorInfo], matrices: Mapping[str, QuantisedMatrix]
) -> dict[str, TensorInfo]:
    """The tensors with quantised ``matrices`` in place of their parts, each with the shape and dtype of its values."""
    hidden = {part for matrix in matrices.values() for part in matrix.parts}
    logical = {name: info for name, info in tensors.items() if name not in hidden}
    for name, matrix in matrices.items():
        size = matrix.dtype.itemsize * matrix.shape[0] * matrix.shape[1]
        logical[name] = TensorInfo(name, matrix.dtype, matrix.shape, size, tensors[matrix.parts[0]].dtype_name)
    return logical


def _recognised(
    name: str, module: str, info: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> ScaledMatrix | None:
    """The form of one matrix, or None. Every size is checked, so that decoding cannot fail."""

    def part(*endings: str) -> TensorInfo | None:
        return next((tensors[module + ending] for ending in endings if module + ending in tensors), None)

    out, width = info.shape
    if not (0 < out < _MOST and 0 < width < _MOST):
        return None
    scale = part(".weight_scale_inv", ".weight_scale")
    row_scale = part(".SCB")
    if info.dtype_name == "I8" and row_scale is not None and row_scale.dtype_name == "F32":
        if row_scale.shape not in ((out,), (out, 1)):
            return None
        return ScaledMatrix((out, width), (name, row_scale.name), 8, "bnb8", (1, width))
    if info.dtype_name in ("F8_E4M3", "I8"):
        if scale is None or scale.dtype_name not in ("F32", "F16", "BF16", "F64"):
            return None
        block = _block_of(scale.shape, (out, width), config)
        return block and ScaledMatrix(
            (out, width), (name, scale.name), 8, "int8" if info.dtype_name == "I8" else "fp8", block
        )
    if info.dtype_name == "U8" and scale is not None:
        shape = (out, 2 * width)
        overall, divides = part(".weight_global_scale"), True
        if overall is None:
            overall, divides = part(".weight_scale_2"), False
        if scale.dtype_name == "F8_E4M3" and overall is not None and math.prod(overall.shape) == 1:
            if scale.shape == (out, shape[1] // 16) and shape[1] % 16 == 0:
                sign = -1 if divides else 1
                return ScaledMatrix(shape, (name, scale.name, overall.name), 4, "nvfp4", (1, 16), (sign,))
        elif scale.dtype_name == "U8" and scale.shape == (out, shape[1] // 32) and shape[1] % 32 == 0:
            return ScaledMatrix(shape, (name, scale.name), 4, "mxfp4", (1, 32))
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
                return ScaledMatrix((out, columns), (name, scales.name, biases.name), bits, "mlx", (1, group))
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
# Name endings of quantised tensors. Some are not read: of GEMV's AWQ, and of shapes that contradict each other.
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
    """Raise Skipped("quantized") if there are quantised matrices other than the ``readable`` ones.

    ``tensors``: without the parts of the readable ones.
    """
    for name in tensors:
        for ending, method in _ENDINGS.items():
            if name.endswith(ending):
                raise Skipped("quantized", f"the weights are quantised by {method}: there is {shown(name)}")
    stated = stated_method(config)
    if stated is not None and stated not in _BY_TENSORS and not readable:
        raise Skipped("quantized", f"the weights are quantised by {shown(stated, 40)}")


def refuse_coarse(matrices: Mapping[str, QuantisedMatrix]) -> None:
    """Raise Skipped("quantized") for a fine-tune whose codes are too coarse to show its change."""
    for name, matrix in matrices.items():
        if matrix.bits < 8:
            raise Skipped(
                "quantized",
                f"{shown(name)} is stored in {matrix.bits} bits ({matrix.label}), whose steps are larger than what "
                "fine-tuning changes; such a model can be a base, and a copy of it in 8 or 16 bits can be read",
            )
