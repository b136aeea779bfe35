"""Which rows of each block matrix a sample of a checkpoint consists of.

The default vector compares row spaces of δW, and any rows of a matrix lie in its row space, so a few rows of every
matrix are enough to place a model among others. The rows depend on the shape of the matrix and the size of a stored
number alone, never on the model: samples of two models are of the same rows. A larger sample contains a smaller one. A
change of rows requires a new RECORD_VERSION (identity.py).

The rows lie in two stripes, at the first and the last row: files order tensors by name, so the last rows of one matrix
and the first rows of the next are neighbours and are fetched by one request.

A checkpoint that stores its matrices transposed (GPT-2) has no row of δW in one piece. There some input coordinates are
read, for all outputs. They hold a part of the row space, so the vectors of *every* model of such a base are computed on
these coordinates (``coordinates``), whatever was read of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

# A request costs 30 ms of one of eight connections, in which 20 MB/s transfer 75 kB: fewer bytes save almost nothing.
LEAST_BYTES = 64 << 10
# Rows of a matrix, by the bytes of a stored number. bfloat16 and float16 add noise to every row, and half the bytes
# buy twice the rows.
LEAST_ROWS = {8: 16, 4: 16, 2: 32}
# Rows of a matrix of a model whose rounding exceeds its change.
MORE_ROWS = 128
# Coordinates of a transposed matrix, whatever the dtype: all models have to agree on them.
LEAST_COORDINATES = 64
# If more than this share of a matrix would be read, all of it is read: exact numbers cost little more.
_WHOLE_ABOVE = 0.5


def lines_to_read(shape: tuple[int, int], transposed: bool, item_bytes: int, *, more: bool = False) -> int:
    """How many rows of a matrix (out, in) are read; of a ``transposed`` one, how many input coordinates.

    ``item_bytes``: of a stored number. ``more``: of a model whose rounding exceeds its change.
    """
    lines, width = (shape[1], shape[0]) if transposed else shape
    least = LEAST_COORDINATES if transposed else MORE_ROWS if more else LEAST_ROWS.get(item_bytes, MORE_ROWS)
    line_bytes = width * (4 if transposed else item_bytes)
    count = max(least, -(-LEAST_BYTES // line_bytes))
    return lines if count > _WHOLE_ABOVE * lines else count


def is_partial(matrices: Iterable[tuple[tuple[int, int], bool]]) -> bool:
    """Whether a sample of a base with these matrices (shape, transposed) leaves anything out, for some dtype."""
    return any(lines_to_read(shape, transposed, 8) < shape[transposed] for shape, transposed in matrices)


def stripes(lines: int, count: int) -> tuple[range, ...]:
    """The ``count`` rows that are read of ``lines``: a stripe at either end, the first one row longer if need be."""
    if count >= lines:
        return (range(lines),)
    first = (count + 1) // 2
    return tuple(stripe for stripe in (range(first), range(lines - count + first, lines)) if stripe)


def leading(count: int) -> int:
    """How many of the ``count`` rows that are read of a larger matrix are at its beginning."""
    return len(stripes(count + 1, count)[0])


def lines_of(lines: int, count: int) -> NDArray[np.int64]:
    """(count,) the numbers of these rows, ascending."""
    return np.fromiter(chain.from_iterable(stripes(lines, count)), dtype=np.int64)


def stripes_of(numbers: NDArray[np.int64]) -> list[range]:
    """Ascending numbers of rows as stripes of consecutive ones."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [range(int(part[0]), int(part[-1]) + 1) for part in parts]


@lru_cache(maxsize=64)
def coordinates(shape: tuple[int, int], transposed: bool) -> NDArray[np.int64] | None:
    """The input coordinates on which vectors of a matrix (out, in) are computed; None for all.

    Only ``transposed`` matrices are restricted: their samples hold nothing else.
    """
    if not transposed:
        return None
    count = lines_to_read(shape, True, 4)
    return None if count == shape[1] else lines_of(shape[1], count)
