"""Finds the tensors of PyTorch's ``.bin`` files without running their pickles.

Both formats give the same kind of index and are read lazily, by ranges, one tensor at a time. The zip format is in
``indexer.weights.torch_zip``. The older format, before PyTorch 1.6, is here: a sequence of pickles (a magic number, a
version, facts about the machine, the object, the keys of its storages), then the storages in the order of the keys,
each an int64 count of elements and the elements.

``indexer.weights.state_pickle`` interprets the pickles; ``torch.load`` is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from indexer.errors import Skipped
from indexer.network.byterange import ByteSource, Run
from indexer.untrusted import shown
from indexer.weights.pickled import PickledStorage, PlacedTensor, infos_of, span_of
from indexer.weights.state_pickle import MOST_BYTES, read_pickle, state_dict_of
from indexer.weights.stored_tensor import Buffers, StoredTensor, TensorIndex, TensorInfo
from indexer.weights.torch_zip import ZipIndex

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001

# 32 KiB describe about 200 tensors.
_FRONT = 32 << 10


def read_torch_index(source: ByteSource) -> TensorIndex:
    """Read the index of a ``.bin`` of either format.

    Raises Skipped: ``unsafe_pickle`` if the pickle names something that does not belong in a checkpoint,
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


@dataclass(frozen=True)
class LegacyTensor(PlacedTensor):
    """A tensor at the beginning of its storage; [start, stop) begins with the storage's count of elements."""

    elements: int

    def load(self, run: Run, buffers: Buffers) -> torch.Tensor:
        """The tensor. Raises Skipped("corrupt_file") if the count differs from the pickle's."""
        count = int.from_bytes(run.read(8), "little")
        if count != self.elements:
            raise Skipped(
                "corrupt_file",
                f"{shown(self.info.name)} lies where {count} elements are stored, not {self.elements}",
            )
        return super().load(run, buffers)


class LegacyIndex:
    """The tensors of a file of the older format.

    Raises Skipped: ``unsafe_pickle``, and ``corrupt_file`` for other files.
    """

    format = "torch-legacy"

    def __init__(self, source: ByteSource) -> None:
        file = _Front(source)
        for number in (MAGIC_NUMBER, PROTOCOL_VERSION):
            if read_pickle(file, source.name).value != number:
                raise _corrupt(source, "is neither a zip archive nor a PyTorch file of the older form")
        read_pickle(file, source.name)  # facts about the machine that wrote it
        content = read_pickle(file, source.name)
        keys = read_pickle(file, source.name).value
        self._storages = content.storages
        self._places = _places(source, keys, content.storages, file.tell())
        pickled = state_dict_of(content.value)
        self._spans = {
            name: span_of(source, name, tensor, self._storages[tensor.storage.key].nbytes)
            for name, tensor in pickled.items()
        }
        self._keys = {name: tensor.storage.key for name, tensor in pickled.items()}
        self.tensors: Mapping[str, TensorInfo] = infos_of(self._spans)

    def locate(self, name: str) -> StoredTensor:
        """The place of ``name``."""
        span, storage = self._spans[name], self._storages[self._keys[name]]
        place = self._places[storage.key]
        if span.first == 0:
            return LegacyTensor(span, place, place + 8 + span.last, storage.elements)
        return PlacedTensor(span, place + 8 + span.first, place + 8 + span.last)

    def locate_rows(self, name: str, rows: range) -> StoredTensor:
        """The place of some rows of the matrix ``name``."""
        span, place = self._spans[name].of_rows(rows), self._places[self._keys[name]]
        return PlacedTensor(span, place + 8 + span.first, place + 8 + span.last)


def _places(source: ByteSource, keys: object, storages: Mapping[str, PickledStorage], position: int) -> dict[str, int]:
    """The start of each storage (which begins with its count), in the order of ``keys``."""
    if not isinstance(keys, list) or len(keys) != len(storages):
        raise _corrupt(source, "does not list its storages as its pickle names them")
    places: dict[str, int] = {}
    for key in keys:
        if not isinstance(key, str) or key not in storages or key in places:
            raise _corrupt(source, "does not list its storages as its pickle names them")
        places[key] = position
        position += 8 + storages[key].nbytes
    if position > source.size:
        raise _corrupt(source, f"is cut short: {position - source.size} of its {position} bytes are missing")
    return places


class _Front:
    """The first MOST_BYTES of a file, as a source for pickles."""

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
        have = len(self._content)
        if stop > have:
            self._content += self._source.read(have, min(self._limit, max(stop, have + _FRONT)))


def _corrupt(source: ByteSource, what: str) -> Skipped:
    return Skipped("corrupt_file", f"{shown(source.name)} {what}")
