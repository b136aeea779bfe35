"""PyTorch's own files: where the tensors of a ``.bin`` lie, without running its pickle.

Since PyTorch 1.6 the file is a zip archive that stores a pickle (``data.pkl``) and one uncompressed entry for
each storage. Before, it was a row of pickles (a magic number, a version, facts about the machine, the
object, the keys of its storages) followed by the storages in the order of the keys, each an int64 count of
elements and the elements. Both give the same kind of index, so both are read lazily, by ranges, one tensor at a time.

The pickles are followed by ``indexer.state_pickle``, never run; ``torch.load`` is not used at all.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from indexer.byterange import ByteSource, Run
from indexer.errors import Skipped
from indexer.state_pickle import MOST_BYTES, PickledStorage, PickledTensor, read_pickle, state_dict_of
from indexer.stored_tensor import DTYPE_NAMES, StoredTensor, TensorInfo, element_count, load_flat, shown

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001

# The zip directory of a model of 200 tensors takes 14 KiB, its pickle 30 KiB.
_TAIL = 16 << 10
_FRONT = 32 << 10
_LOCAL_HEADER = 30
_MOST_EXTRA = 2 * 0xFFFF


@dataclass(frozen=True)
class _Span:
    """The bytes of a storage that a tensor touches: [first, last) counted from the storage's beginning."""

    info: TensorInfo
    first: int
    last: int
    stride: tuple[int, ...]

    def load(self, run: Run) -> torch.Tensor:
        """The tensor, from a run that stands at ``first``."""
        flat = load_flat(run, self.last - self.first, self.info.dtype)
        return flat.as_strided(self.info.shape, self.stride)


@dataclass(frozen=True)
class _Entry:
    """A stored zip entry: its header's place, its size, and where the next header begins."""

    name: str
    header: int
    size: int
    next_header: int


@dataclass(frozen=True)
class ZipTensor:
    """A tensor in a zip entry. The local header, whose length only itself tells, is read on the way."""

    span: _Span
    entry: _Entry

    @property
    def info(self) -> TensorInfo:
        """The tensor."""
        return self.span.info

    @property
    def start(self) -> int:
        """Where the entry's local header begins."""
        return self.entry.header

    @property
    def stop(self) -> int:
        """Behind the data, at the latest."""
        return min(self.entry.next_header, self.entry.header + _LOCAL_HEADER + _MOST_EXTRA + self.span.last)

    def load(self, run: Run) -> torch.Tensor:
        """The tensor. Raises Skipped("corrupt_file") where header and directory disagree."""
        data = _data_start(self.entry, bytes(run.read(_LOCAL_HEADER)))
        run.skip_to(data + self.span.first)
        return self.span.load(run)


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor whose bytes lie in [start, stop) of the file."""

    span: _Span
    start: int
    stop: int

    @property
    def info(self) -> TensorInfo:
        """The tensor."""
        return self.span.info

    def load(self, run: Run) -> torch.Tensor:
        """The tensor."""
        return self.span.load(run)


@dataclass(frozen=True)
class LegacyTensor:
    """A whole storage of the older form: its count of elements first, then the data."""

    span: _Span
    elements: int
    start: int
    stop: int

    @property
    def info(self) -> TensorInfo:
        """The tensor."""
        return self.span.info

    def load(self, run: Run) -> torch.Tensor:
        """The tensor. Raises Skipped("corrupt_file") where the count is not the one the pickle told."""
        count = int.from_bytes(run.read(8), "little")
        if count != self.elements:
            raise Skipped(
                "corrupt_file",
                f"{shown(self.info.name)} lies where {count} elements are stored, not {self.elements}",
            )
        return self.span.load(run)


class ZipIndex:
    """The tensors of a zip ``.bin``."""

    format = "torch-zip"

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        entries = _directory(source)
        pickle_name = _only_pickle(source, entries)
        folder = pickle_name.removesuffix("data.pkl")
        _check_byte_order(source, entries.get(f"{folder}byteorder"))
        content = io.BytesIO(_content(source, entries[pickle_name], MOST_BYTES))
        pickled = state_dict_of(read_pickle(content, source.name).value)
        self._entries = {name.removeprefix(f"{folder}data/"): entry for name, entry in entries.items()}
        self._spans = {name: self._span(name, tensor) for name, tensor in pickled.items()}
        self._keys = {name: tensor.storage.key for name, tensor in pickled.items()}
        self._data_starts: dict[str, int] = {}
        self.tensors: Mapping[str, TensorInfo] = _infos(self._spans)

    def locate(self, name: str) -> StoredTensor:
        """Where ``name`` lies. For a part of a larger storage the storage's header is read to tell."""
        span, key = self._spans[name], self._keys[name]
        entry = self._entries[key]
        if (span.first, span.last) == (0, entry.size):
            return ZipTensor(span, entry)
        if key not in self._data_starts:
            header = self._source.read(entry.header, entry.header + _LOCAL_HEADER)
            self._data_starts[key] = _data_start(entry, bytes(header))
        data = self._data_starts[key]
        return PlacedTensor(span, data + span.first, data + span.last)

    def _span(self, name: str, tensor: PickledTensor) -> _Span:
        entry = self._entries.get(tensor.storage.key)
        claimed = tensor.storage.elements * tensor.storage.dtype.itemsize
        if entry is None:
            raise _corrupt(self._source, f"holds no data for the tensor {shown(name)}")
        if claimed != entry.size:
            raise _corrupt(
                self._source,
                f"says that the storage of {shown(name)} takes {claimed} bytes, but stores {entry.size}",
            )
        return _span(self._source, name, tensor, entry.size)


