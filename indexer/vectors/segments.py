"""Segments: immutable files of exact vectors. A publish adds segments and never changes one.

If the vector of a model is replaced or withdrawn, the model is marked as removed from the segment that holds the old
vector. Segments of similar size are merged (O'Neil et al., 1996, "The log-structured merge-tree"), so that there are
never many, and a vector is rewritten only a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.files import HALF, SEGMENT, VectorFile, open_index, write_index
from indexer.vectors.masks import Masks

# A segment that is this many times larger than all newer ones together is not merged.
GROWTH = 4

# A segment is rewritten without its removed vectors once they are this share of it.
_MOST_REMOVED = 0.25

# Largest file that a merge makes, so that the memory of a publish is bounded.
MOST_BYTES = 1 << 30

# Vectors copied at a time.
BLOCK_BYTES = 64 << 20

# Bits per id up to which a selector of ids is a bitmap.
_BITS_PER_ID = 64


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of unit norm with their model ids (n,) int64, ascending.

    ``stored`` (N, d): the vectors, float32, or float16 in a mapped file. ``places`` (n,): the rows of ``stored`` that
    belong to ``ids``; None for all rows. ``blocks``: if not 0, the number of blocks of a vector, each of unit norm, or
    zero if the model did not change the matrix.
    """

    ids: NDArray[np.int64]
    stored: NDArray[np.float32]
    blocks: int = 0
    places: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Numbers of a vector."""
        return int(self.stored.shape[1])

    @property
    def matrix(self) -> NDArray[np.float32]:
        """The vectors (n, d); a copy unless they are all of ``stored``."""
        return self.stored if self.places is None else self.copied(slice(None))

    def copied(self, chosen: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """A copy of the chosen vectors."""
        rows = chosen if self.places is None else self.places[chosen]
        return np.array(self.stored[rows], dtype=np.float32, order="C")

    def row(self, model_id: int) -> NDArray[np.float32] | None:
        """The vector of one model; None if it has none (a zero delta)."""
        places = positions(self.ids, np.array([model_id], dtype=np.int64))
        return self.matrix[places[0]] if len(places) else None


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment as described by the database. ``removed``: ids (ascending) in its file that are no longer valid.

    ``centre``: the version of the centre that was subtracted from its vectors, if one was.
    """

    file: VectorFile
    removed: NDArray[np.int64]
    centre: str | None = None

    @property
    def count(self) -> int:
        """The number of valid vectors."""
        return self.file.count - len(self.removed)

    @property
    def bytes(self) -> int:
        """Bytes of the valid vectors."""
        return self.file.number_bytes * self.count * self.file.length


