"""safetensors: eight bytes of header length, a JSON header that says where every tensor lies, the tensors.

The header comes from a stranger. Every number in it is checked against the size of the file before anything
is read by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from indexer.errors import Skipped
from indexer.formats.stored_tensor import (
    DTYPE_NAMES,
    DTYPES,
    Buffers,
    TensorInfo,
    check_readable,
    element_count,
    is_count,
    shown,
)
from indexer.network.byterange import ByteSource, Run

__all__ = ["DTYPE_NAMES", "SafetensorsIndex", "read_index"]

# The header of a model of 12 layers is about 20 KiB: it mostly comes with the first request.
FIRST_GUESS = 32 << 10
# The format allows 100 MB. Parsed, that is a gigabyte of Python objects; 16 MiB name some 150,000 tensors.
MOST_HEADER = 16 << 20
MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class SafetensorsTensor:
    """A tensor that lies in [start, stop) of the file as it is in memory."""

    info: TensorInfo
    start: int
    stop: int

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor, contiguous."""
        return buffers.load_flat(run, self.stop - self.start, self.info.dtype).reshape(self.info.shape)


@dataclass(frozen=True)
class SafetensorsIndex:
    """What the header says: the tensors by name, and the file's own notes (``metadata``)."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    _located: Mapping[str, SafetensorsTensor]
    format: str = "safetensors"

    def locate(self, name: str) -> SafetensorsTensor:
        """Where ``name`` lies. Raises KeyError."""
        return self._located[name]

    def read(self, source: ByteSource, name: str) -> torch.Tensor:
        """One tensor by itself. Raises KeyError, Failed, Skipped("unreadable_dtype")."""
        tensor = self._located[name]
        check_readable(tensor.info)
        run = source.run(tensor.start, tensor.stop)
        try:
            return tensor.load(run, Buffers())
        finally:
            run.close()


def read_index(source: ByteSource) -> SafetensorsIndex:
    """Read and check the header.

    Raises Skipped("corrupt_file") where it is not one, or does not fit the file: a truncated upload is told
    by the number of bytes it lacks. Raises Failed where it cannot be read now.
    """
    front = source.read(0, min(FIRST_GUESS, source.size), keep=True)
    if len(front) < 8:
        raise _corrupt(source, f"has {len(front)} bytes, less than the length of a header")
    length = int.from_bytes(front[:8], "little")
    if bytes(front).startswith(b"version https://git-lfs"):
        raise _corrupt(source, "is a Git LFS pointer, not the weights it points to")
    if length > source.size - 8:
        raise _corrupt(source, f"has {source.size} bytes, but says that its header alone has {length}")
    if length > MOST_HEADER:
        raise _corrupt(source, f"has a header of {length} bytes; up to {MOST_HEADER} are read")
    text = bytes(front[8 : 8 + length])
    if len(text) < length:
        text += bytes(source.read(8 + len(text), 8 + length))
    header = _parse(source, text)
    metadata = _metadata(source, header.pop("__metadata__", {}))
    data_start = 8 + length
    located = {name: _tensor(source, name, entry, data_start) for name, entry in header.items()}
    _check_cover(source, located, data_start)
    return SafetensorsIndex(
        tensors=MappingProxyType({name: tensor.info for name, tensor in located.items()}),
        metadata=MappingProxyType(metadata),
        _located=MappingProxyType(located),
    )


def _parse(source: ByteSource, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_no_duplicates)
    except _DuplicateNameError as error:
        raise _corrupt(source, f"names {shown(error.args[0])} twice in its header") from None
    except (ValueError, RecursionError):
        raise _corrupt(source, "has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise _corrupt(source, "has a header that is not a JSON object")
    return header


class _DuplicateNameError(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _DuplicateNameError(name)
            seen.add(name)
    return found


def _metadata(source: ByteSource, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _corrupt(source, "has metadata that is not a mapping of text to text")
    return found


def _tensor(source: ByteSource, name: str, entry: Any, data_start: int) -> SafetensorsTensor:
    """One entry of the header, checked by itself."""
    if not isinstance(entry, dict):
        raise _corrupt(source, f"describes {shown(name)} by something that is not an object")
    dtype_name, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype_name, str):
        raise _corrupt(source, f"gives {shown(name)} no dtype")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(is_count, shape)):
        raise _corrupt(source, f"gives {shown(name)} a shape that is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise _corrupt(source, f"gives {shown(name)} offsets that are not two positions")
    begin, end = offsets
    if begin > end:
        raise _corrupt(source, f"says that {shown(name)} ends before it begins ({begin}, {end})")
    dtype = DTYPES.get(dtype_name)
    if dtype is not None and element_count(tuple(shape)) * dtype.itemsize != end - begin:
        raise _corrupt(
            source,
            f"gives {shown(name)} {end - begin} bytes, but {dtype_name} of shape {shown(shape)} takes "
            f"{shown(element_count(tuple(shape)) * dtype.itemsize)}",
        )
    info = TensorInfo(name, dtype or torch.uint8, tuple(shape), end - begin, dtype_name)
    return SafetensorsTensor(info, data_start + begin, data_start + end)


def _check_cover(source: ByteSource, located: Mapping[str, SafetensorsTensor], data_start: int) -> None:
    """The tensors must fill the file: no overlap, no hole, no end beyond it, nothing after them."""
    position, previous = data_start, ""
    for tensor in sorted(located.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start < position:
            raise _corrupt(source, f"puts {shown(tensor.info.name)} over {shown(previous)}")
        if tensor.start > position:
            raise _corrupt(source, f"leaves {tensor.start - position} bytes before {shown(tensor.info.name)}")
        position, previous = tensor.stop, tensor.info.name
    if position > source.size:
        raise _corrupt(source, f"is cut short: {position - source.size} of its {position} bytes are missing")
    if position < source.size:
        raise _corrupt(source, f"has {source.size - position} bytes that belong to no tensor")


def _corrupt(source: ByteSource, what: str) -> Skipped:
    return Skipped("corrupt_file", f"{shown(source.name)} {what}")
