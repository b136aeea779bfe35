"""Order by similarity, with ties by id, whatever computed the similarities.

A similarity in single precision has rounding errors, which depend on the shape of the matrix product and on the
processor: even equal vectors can get different ones. So similarities that are close to each other are computed again,
in double precision and with a fixed order of summation, and only then compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Similarities closer than this may be in the wrong order. The largest error of single precision was 1.3e-6, for
# 3 million pairs of vectors of 8,208 numbers.
NEAR = 1e-5

# Exact similarities that agree to this many steps of 1 are ties: as in ``query.statistics.neighbours``.
_STEPS = 2.0**32

# (rows, ids) -> similarities in double precision
Exact = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def pair_products(mine: NDArray[np.floating], theirs: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n,) inner products of the rows of two (n, d) matrices, independent of n, of the processor and of the sides.

    Products of single precision are exact in double precision, and NumPy's order of summation depends on d alone.
    """
    return np.multiply(mine, theirs, dtype=np.float64, order="C").sum(axis=1)


def nearest_first(
    rows: NDArray[np.int64], ids: NDArray[np.int64], similarities: NDArray[np.float32], k: int, exact: Exact
) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.float32]]:
    """The k most similar of each row: the places of these pairs, by row and rank, their ranks from 1 and similarities.

    ``rows`` and ``ids`` (n,): the pairs; ``similarities`` (n,): theirs in single precision. Those that are near ties up
    to rank k are replaced by what ``exact`` computes. Ties are in order of id.
    """
    order = np.lexsort((ids, -similarities, rows))
    row, value = rows[order], similarities[order]
    rank = np.arange(len(order)) - np.searchsorted(row, row, side="left")
    # Runs of pairs, each close to the one before.
    starts = np.append(True, (row[1:] != row[:-1]) | (value[:-1] - value[1:] > NEAR))[: len(order)]
    run = np.cumsum(starts) - 1
    is_close = (np.bincount(run)[run] > 1) & (rank[starts][run] < k)
    places = order[is_close]
    similarities = similarities.copy()
    if len(places):
        found = exact(rows[places], ids[places])
        similarities[places] = np.clip(found, -1.0, 1.0)
        order[is_close] = places[np.lexsort((ids[places], -np.rint(found * _STEPS), run[is_close]))]
    kept = order[rank < k]
    return kept, (rank[rank < k] + 1).astype(np.int32), similarities[kept]
