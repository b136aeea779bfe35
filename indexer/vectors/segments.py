"""Segments: immutable files of exact vectors. A publish adds one and never changes another.

A model whose vector is replaced or withdrawn is named as removed from the segment that holds the old one. Segments
of like size are merged now and then (O'Neil et al., 1996, "The log-structured merge-tree"), so that there are never
many and a vector is written again only a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.files import VectorFile, open_index, write_index
from indexer.vectors.form import HALF, SEGMENT
from indexer.vectors.masks import Masks

# An id is held in so many bits.
_BITS_AN_ID = 64

FACTORY = "IDMap,Flat"

# Of vectors that are kept in 16 bits.
HALF_FACTORY = "IDMap,SQfp16"

# A segment that is this many times larger than all newer ones together is left alone by a merge.
GROWTH = 4

# A segment is written again without its removed vectors once they are this share of it.
MOST_REMOVED = 0.25

# No merge makes a larger file than this, so that the memory of a publish is bounded.
MOST_BYTES = 1 << 30

# Vectors copied at a time.
BLOCK_BYTES = 64 << 20

Rows = NDArray[np.intp] | slice


@dataclass(frozen=True)
class Vectors:
    """Vectors (n, d) with their model ids (n,) int64, ids ascending.

    Of unit norm, or of ``blocks`` of unit norm (zero where a model did not change the matrix). ``matrix`` is float32;
    float16 only in a mapped file.
    """

    ids: NDArray[np.int64]
    matrix: NDArray[np.float32]
    blocks: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Numbers of a vector."""
        return int(self.matrix.shape[1])

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Rows of those of ``ids`` that are here, in the order of ``ids``."""
        return positions(self.ids, ids)

    def copied(self, chosen: Rows) -> NDArray[np.float32]:
        """Copies of the chosen vectors."""
        return np.array(self.matrix[chosen], dtype=np.float32, order="C")

    def row(self, model_id: int) -> NDArray[np.float32] | None:
        """The vector of one model, None where it has none (a zero delta)."""
        places = self.positions(np.array([model_id], dtype=np.int64))
        return self.matrix[places[0]] if len(places) else None


@dataclass(frozen=True, eq=False)
class Counting:
    """The vectors of a mapped file that count, where they lie: what is asked for is copied, and no more.

    ``ids`` (n,) ascending; ``places`` (n,): their rows in ``stored`` (N, d).
    """

    ids: NDArray[np.int64]
    places: NDArray[np.intp]
    stored: NDArray[np.float32]
    blocks: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Numbers of a vector."""
        return int(self.stored.shape[1])

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Which of these are those of ``ids``, in the order of ``ids``."""
        return positions(self.ids, ids)

    def copied(self, chosen: Rows) -> NDArray[np.float32]:
        """Copies of the chosen vectors."""
        return np.array(self.stored[self.places[chosen]], dtype=np.float32, order="C")


# Vectors in memory, or of a file.
Part = Vectors | Counting


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment as the database names it; ``removed``: the ids (ascending) in its file that count no more.

    ``centre``: the version of the centre that was subtracted from its vectors; None where none was.
    """

    file: VectorFile
    removed: NDArray[np.int64]
    in_compressed: bool = False
    centre: str | None = None

    @property
    def count(self) -> int:
        """Vectors that count."""
        return self.file.count - len(self.removed)

    @property
    def bytes(self) -> int:
        """Bytes of the vectors that count."""
        return self.file.number_bytes * self.count * self.file.length


