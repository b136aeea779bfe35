"""The tensors of PyTorch's ``.bin`` files, found without running their pickles.

Both formats give the same kind of index and are read lazily, by ranges, one tensor at a time. The zip format (since
PyTorch 1.6) holds a pickle, and one uncompressed entry for each storage. The older format is a sequence of pickles (a
magic number, a version, facts about the machine, the object, the keys of its storages), then the storages in the order
of the keys, each an int64 count of elements and the elements.

``indexer.checkpoints.pickled`` interprets the pickles; ``torch.load`` is not used.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from functools import partial

from indexer.checkpoints.pickled import MOST_BYTES, PickledStorage, PickledTensor, read_pickle, state_dict_of
from indexer.checkpoints.stored_tensor import DTYPE_NAMES, Span, Storage, TensorIndex, TensorInfo, dtype_name
from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, corrupt, refuse_pointer
from indexer.untrusted import shown

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001

# 32 KiB describe about 200 tensors in the older format; the directory of a zip file of 200 tensors takes 14 KiB.
_FRONT = 32 << 10
_TAIL = 16 << 10
_MOST_DIRECTORY = 4 << 20
_LOCAL_HEADER = 30
_MOST_NAME_AND_EXTRA = 2 * 0xFFFF


def read_torch_index(source: ByteSource) -> TensorIndex:
    """Read the index of a ``.bin`` of either format.

    Raises Skipped: ``unsafe_pickle`` if the pickle names something that does not belong in a checkpoint,
    ``unreadable_format`` for TorchScript, files of big-endian machines and the tar files of PyTorch before 0.1.10,
    ``corrupt_file`` for all other problems.
    """
    front = bytes(source.read(0, min(_FRONT, source.size), keep=True))
    if front.startswith(b"PK\x03\x04"):
        return _read_zip(source)
    if front[257:262] == b"ustar":
        raise Skipped("unreadable_format", f"{shown(source.name)} is a tar file of a PyTorch before 0.1.10")
    refuse_pointer(source, front)
    return _read_legacy(source)


def _span(source: ByteSource, name: str, tensor: PickledTensor, storage_bytes: int) -> Span:
    """The bytes of its storage that the tensor uses.

    Raises Skipped("corrupt_file") unless they lie inside the storage and suffice for all elements of the shape.
    """
    itemsize, count = tensor.dtype.itemsize, math.prod(tensor.shape)
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    first = (tensor.storage.first + tensor.offset) * itemsize if count else 0
    last = first + reach * itemsize if count else 0
    if last > storage_bytes or count * itemsize > storage_bytes:
        raise corrupt(source, f"gives the tensor {shown(name)} more than its storage holds")
    stated = DTYPE_NAMES.get(tensor.dtype) or dtype_name(tensor.dtype)
    info = TensorInfo(name, tensor.dtype, tensor.shape, count * itemsize, stated)
    return Span(info, tensor.storage.key, first, last, tensor.stride)


# The older format.


def _read_legacy(source: ByteSource) -> TensorIndex:
    file = _Front(source)
    for number in (_MAGIC_NUMBER, _PROTOCOL_VERSION):
        if read_pickle(file, source.name)[0] != number:
            raise corrupt(source, "is neither a zip archive nor a PyTorch file of the older form")
    read_pickle(file, source.name)  # facts about the machine that wrote it
    content, pickled_storages = read_pickle(file, source.name)
    keys, _ = read_pickle(file, source.name)
    if not isinstance(keys, list) or len(keys) != len(pickled_storages):
        raise corrupt(source, "does not list its storages as its pickle names them")
    storages: dict[str, Storage] = {}
    position = file.tell()
    for key in keys:
        if not isinstance(key, str) or key not in pickled_storages or key in storages:
            raise corrupt(source, "does not list its storages as its pickle names them")
        storage = pickled_storages[key]
        stop = position + 8 + storage.nbytes
        check = partial(_legacy_data, source.name, position, storage)
        storages[key] = Storage(storage.nbytes, position + 8, position, stop, header_bytes=8, read_header=check)
        position = stop
    if position > source.size:
        raise corrupt(source, f"is cut short: {position - source.size} of its {position} bytes are missing")
    spans = {
        name: _span(source, name, tensor, storages[tensor.storage.key].size)
        for name, tensor in state_dict_of(content).items()
    }
    return TensorIndex(source, "torch-legacy", spans, storages)


def _legacy_data(filename: str, start: int, storage: PickledStorage, header: bytes) -> int:
    """The offset of a storage's data. Raises Skipped("corrupt_file") if the file's count differs from the pickle's."""
    count = int.from_bytes(header, "little")
    if count != storage.elements:
        raise Skipped(
            "corrupt_file",
            f"{shown(filename)} stores {count} elements as the storage {shown(storage.key)}, not {storage.elements}",
        )
    return start + len(header)


