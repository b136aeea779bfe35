"""What all file formats share: dtypes, tensor descriptions, and memory for reading."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from indexer.errors import Skipped
from indexer.network.byterange import Run
from indexer.untrusted import shown

# safetensors' names for dtypes, as torch calls them.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

# Deltas can be computed for these dtypes. Anything else is quantised, packed, or not a weight.
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as its file describes it. ``nbytes`` is its size in memory.

    ``dtype_name`` is the file's name of the dtype. If torch has no such dtype, ``dtype`` is uint8, which is refused
    like every dtype outside READABLE when the tensor is read.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    dtype_name: str


class StoredTensor(Protocol):
    """A tensor and the bytes [start, stop) of its file that must be read for it."""

    @property
    def info(self) -> TensorInfo:
        """Its description."""
        ...

    @property
    def start(self) -> int:
        """The first byte to read."""
        ...

    @property
    def stop(self) -> int:
        """The end of the bytes to read."""
        ...

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """Read it from ``run``, which is at ``start``; its memory is not reused while it lives.

        Raises Skipped("corrupt_file") if the bytes contradict the file's index.
        """
        ...


class TensorIndex(Protocol):
    """The tensors of a weight file, known without reading the weights."""

    @property
    def format(self) -> str:
        """The name of the file format."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name, in the order of the file."""
        ...

    def locate(self, name: str) -> StoredTensor:
        """The place of ``name``. Raises KeyError, or Skipped if the file cannot hold what it claims."""
        ...

    def locate_rows(self, name: str, rows: range) -> StoredTensor:
        """The place of some rows of the matrix ``name``. Raises KeyError, or Skipped if they are not contiguous."""
        ...


def info_of_rows(info: TensorInfo, rows: range) -> tuple[TensorInfo, int]:
    """The description of some contiguous rows of a matrix, and their byte offset in it.

    Raises Skipped("shape_mismatch") if it does not have these rows.
    """
    if len(info.shape) != 2 or not 0 <= rows.start <= rows.stop <= info.shape[0]:
        raise Skipped("shape_mismatch", f"{shown(info.name)} has no rows {rows.start} to {rows.stop}")
    row_bytes = info.shape[1] * info.dtype.itemsize
    kept = replace(info, shape=(len(rows), info.shape[1]), nbytes=len(rows) * row_bytes)
    return kept, rows.start * row_bytes


def check_readable(info: TensorInfo) -> None:
    """Raise Skipped("unreadable_dtype") unless deltas can be computed for the tensor's dtype."""
    if info.dtype not in READABLE:
        names = ", ".join(DTYPE_NAMES[dtype] for dtype in READABLE)
        raise Skipped(
            "unreadable_dtype",
            f"the tensor {shown(info.name)} is stored as {shown(info.dtype_name)}, not as one of {names}",
        )


class Buffers:
    """Memory for tensors that are read one after another; it is reused once its last tensor is gone.

    Fresh memory costs as much as reading into it, and in the heap, among the chunks of a body, it leaves gaps that
    add up. A tensor that is kept keeps its memory.
    """

    _SMALL = 1 << 20

    def __init__(self, held: int = 2) -> None:
        """``held``: how many pieces of memory are kept for reuse."""
        self._most = held
        self._held: list[tuple[mmap.mmap, weakref.ref[memoryview]]] = []

    def load_flat(self, run: Run, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        """The next ``nbytes`` of ``run`` as a one-dimensional tensor."""
        if nbytes < self._SMALL:
            small = torch.empty(nbytes, dtype=torch.uint8)
            if nbytes:
                run.read_into(small.numpy().data)
            return small.view(dtype)
        view = self._view(nbytes)
        run.read_into(view)
        return torch.frombuffer(view, dtype=dtype)

    def _view(self, nbytes: int) -> memoryview:
        """A view that the tensor keeps alive: when it dies, the memory behind it is free."""
        free = [memory for memory, user in self._held if user() is None]
        fitting = [memory for memory in free if len(memory) >= nbytes]
        self._held = [(memory, user) for memory, user in self._held if user() is not None]
        memory = min(fitting, key=len, default=None) or mmap.mmap(-1, nbytes, flags=_PRIVATE)
        view = memoryview(memory)[:nbytes]
        if len(self._held) < self._most:
            self._held.append((memory, weakref.ref(view)))
        return view
