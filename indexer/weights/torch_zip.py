"""PyTorch's zip files (since 1.6): a pickle, and one uncompressed entry per storage."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, Run
from indexer.untrusted import shown
from indexer.weights.pickled import PickledTensor, PlacedTensor, Span, infos_of, span_of
from indexer.weights.state_pickle import MOST_BYTES, read_pickle, state_dict_of
from indexer.weights.stored_tensor import Buffers, StoredTensor, TensorInfo

# The directory of a model of 200 tensors takes 14 KiB.
_TAIL = 16 << 10
_MOST_DIRECTORY = 4 << 20
_LOCAL_HEADER = 30
_MOST_NAME_AND_EXTRA = 2 * 0xFFFF


@dataclass(frozen=True)
class _Entry:
    """A stored entry: the start of its local header, its size, and the start of the next header."""

    name: str
    header: int
    size: int
    next_header: int


@dataclass(frozen=True)
class ZipTensor:
    """A tensor that fills an entry. The local header, which holds its own length, is read first."""

    span: Span
    entry: _Entry

    @property
    def info(self) -> TensorInfo:
        """The tensor."""
        return self.span.info

    @property
    def start(self) -> int:
        """The start of the entry's local header."""
        return self.entry.header

    @property
    def stop(self) -> int:
        """An upper bound for the end of the data."""
        longest = _LOCAL_HEADER + _MOST_NAME_AND_EXTRA + self.entry.size
        return min(self.entry.next_header, self.entry.header + longest)

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor. Raises Skipped("corrupt_file") if header and directory disagree."""
        run.skip_to(_data_start(self.entry, bytes(run.read(_LOCAL_HEADER))))
        return self.span.load(run, buffers)


class ZipIndex:
    """The tensors of a PyTorch zip file.

    Raises Skipped: ``unsafe_pickle``, ``corrupt_file``, ``unreadable_format`` for TorchScript and for files of
    big-endian machines.
    """

    format = "torch-zip"

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        entries = _directory(source)
        pickle_name = _only_pickle(source, entries)
        folder = pickle_name.removesuffix("data.pkl")
        byte_order = entries.get(f"{folder}byteorder")
        if byte_order is not None and _content(source, byte_order, 16) != b"little":
            raise Skipped("unreadable_format", f"{shown(source.name)} was written by a big-endian machine")
        content = io.BytesIO(_content(source, entries[pickle_name], MOST_BYTES))
        pickled = state_dict_of(read_pickle(content, source.name).value)
        self._entries = {name.removeprefix(f"{folder}data/"): entry for name, entry in entries.items()}
        self._spans = {name: self._span(name, tensor) for name, tensor in pickled.items()}
        self._keys = {name: tensor.storage.key for name, tensor in pickled.items()}
        self._data_starts: dict[str, int] = {}
        self.tensors: Mapping[str, TensorInfo] = infos_of(self._spans)

    def locate(self, name: str) -> StoredTensor:
        """The place of ``name``. For a part of a larger storage the storage's header is read."""
        span, key = self._spans[name], self._keys[name]
        entry = self._entries[key]
        if (span.first, span.last) == (0, entry.size):
            return ZipTensor(span, entry)
        return self._placed(span, key)

    def locate_rows(self, name: str, rows: range) -> StoredTensor:
        """The place of some rows of the matrix ``name``; the storage's header is read."""
        return self._placed(self._spans[name].of_rows(rows), self._keys[name])

    def _placed(self, span: Span, key: str) -> PlacedTensor:
        if key not in self._data_starts:
            entry = self._entries[key]
            header = self._source.read(entry.header, entry.header + _LOCAL_HEADER)
            self._data_starts[key] = _data_start(entry, bytes(header))
        data = self._data_starts[key]
        return PlacedTensor(span, data + span.first, data + span.last)

    def _span(self, name: str, tensor: PickledTensor) -> Span:
        entry = self._entries.get(tensor.storage.key)
        if entry is None:
            raise _corrupt(self._source, f"holds no data for the tensor {shown(name)}")
        if tensor.storage.nbytes != entry.size:
            raise _corrupt(
                self._source,
                f"says that the storage of {shown(name)} takes {tensor.storage.nbytes} bytes, but stores {entry.size}",
            )
        return span_of(self._source, name, tensor, entry.size)


def _directory(source: ByteSource) -> dict[str, _Entry]:
    """The archive's directory; every entry is checked to be stored, unique, inside the file and not overlapping."""
    source.read(max(0, source.size - _TAIL), source.size, keep=True)
    try:
        with zipfile.ZipFile(_Seekable(source)) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        reason = shown(error)
        raise _corrupt(source, f"has no usable zip directory at its end; it may be cut short ({reason})") from error
    if any(info.filename.endswith("/constants.pkl") for info in listed):
        raise Skipped("unreadable_format", f"{shown(source.name)} is a TorchScript archive, not a checkpoint")
    entries: dict[str, _Entry] = {}
    for info in sorted(listed, key=lambda info: info.header_offset, reverse=True):
        name = info.filename
        if name in entries:
            raise _corrupt(source, f"holds {shown(name)} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise _corrupt(source, f"holds {shown(name)} compressed or encrypted, as PyTorch never stores it")
        if not 0 <= info.header_offset <= end - _LOCAL_HEADER - info.file_size:
            raise _corrupt(source, f"puts {shown(name)} outside of the file or over another entry")
        entries[name] = _Entry(name, info.header_offset, info.file_size, end)
        end = info.header_offset
    return entries


def _only_pickle(source: ByteSource, entries: Mapping[str, _Entry]) -> str:
    names = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(names) != 1:
        raise _corrupt(source, "is a zip archive, but not one that PyTorch wrote (no single data.pkl)")
    return names[0]


def _content(source: ByteSource, entry: _Entry, limit: int) -> bytes:
    if entry.size > limit:
        raise _corrupt(source, f"holds {shown(entry.name)} of {entry.size} bytes; up to {limit} are read")
    data = _data_start(entry, bytes(source.read(entry.header, entry.header + _LOCAL_HEADER)))
    return bytes(source.read(data, data + entry.size))


def _data_start(entry: _Entry, header: bytes) -> int:
    """The start of the entry's data, from its local header (30 bytes, then its name and extra fields)."""
    name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    start = entry.header + _LOCAL_HEADER + name_length + extra_length
    if header[:4] != b"PK\x03\x04" or header[8:10] != b"\0\0" or start + entry.size > entry.next_header:
        raise Skipped("corrupt_file", f"the entry {shown(entry.name)} is not what the zip directory says")
    return start


class _Seekable(io.RawIOBase):
    """A source as a file object for ``zipfile``; it returns a bounded number of bytes in all."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._left = _MOST_DIRECTORY
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._source.size)[whence])
        return self._position

    def read(self, size: int = -1) -> bytes:
        stop = self._source.size if size < 0 else min(self._position + size, self._source.size)
        count = max(0, stop - self._position)
        if count > self._left:
            raise ValueError("the directory is too large")
        self._left -= count
        content = bytes(self._source.read(self._position, self._position + count)) if count else b""
        self._position += count
        return content


def _corrupt(source: ByteSource, what: str) -> Skipped:
    return Skipped("corrupt_file", f"{shown(source.name)} {what}")