class _Front:
    """The first MOST_BYTES of a file, as a source for pickles.

    Unlike ``io.BufferedReader`` it allocates no memory for bytes that a hostile pickle claims and the file lacks.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._limit = min(MOST_BYTES, source.size)
        self._content = bytearray()
        self._position = 0

    def tell(self) -> int:
        """The number of bytes read."""
        return self._position

    def read(self, count: int) -> bytes:
        """At most ``count`` bytes, fewer at the end."""
        stop = min(self._position + count, self._limit)
        self._fetch(stop)
        piece = bytes(self._content[self._position : stop])
        self._position = stop
        return piece

    def readline(self) -> bytes:
        """Up to and with the next newline, or to the end."""
        end = self._content.find(b"\n", self._position)
        while end < 0 and len(self._content) < self._limit:
            searched = len(self._content)
            self._fetch(searched + 1)
            end = self._content.find(b"\n", searched)
        return self.read((end + 1 if end >= 0 else self._limit) - self._position)

    def _fetch(self, stop: int) -> None:
        fetched = len(self._content)
        if stop > fetched:
            self._content += self._source.read(fetched, min(self._limit, max(stop, fetched + _FRONT)))


# The zip format.


def _read_zip(source: ByteSource) -> TensorIndex:
    entries = _directory(source)
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise corrupt(source, "is a zip archive, but not one that PyTorch wrote (no single data.pkl)")
    folder = pickles[0].removesuffix("data.pkl")
    byte_order = entries.get(f"{folder}byteorder")
    if byte_order is not None and _content(source, "byteorder", byte_order, 16) != b"little":
        raise Skipped("unreadable_format", f"{shown(source.name)} was written by a big-endian machine")
    content, _ = read_pickle(io.BytesIO(_content(source, pickles[0], entries[pickles[0]], MOST_BYTES)), source.name)
    storages = {name.removeprefix(f"{folder}data/"): entry for name, entry in entries.items()}
    spans: dict[str, Span] = {}
    for name, tensor in state_dict_of(content).items():
        entry, size = storages.get(tensor.storage.key), tensor.storage.nbytes
        if entry is None:
            raise corrupt(source, f"holds no data for the tensor {shown(name)}")
        if size != entry.size:
            raise corrupt(source, f"says that the storage of {shown(name)} takes {size} bytes, but stores {entry.size}")
        spans[name] = _span(source, name, tensor, size)
    return TensorIndex(source, "torch-zip", spans, storages)


def _directory(source: ByteSource) -> dict[str, Storage]:
    """The archive's entries. Each is checked to be uncompressed, unique, inside the file and not over another entry."""
    source.read(max(0, source.size - _TAIL), source.size, keep=True)
    try:
        with zipfile.ZipFile(_Seekable(source)) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        reason = shown(error)
        raise corrupt(source, f"has no usable zip directory at its end; it may be cut short ({reason})") from error
    if any(info.filename.endswith("/constants.pkl") for info in listed):
        raise Skipped("unreadable_format", f"{shown(source.name)} is a TorchScript archive, not a checkpoint")
    entries: dict[str, Storage] = {}
    for info in sorted(listed, key=lambda info: info.header_offset, reverse=True):
        name, start, size = info.filename, info.header_offset, info.file_size
        if name in entries:
            raise corrupt(source, f"holds {shown(name)} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != size:
            raise corrupt(source, f"holds {shown(name)} compressed or encrypted, as PyTorch never stores it")
        if not 0 <= start <= end - _LOCAL_HEADER - size:
            raise corrupt(source, f"puts {shown(name)} outside of the file or over another entry")
        read_header = partial(_zip_data, name, start, size, end)
        stop = min(end, start + _LOCAL_HEADER + _MOST_NAME_AND_EXTRA + size)
        entries[name] = Storage(size, None, start, stop, _LOCAL_HEADER, read_header)
        end = start
    return entries


def _zip_data(name: str, start: int, size: int, next_header: int, header: bytes) -> int:
    """The offset of an entry's data, from its local header (30 bytes, then its name and extra fields).

    Raises Skipped("corrupt_file") if header and directory disagree.
    """
    name_length, extra_length = (int.from_bytes(header[position : position + 2], "little") for position in (26, 28))
    data = start + _LOCAL_HEADER + name_length + extra_length
    if header[:4] != b"PK\x03\x04" or header[8:10] != b"\0\0" or data + size > next_header:
        raise Skipped("corrupt_file", f"the entry {shown(name)} is not what the zip directory says")
    return data


def _content(source: ByteSource, name: str, entry: Storage, most: int) -> bytes:
    if entry.size > most:
        raise corrupt(source, f"holds {shown(name)} of {entry.size} bytes; up to {most} are read")
    assert entry.read_header is not None
    data = entry.read_header(bytes(source.read(entry.start, entry.start + entry.header_bytes)))
    return bytes(source.read(data, data + entry.size))


class _Seekable(io.RawIOBase):
    """A source as a file object for ``zipfile``. It returns at most ``_MOST_DIRECTORY`` bytes in all."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._bytes_left = _MOST_DIRECTORY
        self._position = 0

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
        if count > self._bytes_left:
            raise ValueError("the directory is too large")
        self._bytes_left -= count
        content = bytes(self._source.read(self._position, self._position + count)) if count else b""
        self._position += count
        return content
