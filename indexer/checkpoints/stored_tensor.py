"""Tensors in weight files: dtypes, the index of a file, safetensors files, and memory for reading."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import torch

from indexer.checkpoints.safetensors_header import MOST_HEADER, read_header
from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, Run
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


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name without the module: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


# Deltas can be computed for these dtypes. Tensors of other dtypes are quantised, packed, or no weights.
READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# Names and padding of a header in PyTorch's files take less than this.
_HEADER_SLACK = 512
# Unused bytes that may be fetched, as a share of the used ones: a small gap costs less than a request.
GAP_SHARE = 0.01


@dataclass(frozen=True)
class TensorInfo:
    """The description of a tensor in its file. ``nbytes``: its size in memory.

    ``dtype_name`` is the file's name of the dtype. If torch has no such dtype, ``dtype`` is uint8, which is refused
    like every dtype outside READABLE when the tensor is read.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    dtype_name: str


@dataclass(frozen=True)
class Storage:
    """``size`` consecutive bytes of a file at the offset ``data``, which hold one or several tensors.

    In PyTorch's files a header of ``header_bytes`` at ``start`` comes before them. ``read_header`` returns the offset
    of the data from its bytes and raises Skipped("corrupt_file") if they contradict the index. ``data`` is None if only
    the header contains the offset; the data then end before ``stop``.
    """

    size: int
    data: int | None
    start: int = 0
    stop: int = 0
    header_bytes: int = 0
    read_header: Callable[[bytes], int] | None = None


