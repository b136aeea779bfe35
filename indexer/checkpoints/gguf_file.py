"""GGUF files: matrices by rows, under the names of checkpoints.

``indexer.sources.gguf_header`` reads the header. Names are those of the package gguf, which also knows how each type is
stored. The matrices get the names of the architecture's checkpoints, and a converter's changes are undone: llama.cpp
permutes the rows of queries and keys where transformers rotates halves of a head and it rotates neighbours.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.architecture import known_model_types, load_architecture
from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix
from indexer.checkpoints.stored_tensor import Span, Storage, TensorIndex, TensorInfo
from indexer.errors import Failed, Skipped
from indexer.network.byterange import ByteSource, corrupt
from indexer.sources.gguf_header import GgufHeader, read_header
from indexer.untrusted import shown

FORMAT = "GGUF"
_MOST_LAYERS = 1000

# Architectures of GGUF that transformers calls otherwise.
_MODEL_TYPES = {
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "command-r": "cohere", "gemma3": "gemma3_text", "phi2": "phi",
    "gptneox": "gpt_neox", "gptbigcode": "gpt_bigcode", "granitemoe": "granitemoe", "olmoe": "olmoe",
}  # fmt: skip
# Those whose queries and keys llama.cpp's converter permutes.
_PERMUTED = frozenset(
    ("llama", "granite", "granitemoe", "deci", "minicpm", "olmo", "arcee", "smollm3", "mistral3", "xverse")
)
_PERMUTED_HEADS = {"attn_q.weight": "attention.head_count", "attn_k.weight": "attention.head_count_kv"}


def read_gguf(
    source: ByteSource, most: int | None = None, first: GgufHeader | None = None
) -> tuple[TensorIndex, GgufHeader, dict[str, GgufMatrix]]:
    """The tensors of a file as rows of bytes, its header, and the matrices among them by the file's own names.

    ``first``: the header of the first shard, which alone holds the facts of the model; None for a file without others.
    A tensor of one dimension has its own dtype. Raises Skipped("corrupt_file"); "unreadable_dtype" if no tensor has a
    type that can be read; Failed("not_installed") without the package gguf.
    """
    if find_spec("gguf") is None:
        raise Failed(
            "not_installed", f"{shown(source.name)} is a GGUF file: pip install 'vectors-in-the-wild[gguf]' to read it"
        )
    header = read_header(source, most)
    spans: dict[str, Span] = {}
    matrices: dict[str, GgufMatrix] = {}
    unknown: set[int] = set()
    for name, number, shape, offset in header.tensors:
        kind = _type_of(number)
        if kind is None:
            unknown.add(number)
            continue
        block, size = kind.block, kind.bytes
        if shape[-1] % block:
            raise corrupt(source, f"gives {shown(name)} rows of {shape[-1]} numbers, in blocks of {block}")
        start, row_bytes = header.data + offset, shape[-1] // block * size
        stop = start + math.prod(shape[:-1]) * row_bytes
        if stop > source.size:
            raise corrupt(source, f"is cut short: {shown(name)} ends {stop - source.size} bytes after its end")
        if len(shape) == 1 and kind.dtype is not None:
            info = TensorInfo(name, kind.dtype, shape, stop - start, kind.name)
        else:
            info = TensorInfo(name, torch.uint8, (math.prod(shape[:-1]), row_bytes), stop - start, kind.name)
        spans[name] = Span(info, "", start, stop)
        if len(shape) == 2:
            matrices[name] = GgufMatrix(
                shape, (name,), kind.bits, kind.name, number, _heads(first or header, name, shape[0])
            )
    ordered = sorted(spans.values(), key=lambda span: span.first)
    for before, after in pairwise(ordered):
        if after.first < before.last:
            raise corrupt(source, f"puts {shown(after.info.name)} over {shown(before.info.name)}")
    if unknown and not spans:
        raise Skipped("unreadable_dtype", f"{shown(source.name)} stores tensors of the unknown type {min(unknown)}")
    texts = {key: value for key, value in header.facts.items() if isinstance(value, str)}
    return TensorIndex(source, "gguf", spans, {"": Storage(source.size, data=0)}, texts), header, matrices


def _heads(header: GgufHeader, name: str, rows: int) -> int:
    """How many heads the rows of a matrix belong to, if these are permuted; else 0."""
    key = next((key for ending, key in _PERMUTED_HEADS.items() if name.endswith(f".{ending}")), None)
    if key is None or header.architecture not in _PERMUTED:
        return 0
    heads = header.number(key) or header.number("attention.head_count") or 0
    return heads if heads and rows % (2 * heads) == 0 else 0


@dataclass(frozen=True)
class GgufMatrix(QuantisedMatrix):
    """A matrix whose rows are blocks of one of GGUF's ``types``; its one part is the tensor of bytes.

    ``heads``: of how many heads the rows are permuted: 2 j + a of a head in the file is row a · d/2 + j; 0 for none.
    """

    type: str
    number: int
    heads: int = 0

    @property
    def label(self) -> str:
        """``Q4_K``."""
        return self.type

    @property
    def format(self) -> str:
        """See ``QuantisedMatrix``."""
        return FORMAT

    def stored_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``QuantisedMatrix``."""
        if not self.heads:
            return rows
        size = self.shape[0] // self.heads
        head, row = np.divmod(rows, size)
        half, pair = np.divmod(row, size // 2)
        stored: NDArray[np.int64] = head * size + 2 * pair + half
        return stored

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """See ``QuantisedMatrix``."""
        return self._values(np.ascontiguousarray(tensors[self.parts[0]].numpy()))

    def _values(self, codes: Codes) -> torch.Tensor:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        values = dequantize(codes, GGMLQuantizationType(self.number))
        return torch.from_numpy(np.array(values, dtype=np.float32))

    def quantised(self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantised | None:
        """See ``QuantisedMatrix``: by the package gguf, or by ggml's own library for types that need it."""
        codes = quantise(values.contiguous().numpy(), self.number)
        return None if codes is None else Quantised(codes, self._values(codes))


@dataclass(frozen=True)
class _Type:
    """A type of tensors: numbers and bytes of a block, bits of a code; ``dtype`` if it is a plain one."""

    name: str
    block: int
    bytes: int
    dtype: torch.dtype | None

    @property
    def bits(self) -> int:
        return self.bytes * 8 // self.block


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


@cache
def _type_of(number: int) -> _Type | None:
    """A type that can be read: a plain one, or one that the package gguf dequantises."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    try:
        kind = GGMLQuantizationType(number)
        block, size = GGML_QUANT_SIZES[kind]
        quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return _Type(kind.name, block, size, _PLAIN.get(kind.name))


def quantise(values: NDArray[np.float32], number: int) -> Codes | None:
    """Rows of numbers as a type's blocks; None if no quantiser is installed, or its codes depend on calibration data.

    The package gguf quantises the simple types bit by bit as ggml does. ggml's library (libggml-python) has the others:
    K-quants are what it makes of them without an importance matrix.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import quantize

    kind = GGMLQuantizationType(number)
    try:
        return np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(len(values), -1)
    except NotImplementedError:
        pass
    library = ggml_library()
    if library is None or library.ggml_quantize_requires_imatrix(number):
        return None
    block, size = GGML_QUANT_SIZES[kind]
    rows, width = values.shape
    codes = np.zeros((rows, width // block * size), np.uint8)
    values = np.ascontiguousarray(values, dtype=np.float32)
    written = library.ggml_quantize_chunk(
        number, values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), codes.ctypes.data, 0, rows, width, None
    )
    return codes if written == codes.nbytes else None


@cache
def ggml_library() -> Any | None:
    """Ggml's library, if the package libggml-python is installed."""
    try:
        import libggml
    except ImportError:
        return None
    files = [file for folder in libggml.__path__ for file in sorted(Path(folder).glob("lib*/*ggml-base.*"))]
    for file in files:
        try:
            library = ctypes.CDLL(str(file))
            library.ggml_quantize_chunk.restype = ctypes.c_size_t
            library.ggml_quantize_chunk.argtypes = [
                ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                ctypes.c_int64, ctypes.c_void_p,
            ]  # fmt: skip
            library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
        except (OSError, AttributeError):
            continue
        return library
    return None


def file_type(header: GgufHeader) -> str:
    """What the header says of how the file is stored, ``Q4_K_M``; "" if it says nothing that is known."""
    from gguf import LlamaFileType

    try:
        name = LlamaFileType(header.facts.get("general.file_type", -1)).name
    except ValueError:
        return ""
    return str(name).removeprefix("MOSTLY_").removeprefix("ALL_")


def model_config(header: GgufHeader) -> dict[str, Any]:
    """What config.json would say: the model type and the counts that fused matrices are divided by."""
    name = header.architecture
    model_type = _MODEL_TYPES.get(name, name.replace("-", "_"))
    config: dict[str, Any] = {"model_type": model_type if model_type in known_model_types() else name}
    for key, number in (
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("intermediate_size", "feed_forward_length"),
    ):
        if (value := header.number(number)) is not None:
            config[key] = value
    return config


def checkpoint_names(header: GgufHeader, model_type: str) -> dict[str, str]:
    """By the name in the file the name that a block matrix has in checkpoints of ``model_type``.

    Empty if gguf or this program does not know the architecture.
    """
    names_in_file = {name for name, *_ in header.tensors}
    layers = min(header.number("block_count") or 0, _MOST_LAYERS)
    try:
        architecture = load_architecture(model_type)
    except Skipped:
        return {}
    best: dict[str, str] = {}
    for prefix in architecture.prefixes:
        names: dict[str, str] = {}
        for stack in architecture.stacks:
            for pattern in dict.fromkeys(stack.patterns):
                if sum(part.startswith("{") for part in pattern.path) != 1 or pattern.is_stacked:
                    continue
                for layer in range(layers):
                    name = prefix + pattern.tensor((layer,))
                    if (stored := name_in_gguf(name, header)) in names_in_file:
                        names.setdefault(str(stored), name)
        if len(names) > len(best):
            best = names
    return best


def name_in_gguf(name: str, header: GgufHeader) -> str | None:
    """The name that a tensor of a checkpoint has in this file, by gguf's map; None if it has none."""
    names = _name_map(header.architecture, min(header.number("block_count") or 0, _MOST_LAYERS))
    return None if names is None else names.get_name(name, try_suffixes=(".weight", ".bias"))


@cache
def _name_map(architecture: str, layers: int) -> Any | None:
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    known = next((number for number, name in MODEL_ARCH_NAMES.items() if name == architecture), None)
    return None if known is None else get_tensor_name_map(known, layers)
