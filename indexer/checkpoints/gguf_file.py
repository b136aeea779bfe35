"""GGUF files: the header, and matrices by rows.

A header names the tensors with their types and offsets, after key-value pairs that hold the architecture's numbers and
the vocabulary (llama.cpp describes versions 2 and 3). It is untrusted: each number is checked against the size of the
file before it is used. Names are those of the package gguf, which also knows how each type is stored. The matrices get
the names of the architecture's checkpoints, and a converter's changes are undone: llama.cpp permutes rows of queries
and keys where transformers rotates halves of a head and it rotates neighbours.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.architectures.architecture import known_model_types, load_architecture
from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix
from indexer.checkpoints.safetensors_header import corrupt, refuse_pointer
from indexer.checkpoints.stored_tensor import Span, Storage, TensorIndex, TensorInfo
from indexer.errors import Failed, Skipped
from indexer.network.byterange import ByteSource
from indexer.untrusted import shown, tidy

FORMAT = "GGUF"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_FIRST_READ = 128 << 10
# Vocabularies of 256,000 words with their merges take 12 MB.
_MOST_HEADER = 64 << 20
_MOST_PAIRS = 10_000
_MOST_TENSORS = 100_000
_MOST_NAME = 200
_MOST_VALUE = 500
_MOST_TEXT = 1 << 20  # of a template of a chat
_MOST_DIMENSIONS = 4
_MOST_LAYERS = 1000
_LARGEST = 2**40

# The scalar types of key-value pairs by their number: struct formats. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

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


@dataclass(frozen=True)
class GgufHeader:
    """``facts``: the pairs that are single numbers or short texts.

    ``tensors``: the name of each, the number of its type, its shape and its offset from ``data``.
    """

    facts: Mapping[str, Any]
    tensors: Sequence[tuple[str, int, tuple[int, ...], int]]
    data: int

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return str(self.facts.get("general.architecture", ""))

    def number(self, key: str) -> int | None:
        """A number of the architecture, ``attention.head_count``; None if it is not one."""
        value = self.facts.get(f"{self.architecture}.{key}")
        return value if type(value) is int and 0 < value < 1 << 31 else None


class _Cursor:
    """Reads the front of a file, piece by piece."""

    def __init__(self, source: ByteSource, most: int) -> None:
        self._source, self._most = source, min(most, source.size)
        self._content = bytes(source.read(0, min(_FIRST_READ, source.size), keep=True))
        self.position = 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises Skipped("corrupt_file") if the header would end beyond the file, or the limit."""
        stop = self.position + count
        if stop > self._most:
            limit = "the file" if self._most == self._source.size else f"the {self._most >> 20} MB that are read of one"
            raise corrupt(self._source, f"has a header that is longer than {limit}")
        if stop > len(self._content):
            more = min(max(stop, 2 * len(self._content)), self._most)
            self._content += bytes(self._source.read(len(self._content), more))
        piece = self._content[self.position : stop]
        self.position = stop
        return piece

    def number(self, form: str) -> Any:
        """One little-endian number."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self, most: int) -> str:
        """A string. Raises Skipped("corrupt_file") if it is longer than ``most`` bytes."""
        length = self.number("Q")
        if length > most:
            raise corrupt(self._source, f"has a text of {shown(length)} bytes in its header; up to {most} are read")
        return self.take(length).decode("utf-8", "replace")


def read_header(source: ByteSource, most: int | None = None) -> GgufHeader:
    """Read and check the header, of at most ``most`` bytes. Raises Skipped("corrupt_file"), or Failed."""
    cursor = _Cursor(source, min(most or _MOST_HEADER, _MOST_HEADER))
    front = cursor.take(min(64, source.size))
    refuse_pointer(source, front)
    cursor.position = 4
    if front[:4] != _MAGIC:
        raise corrupt(source, "does not begin as a GGUF file")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise corrupt(source, f"is of version {shown(version)} of GGUF; versions 2 and 3 are read")
    tensor_count, pair_count = cursor.number("Q"), cursor.number("Q")
    if tensor_count > _MOST_TENSORS or pair_count > _MOST_PAIRS:
        raise corrupt(source, f"says that it has {shown(tensor_count)} tensors and {shown(pair_count)} facts")
    facts: dict[str, Any] = {}
    for _ in range(pair_count):
        key = cursor.text(_MOST_NAME)
        value = _value(source, cursor, cursor.number("I"))
        if value is not None:
            facts[key] = value
    tensors = []
    names: set[str] = set()
    for _ in range(tensor_count):
        name, dimensions = cursor.text(_MOST_NAME), cursor.number("I")
        if name in names:
            raise corrupt(source, f"names {shown(name)} twice in its header")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise corrupt(source, f"gives {shown(name)} {shown(dimensions)} dimensions")
        names.add(name)
        shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
        if not all(0 < size < _LARGEST for size in shape) or math.prod(shape) >= _LARGEST:
            raise corrupt(source, f"gives {shown(name)} a shape that is too large or empty")
        tensors.append((name, cursor.number("I"), shape, cursor.number("Q")))
    alignment = facts.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise corrupt(source, "has an alignment that is not a small number")
    return GgufHeader(MappingProxyType(facts), tensors, -(-cursor.position // alignment) * alignment)


def _value(source: ByteSource, cursor: _Cursor, kind: int) -> Any:
    """A number or a short text; None for a longer one, and for an array, which is skipped."""
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        text = cursor.text(_MOST_TEXT)
        return tidy(text) if len(text) <= _MOST_VALUE else None
    if kind != _ARRAY:
        raise corrupt(source, f"has a fact of the unknown type {shown(kind)}")
    inner, count = cursor.number("I"), cursor.number("Q")
    if inner in _SCALARS:
        cursor.take(count * struct.calcsize(f"<{_SCALARS[inner]}"))
    elif inner == _STRING:
        for _ in range(count):  # each takes at least eight bytes of the header, which is bounded
            cursor.take(cursor.number("Q"))
    else:
        raise corrupt(source, f"has a list of the unknown type {shown(inner)}")
    return None


def read_gguf(source: ByteSource, most: int | None = None) -> tuple[TensorIndex, GgufHeader, dict[str, GgufMatrix]]:
    """The tensors of a file as rows of bytes, its header, and the matrices among them by the file's own names.

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
            matrices[name] = GgufMatrix(shape, (name,), kind.bits, kind.name, number, _heads(header, name, shape[0]))
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