@dataclass(frozen=True)
class Span:
    """The bytes [first, last) of the storage ``key`` that a tensor uses; ``stride`` in elements, None if contiguous."""

    info: TensorInfo
    key: str
    first: int
    last: int
    stride: tuple[int, ...] | None = None

    def of_rows(self, rows: range) -> Span:
        """The span of some contiguous rows of a matrix, or of several of one shape, one below the other.

        Raises Skipped: ``shape_mismatch`` if it has no such rows, ``unreadable_format`` if they are not consecutive.
        """
        shape = self.info.shape
        if len(shape) == 3:
            shape = (shape[0] * shape[1], shape[2])
        if len(shape) != 2 or not 0 <= rows.start <= rows.stop <= shape[0]:
            raise Skipped("shape_mismatch", f"{shown(self.info.name)} has no rows {rows.start} to {rows.stop}")
        if not self.has_rows_in_one_piece:
            raise Skipped("unreadable_format", f"the rows of {shown(self.info.name)} do not lie together in the file")
        row_bytes = shape[1] * self.info.dtype.itemsize
        info = replace(self.info, shape=(len(rows), shape[1]), nbytes=len(rows) * row_bytes)
        first = self.first + rows.start * row_bytes
        return replace(self, info=info, first=first, last=first + info.nbytes, stride=None)

    @property
    def has_rows_in_one_piece(self) -> bool:
        """Whether its rows are consecutive in the file."""
        return self.stride is None or (len(self.info.shape) == 2 and self.stride == (self.info.shape[1], 1))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor, or some of its rows, and the bytes [start, stop) of the file that must be read for it.

    ``storage`` is given if its header is at ``start`` and must be read first.
    """

    span: Span
    start: int
    stop: int
    storage: Storage | None = None

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """Read it from ``run``, which is at ``start``; its memory is not reused while it lives.

        Raises Skipped("corrupt_file") if the bytes contradict the file's index.
        """
        if self.storage is not None and self.storage.read_header is not None:
            run.skip_to(self.storage.read_header(bytes(run.read(self.storage.header_bytes))))
        flat = buffers.load_flat(run, self.span.last - self.span.first, self.span.info.dtype)
        if self.span.stride is None:
            return flat.reshape(self.span.info.shape)
        return flat.as_strided(self.span.info.shape, self.span.stride)


class TensorIndex:
    """The tensors of one weight file, ``source``, known without reading the weights.

    ``format`` is the name of the file format, ``tensors`` the tensors in the order of the file, ``metadata`` that of a
    safetensors file.
    """

    def __init__(
        self,
        source: ByteSource,
        form: str,
        spans: Mapping[str, Span],
        storages: Mapping[str, Storage],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.format = form
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({name: span.info for name, span in spans.items()})
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.source = source
        self._spans = spans
        self._storages = dict(storages)

    def locate(self, name: str, rows: range | None = None) -> StoredTensor:
        """The bytes of a tensor or of some rows of a matrix; for a part of a storage its header may be read.

        Raises KeyError, or Skipped if the file cannot hold what it claims or the rows are not contiguous.
        """
        span = self._spans[name] if rows is None else self._spans[name].of_rows(rows)
        storage = self._storages[span.key]
        if storage.read_header is not None and rows is None and span.first == 0:
            # A tensor at the start of its storage is read together with the header.
            if storage.data is not None:
                return StoredTensor(span, storage.start, storage.data + span.last, storage)
            if span.last == storage.size:
                return StoredTensor(span, storage.start, storage.stop, storage)
        if storage.data is None:
            assert storage.read_header is not None
            header = self.source.read(storage.start, storage.start + storage.header_bytes)
            storage = self._storages[span.key] = replace(storage, data=storage.read_header(bytes(header)))
        assert storage.data is not None
        return StoredTensor(span, storage.data + span.first, storage.data + span.last)

    def renamed(self, names: Mapping[str, str]) -> TensorIndex:
        """The same file with other names for some tensors. ``names``: the new names by the old ones."""
        spans = {
            names.get(name, name): replace(span, info=replace(span.info, name=names.get(name, name)))
            for name, span in self._spans.items()
        }
        return TensorIndex(self.source, self.format, spans, self._storages, self.metadata)

    def has_rows_in_one_piece(self, name: str) -> bool:
        """Whether the rows of a matrix, or of several of one shape, are consecutive in the file."""
        return self._spans[name].has_rows_in_one_piece

    def locate_stripes(self, name: str, stripes: Sequence[range]) -> list[StoredTensor]:
        """The bytes of some stripes of rows of a matrix, in ascending order. Raises like ``locate``.

        If only a header before the data contains their offset, and the first stripe begins with the data, the header is
        read with that stripe: then each result has a ``storage``, and _HEADER_SLACK bytes more than its rows.
        """
        span = self._spans[name]
        storage, parts = self._storages[span.key], [span.of_rows(stripe) for stripe in stripes]
        if storage.data is not None or storage.read_header is None or parts[0].first != 0:
            return [self.locate(name, stripe) for stripe in stripes]
        lowest = storage.start + storage.header_bytes
        return [
            StoredTensor(
                part,
                lowest + part.first if number else storage.start,
                min(lowest + part.last + _HEADER_SLACK, storage.stop),
                storage,
            )
            for number, part in enumerate(parts)
        ]

    def read(self, name: str, rows: range | None = None) -> torch.Tensor:
        """Read one tensor or some rows of a matrix. Raises KeyError, Failed, Skipped("unreadable_dtype")."""
        check_readable(self.tensors[name])
        stored = self.locate(name, rows)
        with closing(self.source.run(stored.start, stored.stop)) as run:
            return stored.load(run, Buffers())


def read_safetensors(source: ByteSource, most: int = MOST_HEADER) -> TensorIndex:
    """Read and check the header; raises like :func:`indexer.checkpoints.safetensors_header.read_header`."""
    header = read_header(source, most)
    spans: dict[str, Span] = {}
    for name, entry in header.entries.items():
        dtype = DTYPES.get(entry.dtype, torch.uint8)
        info = TensorInfo(name, dtype, entry.shape, entry.nbytes, entry.dtype)
        spans[name] = Span(info, "", entry.start, entry.stop)
    return TensorIndex(source, "safetensors", spans, {"": Storage(source.size, data=0)}, header.metadata)


def plan_runs(located: Collection[StoredTensor], most_gap: int | None = None) -> list[list[StoredTensor]]:
    """Group tensors into runs, each fetched by one request.

    Adjacent tensors share a run. Gaps are fetched as well: with ``most_gap`` all gaps up to that length, else the
    smallest first, as long as all fetched gaps together are within GAP_SHARE of the tensors' bytes. Overlapping tensors
    do not share a run.
    """
    ordered = sorted(located, key=lambda tensor: (tensor.start, tensor.stop))
    allowance = GAP_SHARE * sum(tensor.stop - tensor.start for tensor in ordered)
    gaps = sorted(
        (after.start - before.stop, position) for position, (before, after) in enumerate(pairwise(ordered), start=1)
    )
    breaks = set()
    for gap, position in gaps:
        allowance -= max(gap, 0)
        if (gap < 0 or allowance < 0) if most_gap is None else gap > most_gap:
            breaks.add(position)
    runs: list[list[StoredTensor]] = []
    for position, tensor in enumerate(ordered):
        if position == 0 or position in breaks:
            runs.append([])
        runs[-1].append(tensor)
    return runs


def check_readable(info: TensorInfo) -> None:
    """Raise Skipped("unreadable_dtype") unless deltas can be computed for the tensor's dtype."""
    if info.dtype not in READABLE:
        names = ", ".join(DTYPE_NAMES[dtype] for dtype in READABLE)
        raise Skipped(
            "unreadable_dtype",
            f"the tensor {shown(info.name)} is stored as {shown(info.dtype_name)}, not as one of {names}",
        )


class Buffers:
    """Memory for tensors that are read one after another. It is reused once its last tensor was released.

    New memory costs as much time as reading into it, and leaves gaps in the heap, among the chunks of a body, that
    add up. The memory of a tensor that is still in use is not reused.
    """

    _SMALL = 1 << 20

    def __init__(self, most: int = 2) -> None:
        """``most``: how many pieces of memory are kept for reuse."""
        self._most = most
        self._memories: list[tuple[mmap.mmap, weakref.ref[memoryview]]] = []

    def load_flat(self, run: Run, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
        """The next ``nbytes`` of ``run`` as a one-dimensional tensor."""
        if nbytes < self._SMALL:
            small = torch.empty(nbytes, dtype=torch.uint8)
            if nbytes:
                run.read_into(small.numpy().data)
            return small.view(dtype)
        fitting = [memory for memory, user in self._memories if user() is None and len(memory) >= nbytes]
        memory = min(fitting, key=len, default=None)
        if memory is None:
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memories = [(memory, user) for memory, user in self._memories if user() is not None]
        # The tensor holds a reference to the view: without the view, the memory is free.
        view = memoryview(memory)[:nbytes]
        if len(self._memories) < self._most:
            self._memories.append((memory, weakref.ref(view)))
        run.read_into(view)
        return torch.frombuffer(view, dtype=dtype)
