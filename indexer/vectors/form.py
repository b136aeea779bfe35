"""The form of a FAISS file, checked before FAISS reads it: FAISS believes sizes, and crashes where they are wrong.

Only what this program writes is understood: a map of ids over flat vectors (a segment), or over one of the indexes of
:mod:`indexer.vectors.factories`. Every field must have the one value that the factory, the length and the number of
vectors leave it, so that nothing is left to be believed but numbers that are compared, and the file must end where its
last field does. Little-endian, as FAISS writes (its index_write.cpp and index_read.cpp are the only description).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.factories import CODES, read_factory, words_of

SEGMENT = ""
HALF = "fp16"  # a segment of 16-bit numbers
MOST_NUMBERS = 1 << 24  # of a vector

_INNER_PRODUCT = 0
_UNUSED = 1 << 20
_BLOCK = 32  # vectors that a fast scan compares at once
_QUERY_BITS = 8
_SCALARS = {"SQ8": (0, 8), "SQ4": (1, 4), "SQfp16": (4, 16), "SQ6": (6, 6), "SQbf16": (7, 16)}


class Malformed(ValueError):
    """The file is not what was announced."""


def check_form(path: Path, factory: str, count: int, length: int) -> None:
    """Whether a file is an index of ``count`` vectors of ``length`` numbers, made by ``factory``.

    SEGMENT: flat; HALF: the same in 16 bits.

    Raises Malformed where it is not, AtlasError where the factory is not understood, OSError.
    """
    content = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    if count < 0 or not 0 < length <= MOST_NUMBERS:
        raise Malformed(f"{count} vectors of {length} numbers")
    _Form(np.asarray(content), count).read(factory, length)


class _Form:
    """A walk through the bytes of a file; every step takes what must come next."""

    def __init__(self, content: NDArray[np.uint8], count: int) -> None:
        self.content = content
        self.count = count
        self.at = 0

    def read(self, factory: str, length: int) -> None:
        self._name("IxMp")
        self._header(length, self.count)
        if factory == SEGMENT:
            self._flat(length, self.count)
        elif factory == HALF:
            self._codes("SQfp16", length, {}, 0)
        else:
            self._compressed(factory, length)
        ids = self._vector("<i8", self.count)
        if len(ids) and ids.min() < 0:
            raise Malformed("a negative id")
        if factory in (SEGMENT, HALF) and not (ids[1:] > ids[:-1]).all():
            raise Malformed("ids that do not ascend")
        if self.at != len(self.content):
            raise Malformed(f"{len(self.content) - self.at} bytes after its end")

    # ---- kinds of indexes ----------------------------------------------------------------------------------------

    def _compressed(self, factory: str, length: int) -> None:
        asked, words = read_factory(factory, length), words_of(factory)
        if asked.principal:
            self._transformed("LTra", length, asked.kept)
        if words["rotated"]:
            self._transformed("rrot", asked.kept, asked.kept)
        if asked.graph:
            leaf = words["leaf"] or "Flat"
            self._name("IHNf" if leaf == "Flat" else "IHNs")
            self._header(asked.kept, self.count)
            self._graph(int(words["links"]))
            self._codes(leaf, asked.kept, words, 0)
        else:
            self._codes(words["code"], asked.kept, words, asked.lists)

    def _transformed(self, kind: str, length: int, kept: int) -> None:
        self._name("IxPT")
        self._header(length, self.count)
        self._fields("<i", 1)
        self._name(kind)
        self._fields("<B", 0)
        self._vector("<f4", length * kept)
        self._vector("<f4", 0)
        self._fields("<iiB", length, kept, 1)

    def _codes(self, code: str, length: int, words: dict[str, str], lists: int) -> None:
        if code == "Flat":
            if lists:
                self._lists("IwFl", length, lists)
                self._arrays(lists, 4 * length)
            else:
                self._flat(length, self.count)
        elif code in _SCALARS:
            self._begun("IwSq" if lists else "IxSQ", length, lists)
            size = self._scalar(code, length)
            if lists:
                self._fields("<QB", size, self._any("<B", 8, 1))
            self._ended(lists, size)
        elif code.startswith("RaBitQ"):
            self._rabitq(code, length, lists)
        else:
            self._product(int(words["parts"]), words["bits"] or "8", length, lists)

    def _begun(self, name: str, length: int, lists: int) -> None:
        if lists:
            self._lists(name, length, lists)
        else:
            self._name(name)
            self._header(length, self.count)

    def _ended(self, lists: int, size: int) -> None:
        if lists:
            self._arrays(lists, size)
        else:
            self._vector("u1", self.count * size)

    def _flat(self, length: int, count: int) -> None:
        self._name("IxFI")
        self._header(length, count)
        self._vector("<f4", count * length)

    def _scalar(self, code: str, length: int) -> int:
        kind, bits = _SCALARS[code]
        size = -(-length * bits // 8)
        self._fields("<iifQQ", kind, 0, 0.0, length, size)
        self._vector("<f4", 2 * length if bits < 16 else 0)
        return size

    def _product(self, parts: int, text: str, length: int, lists: int) -> None:
        fast, bits = text.endswith("fs"), int(text.removesuffix("fs"))
        size = -(-parts * bits // 8)
        even = parts + parts % 2
        if not fast:
            self._begun("IwPQ" if lists else "IxPq", length, lists)
            if lists:
                self._fields("<BQ", self._any("<B", 0, 1), size)
            self._quantizer(length, parts, bits)
            self._ended(lists, size)
            if not lists:
                self._fields("<iBi", 0, 0, self._any("<i", 5, 1 << 16))
        elif lists:
            self._lists("IwPf", length, lists)
            self._fields("<BQiQiQ", self._any("<B", 0, 1), size, _BLOCK, even, 0, 0)
            self._quantizer(length, parts, bits)
            self._blocks(lists, _BLOCK * even // 2)
        else:
            self._begun("IPfs", length, 0)
            self._quantizer(length, parts, bits)
            padded = -(-self.count // _BLOCK) * _BLOCK
            self._fields("<iiiQQ", 0, _BLOCK, 0, padded, even)
            self._vector("u1", padded * even // 2)

    def _quantizer(self, length: int, parts: int, bits: int) -> None:
        self._fields("<QQQ", length, parts, bits)
        self._vector("<f4", length << bits)

    def _rabitq(self, code: str, length: int, lists: int) -> None:
        fast, bits = code.endswith("fs"), CODES[code][0]
        size = -(-length // 8) + (8 if bits == 1 else 20 + -(-length * (bits - 1) // 8))
        name = ("Iwr" if lists else "Ixr" if not fast else "Irf") + ("n" if fast else "q" if bits == 1 else "r")
        self._begun(name, length, lists)
        self._fields("<QQi", length, size, _INNER_PRODUCT)
        if fast or bits > 1:
            self._fields("<Q", bits)
        even = -(-length // 8) * 2  # sub-quantizers of four bits, an even number
        block = _BLOCK * (even // 2 + 8)
        if fast and lists:
            self._fields("<BQiQQiBB", 1, size, _BLOCK, 0, even, 0, _QUERY_BITS, 0)
            self._blocks(lists, block)
        elif fast:
            self._vector("<f4", length)
            padded = -(-self.count // _BLOCK) * _BLOCK
            self._fields("<BiQQQ", _QUERY_BITS, _BLOCK, padded, even, size)
            self._vector("u1", padded // _BLOCK * block)
        elif lists:
            self._fields("<QBB", size, 1, self._any("<B", 9, 8))
            self._arrays(lists, size)
        else:
            self._vector("u1", self.count * size)
            self._vector("<f4", length)
            self._fields("<B", self._any("<B", 0, 8))

    # ---- inverted lists ------------------------------------------------------------------------------------------

    def _lists(self, name: str, length: int, lists: int) -> None:
        self._name(name)
        self._header(length, self.count)
        self._fields("<Q", lists)
        (visited,) = self._taken("<Q")
        if not 1 <= visited <= 1 << 20:
            raise Malformed(f"{visited} lists to visit")
        self._flat(length, lists)
        self._fields("<BQ", 0, 0)

    def _arrays(self, lists: int, size: int) -> None:
        self._name("ilar")
        self._fields("<QQ", lists, size)
        kind = self._bytes(4)
        sizes = np.zeros(lists, dtype=np.int64)
        if kind == b"full":
            sizes[:] = self._vector("<i8", lists)
        elif kind == b"sprs":
            pairs = self._vector("<i8", None, lists * 2).reshape(-1, 2)
            if len(pairs) and (pairs[:, 0].min() < 0 or pairs[:, 0].max() >= lists):
                raise Malformed("a list that is none")
            sizes[pairs[:, 0]] = pairs[:, 1]
        else:
            raise Malformed("inverted lists of another kind")
        self._add_up(sizes)
        held = [self._list(int(count), size) for count in sizes if count]
        self._each_once(held)

    def _list(self, count: int, size: int) -> NDArray[Any]:
        self._skip(count * size)
        return self._array("<i8", count)

    def _blocks(self, lists: int, block: int) -> None:
        self._name("ilbl")
        self._fields("<QqQQ", lists, -1, _BLOCK, block)
        held = []
        for _ in range(lists):
            held.append(self._vector("<i8", None, self.count))
            self._vector("u1", -(-len(held[-1]) // _BLOCK) * block)
        self._add_up(np.array([len(ids) for ids in held], dtype=np.int64))
        self._each_once(held)

    def _add_up(self, sizes: NDArray[np.int64]) -> None:
        if (sizes < 0).any() or (sizes > self.count).any() or int(sizes.sum()) != self.count:
            raise Malformed("lists that do not add up to its vectors")

    def _each_once(self, held: list[NDArray[Any]]) -> None:
        found = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *held]))
        if not np.array_equal(found, np.arange(self.count)):
            raise Malformed("lists that do not hold each vector once")

    # ---- graphs --------------------------------------------------------------------------------------------------

    def _graph(self, links: int) -> None:
        probabilities = self._vector("<f8", None, 64)
        below = self._vector("<i4", len(probabilities) + 1)
        if not np.array_equal(below, [0, *(links * (level + 2) for level in range(len(probabilities)))]):
            raise Malformed("levels of another width")
        levels = self._vector("<i4", self.count)
        if self.count and not 1 <= levels.min() <= levels.max() < len(below):
            raise Malformed("a level that is none")
        starts = self._vector("<i8", self.count + 1)
        if starts[0] or not np.array_equal(np.diff(starts), below[levels]):
            raise Malformed("links that do not follow each other")
        near = self._vector("<i4", int(starts[-1]))
        if len(near) and not -1 <= near.min() <= near.max() < self.count:
            raise Malformed("a link that leads nowhere")
        entry, highest = self._taken("<ii")
        if not (0 <= entry < self.count and highest == levels[entry] - 1 == levels.max() - 1):
            raise Malformed("an entry that is none")
        for level in range(1, int(highest) + 1):
            first = starts[:-1][levels > level]
            found = near[first[:, None] + np.arange(below[level], below[level + 1])]
            if (levels[found[found >= 0]] <= level).any():
                raise Malformed("a link to what is not on its level")
        building, walking, unused = self._taken("<iii")
        if not (1 <= building <= 1 << 20 and 1 <= walking <= 1 << 20 and unused == 1):
            raise Malformed("a walk without bounds")

    # ---- bytes ---------------------------------------------------------------------------------------------------

    def _header(self, length: int, count: int) -> None:
        self._fields("<iqqqBi", length, count, _UNUSED, _UNUSED, 1, _INNER_PRODUCT)

    def _name(self, name: str) -> None:
        found = self._bytes(4)
        if found != name.encode():
            raise Malformed(f"{found!r} where {name} should stand")

    def _fields(self, form: str, *values: float) -> None:
        if self._taken(form) != values:
            raise Malformed(f"other fields at byte {self.at}")

    def _taken(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _any(self, form: str, after: int, most: int) -> int:
        """A field that only search asks, ``after`` so many bytes: from 0 to ``most``. It is taken with its fields."""
        end = self.at + after + struct.calcsize(form)
        if end > len(self.content):
            raise Malformed("an early end")
        (value,) = struct.unpack(form, self.content[end - struct.calcsize(form) : end].tobytes())
        return int(value) if 0 <= value <= most else -1

    def _bytes(self, count: int) -> bytes:
        start = self._skip(count)
        return self.content[start : self.at].tobytes()

    def _vector(self, kind: str, count: int | None, most: int = 0) -> NDArray[Any]:
        """An array with its length before it: ``count``, or where that is None, at most ``most``."""
        (stored,) = self._taken("<Q")
        if stored != count if count is not None else stored > most:
            raise Malformed(f"{stored} numbers at byte {self.at}")
        return self._array(kind, stored)

    def _array(self, kind: str, count: int) -> NDArray[Any]:
        start = self._skip(count * np.dtype(kind).itemsize)
        return self.content[start : self.at].view(kind)

    def _skip(self, size: int) -> int:
        """Go on; where it was before."""
        if not 0 <= size <= len(self.content) - self.at:
            raise Malformed("an early end")
        self.at += size
        return self.at - size
