"""What training did to some rows of the input embeddings: one number for each.

A row gets a gradient only from a batch that holds its token. Decoupled weight decay multiplies all rows by one factor
c. So a row e' of a fine-tune whose token did not occur is c·e up to rounding, where e is the base's row. The size of a
row's change, ‖e' − c·e‖ / ‖e‖, is stored in eight bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The rows that are read: so many stripes, spread evenly over the vocabulary of the base, of so many rows.
STRIPES = 16
ROWS_EACH = 64

# Codes: 0 for an unchanged row, MISSING for one that the model does not have, and else a logarithm: 8 steps an octave
# from 2^-26, below which float32 cannot tell a change, to 2^5.
MISSING = 255
_LOWEST = -26.0
_STEPS = 8

# c is the median over the rows that agree best with a multiple of the base's row, this share of them.
_AGREEING = 0.1


def token_stripes(vocabulary: int) -> tuple[range, ...]:
    """The rows that are read of an embedding with ``vocabulary`` rows; all of a small one."""
    if vocabulary <= STRIPES * ROWS_EACH:
        return (range(vocabulary),)
    starts = np.linspace(0, vocabulary - ROWS_EACH, STRIPES).astype(int)
    return tuple(range(start, start + ROWS_EACH) for start in starts.tolist())


def token_rows(vocabulary: int) -> NDArray[np.int64]:
    """(n,) the numbers of these rows, ascending."""
    return np.concatenate([np.arange(stripe.start, stripe.stop) for stripe in token_stripes(vocabulary)])


def token_changes(rows: NDArray[np.floating], base: NDArray[np.floating]) -> tuple[NDArray[np.uint8], float] | None:
    """Codes (n,) of the sizes of the rows' changes, and c. ``rows`` and ``base``: (n, d), the base's rounded alike.

    None where that cannot be computed: values that are not finite, or a base of zeros.
    """
    mine, theirs = rows.astype(np.float64), base.astype(np.float64)
    squares = np.einsum("ij,ij->i", theirs, theirs)
    is_there = squares > 0  # the row of a padding token may be zero
    if not (is_there.any() and np.isfinite(mine).all() and np.isfinite(theirs).all()):
        return None
    ratios = np.einsum("ij,ij->i", mine, theirs)[is_there] / squares[is_there]
    apart = np.linalg.norm(mine[is_there] - ratios[:, None] * theirs[is_there], axis=1) / np.sqrt(squares[is_there])
    agreeing = np.argsort(apart, kind="stable")[: max(1, int(_AGREEING * len(apart)))]
    scale = float(np.median(ratios[agreeing]))
    sizes = np.zeros(len(mine))
    sizes[is_there] = np.linalg.norm(mine[is_there] - scale * theirs[is_there], axis=1) / np.sqrt(squares[is_there])
    codes = np.zeros(len(mine), dtype=np.uint8)
    is_changed = sizes > 2.0**_LOWEST
    steps = np.rint((np.log2(sizes[is_changed]) - _LOWEST) * _STEPS) + 1
    codes[is_changed] = np.clip(steps, 1, MISSING - 1)
    return codes, scale


def sizes_of(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n,) the sizes that codes stand for; NaN for a missing row."""
    sizes = np.where(codes == 0, 0.0, 2.0 ** ((codes.astype(np.float64) - 1) / _STEPS + _LOWEST))
    return np.where(codes == MISSING, np.nan, sizes)