class LegacyIndex:
    """The tensors of a ``.bin`` of the older form."""

    format = "torch-legacy"

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        file = _Front(source, MOST_BYTES)
        for number in (MAGIC_NUMBER, PROTOCOL_VERSION):
            if read_pickle(file, source.name).value != number:
                raise _corrupt(source, "is neither a zip archive nor a PyTorch file of the older form")
        read_pickle(file, source.name)  # facts about the machine that wrote it
        content = read_pickle(file, source.name)
        keys = read_pickle(file, source.name).value
        self._storages = content.storages
        self._places = _places(source, keys, content.storages, file.tell())
        pickled = state_dict_of(content.value)
        self._spans = {name: self._span(name, tensor) for name, tensor in pickled.items()}
        self._keys = {name: tensor.storage.key for name, tensor in pickled.items()}
        self.tensors: Mapping[str, TensorInfo] = _infos(self._spans)

    def locate(self, name: str) -> StoredTensor:
        """Where ``name`` lies."""
        span, storage = self._spans[name], self._storages[self._keys[name]]
        place = self._places[storage.key]
        if span.first == 0:
            return LegacyTensor(span, storage.elements, place, place + 8 + span.last)
        return PlacedTensor(span, place + 8 + span.first, place + 8 + span.last)

    def _span(self, name: str, tensor: PickledTensor) -> _Span:
        storage = self._storages[tensor.storage.key]
        return _span(self._source, name, tensor, storage.elements * storage.dtype.itemsize)


def read_torch_index(source: ByteSource) -> ZipIndex | LegacyIndex:
    """Read the index of a ``.bin``, whichever form it has.

    Raises Skipped: ``unsafe_pickle`` where the pickle names what has no place in a checkpoint,
    ``unreadable_format`` for TorchScript and the tar files of PyTorch before 0.1.10, ``corrupt_file``.
    """
    front = bytes(source.read(0, min(_FRONT, source.size), keep=True))
    if front.startswith(b"PK\x03\x04"):
        return ZipIndex(source)
    if front[257:262] == b"ustar":
        raise Skipped("unreadable_format", f"{shown(source.name)} is a tar file of a PyTorch before 0.1.10")
    if front.startswith(b"version https://git-lfs"):
        raise _corrupt(source, "is a Git LFS pointer, not the weights it points to")
    return LegacyIndex(source)


def _span(source: ByteSource, name: str, tensor: PickledTensor, storage_bytes: int) -> _Span:
    """Which bytes of its storage the tensor touches; they must lie inside, and be enough for its elements."""
    itemsize, count = tensor.dtype.itemsize, element_count(tensor.shape)
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True)) + 1
    first = (tensor.storage.first + tensor.offset) * itemsize
    last = first + (reach * itemsize if count else 0)
    if not count:
        first = last = 0
    if last > storage_bytes or count * itemsize > storage_bytes:
        raise _corrupt(source, f"gives the tensor {shown(name)} more than its storage holds")
    dtype_name = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    info = TensorInfo(name, tensor.dtype, tensor.shape, count * itemsize, dtype_name)
    return _Span(info, first, last, tensor.stride)


def _infos(spans: Mapping[str, _Span]) -> Mapping[str, TensorInfo]:
    return MappingProxyType({name: span.info for name, span in spans.items()})


# The zip form.


