"""The vectors of one (base, representation) as they are stored: one file of all of them, mapped into memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from indexer.vectors.centre import unit_norm
from indexer.vectors.files import HALF, SINGLE, VectorFile, numbers_begin, open_index, write_index
from indexer.vectors.masks import Masks

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

    def copied(self, selection: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """A copy of the chosen vectors."""
        rows = selection if self.places is None else self.places[selection]
        return np.array(self.stored[rows], dtype=np.float32, order="C")

    def row(self, model_id: int) -> NDArray[np.float32] | None:
        """The vector of one model; None if it has none (a zero delta)."""
        positions_of_id = positions(self.ids, np.array([model_id], dtype=np.int64))
        return self.matrix[positions_of_id[0]] if len(positions_of_id) else None


class OpenVectors:
    """A FAISS file that was checked and mapped into memory; ``vectors``: all that it holds.

    ``masks``: their changed blocks. Raises AtlasError if the file is missing or damaged.
    """

    def __init__(self, root: Path, file: VectorFile, masks: Masks | None = None) -> None:
        import faiss

        self.file, self._path = file, root / file.name
        self.masks = masks or Masks.none()
        self.index = open_index(root, file)
        flat: Any = faiss.downcast_index(self.index.index)
        ids = faiss.vector_to_array(self.index.id_map).astype(np.int64)
        is_half = file.factory == HALF
        shape, kind = (len(ids), int(self.index.d)), "<f2" if is_half else "<f4"
        if len(ids):
            pointer = faiss.rev_swig_ptr(flat.codes.data() if is_half else flat.get_xb(), 1)
            address = pointer.__array_interface__["data"][0]
            mapped = np.asarray(_MappedArray(self.index, address, shape, kind))
        else:
            mapped = np.zeros(shape, dtype=kind)
        self.vectors = Vectors(ids, mapped, self.masks.blocks)

    def __len__(self) -> int:
        return self.file.count

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids, ascending."""
        return self.vectors.ids

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.floating]:
        """The vectors of ``ids`` (ascending), all of which are here, with their stored bits.

        They are read and not mapped, so that a process that reads all of them once does not hold them.
        """
        stored = self.vectors.stored
        with self._path.open("rb") as file:
            return read_rows(file, numbers_begin(self.file), positions(self.ids, ids), stored.shape[1], stored.dtype)

    def rows(self, ids: NDArray[np.int64]) -> Vectors:
        """The vectors of those of ``ids`` (ascending) that are here, without a copy."""
        row_numbers = positions(self.ids, ids)
        return Vectors(self.ids[row_numbers], self.vectors.stored, self.masks.blocks, row_numbers)


class _MappedArray:
    """An array in the mapped file of an index, which it keeps open."""

    def __init__(self, index: Any, address: int, shape: tuple[int, int], kind: str) -> None:
        self.index = index
        self.__array_interface__ = {"version": 3, "typestr": kind, "shape": shape, "data": (address, True)}


def write_vectors(root: Path, base: str, representation: str, vectors: Vectors, factory: str = SINGLE) -> VectorFile:
    """Write vectors as one file."""
    parts = (block.matrix for block in blocks(vectors))
    return write_index(root, base, representation, vectors.ids, vectors.length, parts, factory)


def read_rows(
    file: IO[bytes], begin: int, row_numbers: Iterable[int], length: int, kind: DTypeLike
) -> NDArray[np.floating]:
    """Rows (n, ``length``) of these numbers of a matrix that begins at byte ``begin`` of a file.

    Raises OSError if the file is too short.
    """
    positions = list(row_numbers)
    rows = np.empty((len(positions), length), dtype=kind)
    for row, number in zip(rows, positions, strict=True):
        if os.preadv(file.fileno(), [row.view(np.uint8).data], begin + int(number) * row.nbytes) != row.nbytes:
            raise OSError(errno.EIO, "cannot be read to its end", file.name)
    return rows


def rows_of_block(length: int) -> int:
    """How many vectors of ``length`` numbers are copied at a time."""
    return max(1, BLOCK_BYTES // (4 * max(length, 1)))


def blocks(vectors: Vectors, rows: int | None = None) -> Iterator[Vectors]:
    """Copies of all vectors in order, ``rows`` at a time, by default at most BLOCK_BYTES."""
    step = rows or rows_of_block(vectors.length)
    for start in range(0, len(vectors), step):
        block = slice(start, start + step)
        yield Vectors(vectors.ids[block], vectors.copied(block), vectors.blocks)


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The vector with unit norm; None if it is zero or not finite, because FAISS must not get such vectors."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype(np.float32) if np.isfinite(norm) and norm > 0 else None


def with_unit_blocks(vectors: NDArray[np.float32], blocks: int) -> NDArray[np.float32]:
    """(n, d) vectors with every block scaled to norm 1, or 0 if it is zero; a record may come from elsewhere."""
    shaped = unit_norm(vectors.astype(np.float64).reshape(len(vectors), blocks, -1))
    return shaped.reshape(len(vectors), -1).astype(np.float32)


def ascending(ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids without repetitions, ascending."""
    values = np.asarray(ids, dtype=np.int64)
    return values if (values[1:] > values[:-1]).all() else np.unique(values)


def positions(sorted_ids: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.intp]:
    """The positions in ``sorted_ids`` (ascending) of those of ``ids`` that it contains, in the order of ``ids``."""
    row_numbers = np.searchsorted(sorted_ids, ids).clip(max=max(len(sorted_ids) - 1, 0))
    return row_numbers[sorted_ids[row_numbers] == ids] if len(sorted_ids) else np.zeros(0, dtype=np.intp)


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