class OpenSegment:
    """A segment whose file was checked and mapped into memory.

    ``stored``: all its vectors, including removed ones. ``masks``: their changed blocks. Raises AtlasError if the file
    is missing or damaged.
    """

    def __init__(self, root: Path, segment: Segment, masks: Masks | None = None) -> None:
        import faiss

        self.segment = segment
        self.masks = masks or Masks.none()
        self.index = open_index(root, segment.file)
        flat: Any = faiss.downcast_index(self.index.index)
        ids = faiss.vector_to_array(self.index.id_map).astype(np.int64)
        is_half = segment.file.factory == HALF
        shape, kind = (len(ids), int(self.index.d)), "<f2" if is_half else "<f4"
        mapped = np.zeros(shape, dtype=kind)
        if len(ids):
            pointer = faiss.rev_swig_ptr(flat.codes.data() if is_half else flat.get_xb(), 1)
            address = pointer.__array_interface__["data"][0]
            mapped = np.asarray(_MappedArray(self.index, address, shape, kind))
        self.stored = Vectors(ids, mapped, self.masks.blocks)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The valid ids, ascending."""
        return self.vectors().ids

    def vectors(self) -> Vectors:
        """The valid vectors, without a copy."""
        if not len(self.segment.removed):
            return self.stored
        places = np.flatnonzero(np.isin(self.stored.ids, self.segment.removed, invert=True))
        return Vectors(self.stored.ids[places], self.stored.stored, self.masks.blocks, places)

    def rows(self, ids: NDArray[np.int64]) -> Vectors:
        """The valid vectors of those of ``ids`` (ascending) that are here, without a copy."""
        removed = self.segment.removed
        wanted = np.setdiff1d(ids, removed, assume_unique=True) if len(removed) else ids
        places = positions(self.stored.ids, wanted)
        return Vectors(self.stored.ids[places], self.stored.stored, self.masks.blocks, places)


class _MappedArray:
    """An array in the mapped file of an index, which it keeps open."""

    def __init__(self, index: Any, address: int, shape: tuple[int, int], kind: str) -> None:
        self.index = index
        self.__array_interface__ = {"version": 3, "typestr": kind, "shape": shape, "data": (address, True)}


def write_segment(root: Path, base: str, representation: str, vectors: Vectors, centre: str | None = None) -> Segment:
    """Write at least one vector as a new segment.

    If a ``centre`` was subtracted, in 16 bits: that changes similarities by about 1e-5 and halves the file.
    """
    import faiss

    factory, form = ("IDMap,Flat", SEGMENT) if centre is None else ("IDMap,SQfp16", HALF)
    index = faiss.index_factory(vectors.length, factory, faiss.METRIC_INNER_PRODUCT)
    index.add_with_ids(vectors.matrix, vectors.ids)
    return Segment(write_index(root, base, representation, index, form), np.zeros(0, dtype=np.int64), centre=centre)


def to_merge(segments: Sequence[Segment]) -> list[int]:
    """Positions of the ``segments`` (oldest first) to merge into one.

    These are the newest ones, up to one that is GROWTH times larger than all newer ones together. If there are none, it
    is the first segment with a share of removed vectors above _MOST_REMOVED. Segments above half of MOST_BYTES are not
    merged.
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
    sparse = [place for place, one in enumerate(segments) if len(one.removed) > _MOST_REMOVED * one.file.count]
    return sparse[:1]


def rows_of_block(length: int) -> int:
    """How many vectors of ``length`` numbers are copied at a time."""
    return max(1, BLOCK_BYTES // (4 * max(length, 1)))


def blocks(parts: Iterable[Vectors], rows: int | None = None) -> Iterator[Vectors]:
    """Copies of all vectors in order, ``rows`` at a time, by default at most BLOCK_BYTES."""
    for part in parts:
        step = rows or rows_of_block(part.length)
        for start in range(0, len(part), step):
            block = slice(start, start + step)
            yield Vectors(part.ids[block], part.copied(block), part.blocks)


def joined(parts: Iterable[Vectors], length: int) -> Vectors:
    """A copy of several parts (no id twice) as one, ids ascending."""
    parts = list(parts)
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(part.ids for part in parts)])
    matrix = np.empty((len(ids), length), dtype=np.float32)
    # Rows are copied directly to their places: sorting a large matrix afterwards would hold it twice.
    order = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    start = 0
    for block in blocks(parts):
        matrix[order[start : start + len(block)]] = block.matrix
        start += len(block)
    return Vectors(np.sort(ids), matrix, parts[0].blocks if parts else 0)


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The vector with unit norm; None if it is zero or not finite, because FAISS must not get such vectors."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype(np.float32) if np.isfinite(norm) and norm > 0 else None


def ascending(ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids without repetitions, ascending."""
    found = np.asarray(ids, dtype=np.int64)
    return found if (found[1:] > found[:-1]).all() else np.unique(found)


def positions(held: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """The positions in ``held`` (ascending) of those of ``ids`` that it contains, in the order of ``ids``."""
    places = np.searchsorted(held, ids).clip(max=max(len(held) - 1, 0))
    return places[held[places] == ids] if len(held) else np.zeros(0, dtype=np.intp)


def id_selector(ids: NDArray[np.int64]) -> Any:
    """FAISS's selector of at least one id (ascending): a bitmap up to the largest id.

    If ids are so sparse that a bitmap would take more memory, a table: the ids may come from somebody else's atlas.
    """
    import faiss

    last = int(ids[-1])
    if last >= _BITS_PER_ID * len(ids):
        return faiss.IDSelectorBatch(ids)
    bits = np.zeros(last + 1, dtype=bool)
    bits[ids] = True
    return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))  # type: ignore[call-arg, arg-type]


@contextmanager
def one_thread() -> Iterator[None]:
    """FAISS on one thread: many small steps take three times as long on two, and longer on a busy machine."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