class OpenSegment:
    """A checked segment, mapped into memory.

    ``stored`` are all its vectors, removed ones included; ``masks``: their changed blocks. Raises AtlasError where the
    file is missing or damaged.
    """

    def __init__(self, root: Path, segment: Segment, masks: Masks | None = None) -> None:
        import faiss

        self.segment = segment
        self.masks = masks or Masks.none()
        self.index = open_index(root, segment.file)
        flat: Any = faiss.downcast_index(self.index.index)
        ids = faiss.vector_to_array(self.index.id_map).astype(np.int64)
        is_half = segment.file.factory == HALF
        pointer = flat.codes.data() if is_half else flat.get_xb()
        mapped = _mapped(self.index, pointer, (len(ids), int(self.index.d)), "<f2" if is_half else "<f4")
        self.stored = Vectors(ids, mapped, self.masks.blocks)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Ids that count, ascending."""
        return self.stored.ids[self._counting()]

    def _counting(self) -> NDArray[np.bool_]:
        return np.isin(self.stored.ids, self.segment.removed, invert=True)

    def vectors(self) -> Part:
        """The vectors that count, without a copy."""
        if not len(self.segment.removed):
            return self.stored
        places = np.flatnonzero(self._counting())
        return Counting(self.stored.ids[places], places, self.stored.matrix, self.masks.blocks)

    def rows(self, ids: NDArray[np.int64]) -> Part:
        """The vectors of those of ``ids`` (ascending) that count here, without a copy."""
        removed = self.segment.removed
        places = self.stored.positions(np.setdiff1d(ids, removed, assume_unique=True) if len(removed) else ids)
        return Counting(self.stored.ids[places], places, self.stored.matrix, self.masks.blocks)


def write_segment(root: Path, base: str, representation: str, vectors: Vectors, centre: str | None = None) -> Segment:
    """Write at least one vector as a new segment beside the others; those minus a ``centre`` in 16 bits.

    That moves a similarity by some 1e-5, and halves the file.
    """
    import faiss

    factory, form = (FACTORY, SEGMENT) if centre is None else (HALF_FACTORY, HALF)
    index = faiss.index_factory(vectors.matrix.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.add_with_ids(vectors.matrix, vectors.ids)
    return Segment(write_index(root, base, representation, index, form), np.zeros(0, dtype=np.int64), centre=centre)


def to_merge(segments: Sequence[Segment]) -> list[int]:
    """Which of ``segments`` (oldest first, all in the compressed index or none) are to become one; empty if none.

    Those at the end that are not GROWTH times larger than what came after them, and, alone, the first of
    which more than MOST_REMOVED is removed. A segment of more than half of MOST_BYTES is as large as it should be
    and passed over.
    """
    growing = [position for position, segment in enumerate(segments) if segment.bytes <= MOST_BYTES // 2]
    total = 0
    chosen: list[int] = []
    for position in reversed(growing):
        size = segments[position].bytes
        if total + size > MOST_BYTES or (total and size > GROWTH * total):
            break
        total += size
        chosen.insert(0, position)
    if len(chosen) > 1:
        return chosen
    rotten = (
        position
        for position, segment in enumerate(segments)
        if len(segment.removed) > MOST_REMOVED * segment.file.count
    )
    return [position for position, _ in zip(rotten, range(1), strict=False)]


def rows_of_block(length: int) -> int:
    """How many vectors of ``length`` numbers are copied at a time."""
    return max(1, BLOCK_BYTES // (4 * max(length, 1)))


def blocks(parts: Iterable[Part], rows: int | None = None) -> Iterator[Vectors]:
    """All vectors in order, as copies of ``rows`` at a time: where none are named, of at most BLOCK_BYTES."""
    for part in parts:
        step = rows or rows_of_block(part.length)
        for start in range(0, len(part), step):
            block = slice(start, start + step)
            yield Vectors(part.ids[block], part.copied(block), part.blocks)


def joined(parts: Iterable[Part], length: int) -> Vectors:
    """A copy of several parts (no id twice) as one, ids ascending."""
    parts = list(parts)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(part.ids for part in parts)])
    matrix = np.empty((len(ids), length), dtype=np.float32)
    # Each block's rows go straight to their places: sorting a large matrix afterwards would hold it twice.
    order = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    start = 0
    for block in blocks(parts):
        matrix[order[start : start + len(block)]] = block.matrix
        start += len(block)
    return Vectors(np.sort(ids), matrix, parts[0].blocks if parts else 0)


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The vector with unit norm; None for an all-zero or non-finite one, which stays out of FAISS."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype(np.float32) if np.isfinite(norm) and norm > 0 else None


def ascending(ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Each id once, in order; those that are so already, as most are, are only looked at."""
    found = np.asarray(ids, dtype=np.int64)
    return found if (found[1:] > found[:-1]).all() else np.unique(found)


def positions(held: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where in ``held`` (ascending) those of ``ids`` lie that are in it, in the order of ``ids``."""
    places = np.searchsorted(held, ids).clip(max=max(len(held) - 1, 0))
    return places[held[places] == ids] if len(held) else np.zeros(0, dtype=np.intp)


def id_selector(ids: NDArray[np.int64]) -> Any:
    """FAISS's selector of these ids (one at least, ascending): a bit for each number up to the last one.

    A table of them where they are so sparse that the bits would take more memory: an id may be a stranger's word.
    """
    import faiss

    last = int(ids[-1])
    if last >= _BITS_AN_ID * len(ids):
        return faiss.IDSelectorBatch(ids)
    bits = np.zeros(last + 1, dtype=bool)
    bits[ids] = True
    return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))  # type: ignore[call-arg, arg-type]


class _Owner:
    """What NumPy keeps alive for as long as an array looks into an index's mapped file."""

    def __init__(self, index: Any, address: int, shape: tuple[int, int], kind: str) -> None:
        self.index = index
        self.__array_interface__ = {"version": 3, "typestr": kind, "shape": shape, "data": (address, True)}


def _mapped(index: Any, pointer: Any, shape: tuple[int, int], kind: str) -> NDArray[Any]:
    import faiss

    if not shape[0]:
        return np.zeros(shape, dtype=kind)
    address = faiss.rev_swig_ptr(pointer, 1).__array_interface__["data"][0]
    return np.asarray(_Owner(index, address, shape, kind))