def _directory(source: ByteSource) -> dict[str, _Entry]:
    """The archive's directory, checked: each entry stored, named once, inside the file, over no other."""
    source.read(max(0, source.size - _TAIL), source.size, keep=True)
    try:
        with zipfile.ZipFile(_Seekable(source, 2 * MOST_BYTES)) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise _corrupt(
            source, f"has no usable zip directory at its end: is it cut short? ({error})"
        ) from error
    entries: dict[str, _Entry] = {}
    listed.sort(key=lambda info: info.header_offset, reverse=True)
    for info in listed:
        name = info.filename
        if name in entries:
            raise _corrupt(source, f"holds {shown(name)} twice")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1
            or info.compress_size != info.file_size
        ):
            raise _corrupt(source, f"holds {shown(name)} compressed or encrypted, as PyTorch never stores it")
        if not 0 <= info.header_offset <= end - _LOCAL_HEADER - info.file_size:
            raise _corrupt(source, f"puts {shown(name)} outside of the file or over another entry")
        entries[name] = _Entry(name, info.header_offset, info.file_size, end)
        end = info.header_offset
    return entries


def _only_pickle(source: ByteSource, entries: Mapping[str, _Entry]) -> str:
    names = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if any(name.endswith("/constants.pkl") for name in entries):
        raise Skipped(
            "unreadable_format", f"{shown(source.name)} is a TorchScript archive, a program with weights"
        )
    if len(names) != 1:
        raise _corrupt(source, "is a zip archive, but not one that PyTorch wrote (no single data.pkl)")
    return names[0]


def _check_byte_order(source: ByteSource, entry: _Entry | None) -> None:
    if entry is not None and _content(source, entry, 16) != b"little":
        raise Skipped("unreadable_format", f"{shown(source.name)} was written by a big-endian machine")


def _content(source: ByteSource, entry: _Entry, limit: int) -> bytes:
    if entry.size > limit:
        raise _corrupt(source, f"holds {shown(entry.name)} of {entry.size} bytes; up to {limit} are read")
    data = _data_start(entry, bytes(source.read(entry.header, entry.header + _LOCAL_HEADER)))
    return bytes(source.read(data, data + entry.size))


def _data_start(entry: _Entry, header: bytes) -> int:
    """Where the entry's data begin, from its local header (30 bytes, then its name and extra fields)."""
    name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    start = entry.header + _LOCAL_HEADER + name_length + extra_length
    if header[:4] != b"PK\x03\x04" or header[8:10] != b"\0\0" or start + entry.size > entry.next_header:
        raise Skipped("corrupt_file", f"the entry {shown(entry.name)} is not what the zip directory says")
    return start


class _Seekable(io.RawIOBase):
    """A source as the file object that ``zipfile`` wants; it gives no more than ``limit`` bytes in all."""

    def __init__(self, source: ByteSource, limit: int) -> None:
        self._source = source
        self._left = limit
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
        content = bytes(self._source.read(self._position, self._position + count))
        self._position += count
        return content


# The older form.


def _places(
    source: ByteSource, keys: object, storages: Mapping[str, PickledStorage], position: int
) -> dict[str, int]:
    """Where each storage (its count first) begins: one behind the other, in the order of ``keys``."""
    if not isinstance(keys, list) or set(map(str, keys)) != storages.keys() or len(keys) != len(storages):
        raise _corrupt(source, "does not list its storages as its pickle names them")
    places: dict[str, int] = {}
    for key in map(str, keys):
        places[key] = position
        position += 8 + storages[key].elements * storages[key].dtype.itemsize
    if position > source.size:
        raise _corrupt(source, f"is cut short: {position - source.size} of its {position} bytes are missing")
    return places


class _Front:
    """The beginning of a file as what ``pickletools`` reads from; no more than ``limit`` bytes of it."""

    def __init__(self, source: ByteSource, limit: int) -> None:
        self._source = source
        self._limit = min(limit, source.size)
        self._content = bytearray()
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        stop = min(self._position + count, self._limit)
        self._fetch(stop)
        piece = bytes(self._content[self._position : stop])
        self._position = stop
        return piece

    def readline(self) -> bytes:
        end = self._content.find(b"\n", self._position)
        while end < 0 and len(self._content) < self._limit:
            searched = len(self._content)
            self._fetch(searched + 1)
            end = self._content.find(b"\n", searched)
        return self.read((end + 1 if end >= 0 else self._limit) - self._position)

    def _fetch(self, stop: int) -> None:
        have = len(self._content)
        if stop > have:
            more = min(self._limit, max(stop, have + _FRONT))
            self._content += self._source.read(have, more)


def _corrupt(source: ByteSource, what: str) -> Skipped:
    return Skipped("corrupt_file", f"{shown(source.name)} {what}")
