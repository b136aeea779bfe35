"""Some weights of every block matrix, stored in the record to recognise an upload after rounding.

A delta is small compared with the weight: casting a checkpoint to bfloat16 changes the delta by a tenth, but the weight
by less than half a unit in the last place. Two checkpoints of one origin agree to within their roundings in every
sampled weight; those of another run, another learning rate or one more step do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from indexer.names import DeltaKey
from indexer.records.row_plan import lines_of, lines_to_read

Positions = NDArray[np.int64]

# Weights of each matrix, and of all matrices of a small base together: 18 kB in a record of roberta-base.
EACH = 64
_FEWEST = 4096

# Half a unit in the last place of a value in [1, 2), by dtype. A bfloat16 value may have been a float16 value before;
# wider values are not rounded.
_HALF_UNITS: Mapping[str, float] = {"bfloat16": 2.0**-8 + 2.0**-11, "float16": 2.0**-11}
# Below this, units of float16 are different, or values are zero.
_SMALLEST = 2.0**-14

# If there are this many ties, it is no coincidence that all are even.
_FEWEST_TIES = 32

# Unit roundoff of bfloat16. No rounding, of a weight and of the base's, moves a delta by more than this share of it.
ROUNDOFF = 2.0**-8


def sampled_positions(
    key: DeltaKey, shape: tuple[int, int], matrices: int, transposed: bool
) -> tuple[Positions, Positions]:
    """Rows and columns of the sampled weights of one of ``matrices`` matrices (out, in).

    They are the same for all models of a base, and lie in the rows that every sample holds (of a ``transposed`` matrix
    in its input coordinates).
    """
    return _positions(str(key), shape, max(EACH, -(-_FEWEST // matrices)), transposed)


@lru_cache(maxsize=512)
def _positions(key: str, shape: tuple[int, int], count: int, transposed: bool) -> tuple[Positions, Positions]:
    stream = hashlib.shake_256(f"weight-sample|{key}|{shape[0]}x{shape[1]}".encode()).digest(8 * count)
    # The widest numbers have the fewest rows in a sample.
    lines, width = (shape[1], shape[0]) if transposed else shape
    lines_read = lines_of(lines, lines_to_read(shape, transposed, 8))
    flat = (np.frombuffer(stream, dtype="<u8") % (len(lines_read) * width)).astype(np.int64)
    line, column = np.divmod(flat, width)
    return (column, lines_read[line]) if transposed else (lines_read[line], column)


def agree(sample: NDArray[np.float32], dtype: str, other: NDArray[np.float32], other_dtype: str) -> bool:
    """Whether two samples can have one origin. ``dtype``: the narrowest that holds all weights of a checkpoint.

    With equal dtypes all weights must be equal, unless one checkpoint was rounded twice; with different dtypes they
    may differ by half a unit of each.
    """
    if sample.shape != other.shape or not sample.size:
        return False
    if dtype == other_dtype:
        return bool(np.array_equal(sample, other)) or (dtype == "bfloat16" and _is_rounded_twice(sample, other))
    first, second = sample.astype(np.float64), other.astype(np.float64)
    larger = np.maximum(np.abs(first), np.abs(second))
    units = np.exp2(np.frexp(larger)[1] - 1.0)
    tolerance = units * (_HALF_UNITS.get(dtype, 0.0) + _HALF_UNITS.get(other_dtype, 0.0))
    compared = larger >= _SMALLEST
    return bool(compared.any() and (np.abs(first - second) <= tolerance)[compared].all())


def _is_rounded_twice(sample: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether one of two bfloat16 samples was float16 before, and the other was not.

    Then one weight in sixteen is rounded to the other neighbour: the float16 value lies half-way, and the tie goes to
    the even neighbour. In samples of another run as many go to the odd one.
    """
    first, second = (values.view(np.uint32).astype(np.int64) >> 16 for values in (sample, other))
    apart = (first != second) & (np.maximum(np.abs(sample), np.abs(other)) >= _SMALLEST)
    count = int(apart.sum())
    if not _FEWEST_TIES <= count <= sample.size // 8 or (np.abs(first - second)[apart] != 1).any():
        return False
    return not (first[apart] & 1).any() or not (second[apart] & 1).any()
