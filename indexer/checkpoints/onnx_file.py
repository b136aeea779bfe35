"""ONNX files: the plain initialisers of a graph, in the file or in files of external data.

A file is one protocol buffer. It is walked by ranges, from one field to the next, so that raw data are not read; every
length is checked against the field that holds it (onnx.proto: ModelProto.graph 7; GraphProto.node 1, initializer 5).
An initialiser that an exporter named after the checkpoint's tensor has its shape. One with a name of its own, such as
``onnx::MatMul_12``, is the weight of a product whose node says which module it is, and is stored (in, out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix, octets
from indexer.checkpoints.stored_tensor import Span, Storage, TensorIndex, TensorInfo
from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, corrupt, refuse_pointer
from indexer.untrusted import shown

FORMAT = "ONNX"
_GRAPH, _NODE, _INITIALISER = 7, 1, 5
_INPUT, _NODE_NAME, _OPERATOR = 1, 3, 4
_DIMENSION, _DATA_TYPE, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 8, 9, 13, 14
_KEY, _VALUE = 1, 2
# TensorProto.DataType.
_DTYPES = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
_DTYPE_NAMES = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
_WINDOW = 256 << 10
_MOST_FIELDS = 2_000_000
_MOST_DESCRIPTION = 64 << 10  # of a node or of an initialiser without its data
_MOST_INITIALISERS = 100_000
_MOST_DIMENSIONS = 16
_LARGEST = 2**40


class _Walker:
    """Reads a file in windows, and counts fields."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self._start, self._content = 0, b""
        self._fields = 0

    def bytes(self, start: int, stop: int) -> bytes:
        """A part of the file, which is short."""
        if not self._start <= start <= stop <= self._start + len(self._content):
            self._start = start
            self._content = bytes(self.source.read(start, min(max(stop, start + _WINDOW), self.source.size)))
        return self._content[start - self._start : stop - self._start]

    def _varint(self, position: int, stop: int) -> tuple[int, int]:
        value = 0
        for number, octet in enumerate(self.bytes(position, min(position + 10, stop))):
            value |= (octet & 127) << (7 * number)
            if octet < 128:
                return value & ((1 << 64) - 1), position + number + 1
        raise corrupt(self.source, "has a number that does not end where its field does")

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(number, start, stop) of the content of each field; of a number without a length, (number, value, −1)."""
        position = start
        while position < stop:
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise corrupt(self.source, f"has more than {_MOST_FIELDS:,} fields")
            tag, position = self._varint(position, stop)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, position = self._varint(position, stop)
                yield number, value, -1
                continue
            if kind == 2:
                length, position = self._varint(position, stop)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise corrupt(self.source, "is not a protocol buffer of ONNX")
            if length > stop - position:
                raise corrupt(self.source, "has a field that is longer than what holds it")
            yield number, position, position + length
            position += length

    def text(self, start: int, stop: int) -> str:
        """A field as text."""
        if stop - start > _MOST_DESCRIPTION:
            raise corrupt(self.source, "has a name that is too long")
        return self.bytes(start, stop).decode("utf-8", "replace")


@dataclass
class _Initialiser:
    name: str
    type: int
    shape: tuple[int, ...]
    raw: tuple[int, int] | None
    external: dict[str, str]


@dataclass(frozen=True)
class OnnxMatrix(QuantisedMatrix):
    """A matrix of plain numbers. ``transposed``: stored (in, out), so that all of it is read."""

    stored_dtype: torch.dtype
    transposed: bool

    @property
    def label(self) -> str:
        """``float16``."""
        return str(self.stored_dtype).removeprefix("torch.")

    @property
    def format(self) -> str:
        """See ``QuantisedMatrix``."""
        return FORMAT

    def stored_rows(self, rows: np.ndarray) -> np.ndarray | None:
        """See ``QuantisedMatrix``."""
        return None if self.transposed else rows

    def _stored(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None) -> torch.Tensor:
        stored = tensors[self.parts[0]]
        if not self.transposed:
            return stored
        return (stored if rows is None else stored[:, rows]).mT.contiguous()

    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """See ``QuantisedMatrix``."""
        return self._stored(tensors, rows).float()

    def codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Codes:
        """The numbers, as bytes."""
        return octets(self._stored(tensors, rows))

    def quantised(self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantised | None:
        """See ``QuantisedMatrix``: in the stored dtype."""
        rounded = values.to(self.stored_dtype)
        return Quantised(octets(rounded), rounded.float())


def read_onnx(
    source: ByteSource, open_beside: Callable[[str], ByteSource]
) -> tuple[dict[str, TensorIndex], dict[str, OnnxMatrix]]:
    """The tensors of a file and of its external data, by the name of the file; and its matrices by tensors' names.

    ``open_beside``: opens a file of external data by its (untrusted) name, or raises Skipped. Raises
    Skipped("corrupt_file") for a file that contradicts itself, Failed if it cannot be read now.
    """
    walker = _Walker(source)
    refuse_pointer(source, walker.bytes(0, min(64, source.size)))
    modules: dict[str, str] = {}
    initialisers: list[_Initialiser] = []
    for number, start, stop in walker.fields(0, source.size):
        if number != _GRAPH or stop < 0:
            continue
        for inner, first, last in walker.fields(start, stop):
            if inner == _NODE and last > 0:
                _add_module(walker, first, last, modules)
            elif inner == _INITIALISER and last > 0:
                initialisers.append(_initialiser(walker, first, last))
                if len(initialisers) > _MOST_INITIALISERS:
                    raise corrupt(source, f"has more than {_MOST_INITIALISERS:,} initialisers")
    sources = {source.name: source}
    spans: dict[str, dict[str, Span]] = {source.name: {}}
    matrices: dict[str, OnnxMatrix] = {}
    for initialiser in initialisers:
        if initialiser.type not in _DTYPES:
            continue
        dtype = _DTYPES[initialiser.type]
        size = math.prod(initialiser.shape) * dtype.itemsize
        name, file, extent = initialiser.name, source.name, initialiser.raw
        if initialiser.external:
            file = initialiser.external.get("location", "")
            if file not in sources:
                sources[file], spans[file] = open_beside(file), {}
            extent = _extent(source, initialiser, size)
        if extent is None:  # its numbers are in a list of their own, as those of small constants
            continue
        if extent[1] - extent[0] != size or extent[1] > sources[file].size:
            raise corrupt(source, f"gives {shown(name)} {extent[1] - extent[0]} bytes, which are not its {size}")
        module = modules.get(name)
        logical = f"{module}.weight" if module else name
        info = TensorInfo(name, dtype, initialiser.shape, size, _DTYPE_NAMES[initialiser.type])
        spans[file][name] = Span(info, "", *extent)
        if len(initialiser.shape) == 2:
            rows, columns = initialiser.shape
            shape = (columns, rows) if module else (rows, columns)
            matrices[logical] = OnnxMatrix(shape, (name,), dtype.itemsize * 8, dtype, module is not None)
    indexes = {
        file: TensorIndex(sources[file], "onnx", file_spans, {"": Storage(sources[file].size, data=0)})
        for file, file_spans in spans.items()
    }
    return indexes, matrices


def _add_module(walker: _Walker, start: int, stop: int, modules: dict[str, str]) -> None:
    """Note the module of a product of matrices, taken from its name, by the name of its second factor.

    ``/model/layers.0/self_attn/q_proj/MatMul`` is of ``model.layers.0.self_attn.q_proj``.
    """
    if stop - start > _MOST_DESCRIPTION:
        return
    inputs: list[str] = []
    name = operator = ""
    for number, first, last in walker.fields(start, stop):
        if last < 0:
            continue
        if number == _INPUT:
            inputs.append(walker.text(first, last))
        elif number == _NODE_NAME:
            name = walker.text(first, last)
        elif number == _OPERATOR:
            operator = walker.text(first, last)
    module, slash, last_part = name.rpartition("/")
    if operator == "MatMul" and len(inputs) == 2 and slash and last_part.startswith("MatMul"):
        modules.setdefault(inputs[1], module.strip("/").replace("/", "."))


def _initialiser(walker: _Walker, start: int, stop: int) -> _Initialiser:
    """One initialiser, without its data."""
    initialiser = _Initialiser("", 0, (), None, {})
    is_external = False
    for number, first, last in walker.fields(start, stop):
        if number == _DIMENSION and last < 0:
            initialiser.shape = (*initialiser.shape, first)
        elif number == _DIMENSION:  # all of them, packed
            position = first
            while position < last:
                size, position = walker._varint(position, last)
                initialiser.shape = (*initialiser.shape, size)
        elif number == _DATA_TYPE and last < 0:
            initialiser.type = first
        elif number == _NAME and last >= 0:
            initialiser.name = walker.text(first, last)
        elif number == _RAW and last >= 0:
            initialiser.raw = (first, last)
        elif number == _EXTERNAL and last >= 0:
            pair = {inner: walker.text(begin, end) for inner, begin, end in walker.fields(first, last) if end >= 0}
            initialiser.external[pair.get(_KEY, "")] = pair.get(_VALUE, "")
        elif number == _LOCATION and last < 0:
            is_external = first == 1
        if len(initialiser.shape) > _MOST_DIMENSIONS or math.prod(initialiser.shape) >= _LARGEST:
            raise corrupt(walker.source, f"gives {shown(initialiser.name)} a shape that is too large")
    initialiser.external = initialiser.external if is_external else {}
    return initialiser


def _extent(source: ByteSource, initialiser: _Initialiser, size: int) -> tuple[int, int]:
    """The bytes of an initialiser in its file of external data. Raises Skipped("corrupt_file")."""
    numbers = []
    for key, usual in (("offset", 0), ("length", size)):
        text = initialiser.external.get(key, str(usual))
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Skipped(
                "corrupt_file", f"{shown(source.name)} gives {shown(initialiser.name)} an {key} {shown(text)}"
            )
        numbers.append(int(text))
    return numbers[0], numbers[0] + numbers[1]
