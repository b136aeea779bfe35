"""Stand-ins for the names, storages and tensors in the pickle of a PyTorch checkpoint.

All numbers in them are untrusted until ``span_of`` has checked them against the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, Run
from indexer.untrusted import element_count, is_count, shown
from indexer.weights.stored_tensor import DTYPE_NAMES, Buffers, TensorInfo, info_of_rows

MOST_DIMENSIONS = 16

_STORAGE_DTYPES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "UntypedStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "QInt8Storage": torch.qint8,
    "QUInt8Storage": torch.quint8,
    "QInt32Storage": torch.qint32,
}
# What a checkpoint may name besides PyTorch's types, as for ``torch.load(weights_only=True)``.
_HARMLESS = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "Counter"),
        ("builtins", "set"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("_codecs", "encode"),
        ("torch.serialization", "_get_layout"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.storage", "TypedStorage"),
        ("torch.storage", "UntypedStorage"),
        ("torch.nn.parameter", "Parameter"),
    }
)
_TORCH_MODULES = ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")
_TORCH_KINDS = (torch.dtype, torch.qscheme)


class MalformedPickleError(Exception):
    """The pickle is invalid, or describes something impossible."""


class Other:
    """Anything in a checkpoint that is not needed here."""


OTHER = Other()


@dataclass(frozen=True)
class PickledName:
    """A global that the pickle names. It is never imported."""

    module: str
    name: str

    @property
    def is_allowed(self) -> bool:
        """Whether a checkpoint may name it."""
        if (self.module, self.name) in _HARMLESS:
            return True
        if self.module == "torch._utils":
            return self.name.startswith("_rebuild_")
        if self.module not in _TORCH_MODULES:
            return False
        return (
            self.name in ("Size", "device")
            or self.name.endswith(("Storage", "Tensor"))
            or isinstance(vars(torch).get(self.name), _TORCH_KINDS)
        )


@dataclass(frozen=True)
class PickledStorage:
    """Memory that tensors share: ``elements`` of ``dtype`` under ``key``.

    ``first`` is the start of a view in the oldest files, in elements.
    """

    key: str
    dtype: torch.dtype
    elements: int
    first: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class PickledTensor:
    """A tensor; ``offset`` and ``stride`` in elements."""

    storage: PickledStorage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class Span:
    """The bytes [first, last) of a storage that a tensor uses."""

    info: TensorInfo
    first: int
    last: int
    stride: tuple[int, ...]

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor, from a run at ``first``."""
        flat = buffers.load_flat(run, self.last - self.first, self.info.dtype)
        return flat.as_strided(self.info.shape, self.stride)

    def of_rows(self, rows: range) -> Span:
        """The span of some rows of a matrix. Raises Skipped if its rows are not contiguous."""
        if len(self.info.shape) != 2 or self.stride != (self.info.shape[1], 1):
            raise Skipped("unreadable_format", f"the rows of {shown(self.info.name)} do not lie together in the file")
        info, offset = info_of_rows(self.info, rows)
        return Span(info, self.first + offset, self.first + offset + info.nbytes, self.stride)


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor whose span is the bytes [start, stop) of the file."""

    span: Span
    start: int
    stop: int

    @property
    def info(self) -> TensorInfo:
        """The tensor."""
        return self.span.info

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor."""
        return self.span.load(run, buffers)


def span_of(source: ByteSource, name: str, tensor: PickledTensor, storage_bytes: int) -> Span:
    """The bytes of its storage that the tensor uses.

    Raises Skipped("corrupt_file") unless they lie inside the storage and suffice for its elements: a shape must not
    expand a storage.
    """
    itemsize, count = tensor.dtype.itemsize, element_count(tensor.shape)
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    first = (tensor.storage.first + tensor.offset) * itemsize if count else 0
    last = first + reach * itemsize if count else 0
    if last > storage_bytes or count * itemsize > storage_bytes:
        raise Skipped(
            "corrupt_file", f"{shown(source.name)} gives the tensor {shown(name)} more than its storage holds"
        )
    dtype_name = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    info = TensorInfo(name, tensor.dtype, tensor.shape, count * itemsize, dtype_name)
    return Span(info, first, last, tensor.stride)


def infos_of(spans: Mapping[str, Span]) -> Mapping[str, TensorInfo]:
    """The tensors by name."""
    return MappingProxyType({name: span.info for name, span in spans.items()})


def dictionary_of(items: list[Any]) -> dict[str, Any]:
    """Alternating keys and values, as a dictionary of those whose key is a string.

    Names of tensors are strings, and only strings have hashes that cannot be made to collide.
    """
    if len(items) % 2:
        raise MalformedPickleError("a dictionary with a key and no value")
    pairs = zip(items[::2], items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def stand_in(function: Any, arguments: Any) -> Any:
    """A stand-in for the result of a call. Nothing is called."""
    if not isinstance(arguments, tuple):
        raise MalformedPickleError("a call without arguments")
    if not isinstance(function, PickledName):
        return OTHER
    if function.name == "OrderedDict":
        pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
        return dictionary_of([item for pair in pairs if len(pair) == 2 for item in pair])
    if function.name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter", "Size"):
        return arguments[0] if arguments else OTHER
    if function.name == "_rebuild_from_type_v2" and len(arguments) == 4:
        return stand_in(arguments[0], arguments[2])
    if function.name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return _tensor(function.name, arguments)
    return OTHER


def storage_of(identifier: Any) -> PickledStorage:
    """("storage", type, key, location, elements[, view]), where a view is (key, first element, elements)."""
    if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise MalformedPickleError("a persistent id that is not a storage")
    kind, key, elements = identifier[1], identifier[2], identifier[4]
    dtype = _STORAGE_DTYPES.get(kind.name) if isinstance(kind, PickledName) else None
    if dtype is None or not isinstance(key, str) or not is_count(elements):
        raise MalformedPickleError("a storage of an unknown kind")
    view = identifier[5] if len(identifier) == 6 else None
    if view is None:
        return PickledStorage(key, dtype, elements)
    if not isinstance(view, tuple) or len(view) != 3 or not is_count(view[1]):
        raise MalformedPickleError("an invalid view")
    return PickledStorage(key, dtype, elements, view[1])


def _tensor(builder: str, arguments: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, PickledStorage):
        raise MalformedPickleError("a tensor without a storage")
    shape, stride = _sizes(shape), _sizes(stride)
    if not is_count(offset) or len(shape) != len(stride):
        raise MalformedPickleError("a tensor of an impossible shape")
    dtype = storage.dtype
    if builder == "_rebuild_tensor_v3":
        named = arguments[6]
        found = vars(torch).get(named.name) if isinstance(named, PickledName) else None
        if not isinstance(found, torch.dtype):
            raise MalformedPickleError("a tensor of an unknown dtype")
        dtype = found
    return PickledTensor(storage, dtype, offset, shape, stride)


def _sizes(found: Any) -> tuple[int, ...]:
    if not isinstance(found, tuple | list) or len(found) > MOST_DIMENSIONS or not all(map(is_count, found)):
        raise MalformedPickleError("a tensor of an impossible shape")
    return tuple(found)
