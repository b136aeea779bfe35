"""Checks the format of a FAISS file before FAISS reads it: FAISS trusts sizes, and crashes if they are wrong.

Only files that this program writes are accepted: an id map over flat vectors (a segment) or over RaBitQ codes. Every
field must have the one value that follows from the kind, the length and the number of vectors, and the file must end
after its last field. Integers are little-endian, as FAISS writes them; its index_write.cpp and index_read.cpp are the
only description of the format.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.choice import COMPRESSED

SEGMENT = ""
HALF = "fp16"  # a segment of 16-bit numbers
MOST_NUMBERS = 1 << 24  # of a vector

_INNER_PRODUCT = 0
_UNUSED = 1 << 20
_FP16 = 4  # FAISS's ScalarQuantizer::QT_fp16
_QUERY_BITS = 8  # the most that FAISS knows


class Malformed(ValueError):
    """The file is not what was announced."""


def rabitq_bytes(bits: int, length: int) -> int:
    """Bytes of the RaBitQ code of a vector. With more than one bit per number FAISS stores the factors twice."""
    return -(-length // 8) + (8 if bits == 1 else 20 + -(-length * (bits - 1) // 8))


def check_form(path: Path, factory: str, count: int, length: int) -> None:
    """Check that a file is an index of ``count`` vectors of ``length`` numbers.

    ``factory``: SEGMENT (flat), HALF (flat in 16 bits) or one of COMPRESSED.

    Raises Malformed if it is not, or OSError.
    """
    if factory not in (SEGMENT, HALF, *COMPRESSED):
        raise Malformed(f"an index that this version does not write ({factory[:60]!r})")
    content = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    if count < 0 or not 0 < length <= MOST_NUMBERS:
        raise Malformed(f"{count} vectors of {length} numbers")
    _Form(np.asarray(content), count).check(factory, length)


class _Form:
    """Reads a file from the front; every step checks the next field."""

    def __init__(self, content: NDArray[np.uint8], count: int) -> None:
        self.content = content
        self.count = count
        self.at = 0

    def check(self, factory: str, length: int) -> None:
        self._name("IxMp")
        self._header(length)
        if factory == SEGMENT:
            self._name("IxFI")
            self._header(length)
            self._vector("<f4", self.count * length)
        elif factory == HALF:
            self._name("IxSQ")
            self._header(length)
            self._fields("<iifQQ", _FP16, 0, 0.0, length, 2 * length)
            self._vector("<f4", 0)
            self._vector("u1", self.count * 2 * length)
        else:
            self._rabitq(COMPRESSED[factory], length)
        ids = self._vector("<i8", self.count)
        if len(ids) and ids.min() < 0:
            raise Malformed("a negative id")
        if factory in (SEGMENT, HALF) and not (ids[1:] > ids[:-1]).all():
            raise Malformed("ids that do not ascend")
        if self.at != len(self.content):
            raise Malformed(f"{len(self.content) - self.at} bytes after its end")

    def _rabitq(self, bits: int, length: int) -> None:
        size = rabitq_bytes(bits, length)
        self._name("Ixrq" if bits == 1 else "Ixrr")
        self._header(length)
        self._fields("<QQi", length, size, _INNER_PRODUCT)
        if bits > 1:
            self._fields("<Q", bits)
        self._vector("u1", self.count * size)
        self._vector("<f4", length)
        (query_bits,) = self._unpacked("<B")
        if query_bits > _QUERY_BITS:
            raise Malformed(f"{query_bits} bits of a query")

    def _header(self, length: int) -> None:
        self._fields("<iqqqBi", length, self.count, _UNUSED, _UNUSED, 1, _INNER_PRODUCT)

    def _name(self, name: str) -> None:
        found = self._bytes(4)
        if found != name.encode():
            raise Malformed(f"{found!r} instead of {name}")

    def _fields(self, form: str, *values: float) -> None:
        if self._unpacked(form) != values:
            raise Malformed(f"other fields at byte {self.at}")

    def _unpacked(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, count: int) -> bytes:
        start = self._skip(count)
        return self.content[start : self.at].tobytes()

    def _vector(self, kind: str, count: int) -> NDArray[Any]:
        """An array after its length, which must be ``count``."""
        (stored,) = self._unpacked("<Q")
        if stored != count:
            raise Malformed(f"{stored} numbers at byte {self.at}")
        start = self._skip(count * np.dtype(kind).itemsize)
        return self.content[start : self.at].view(kind)

    def _skip(self, size: int) -> int:
        """Advance by ``size`` bytes; returns the position before."""
        if not 0 <= size <= len(self.content) - self.at:
            raise Malformed("an early end")
        self.at += size
        return self.at - size
