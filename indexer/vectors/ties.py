"""Order by similarity, with ties by id, whatever computed the similarities.

A similarity in single precision has rounding errors, which depend on the shape of the matrix product and on the
processor: even equal vectors can get different ones. So the similarities of the nearest are computed again, in double
precision and with a fixed order of summation, and only then compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Similarities in single precision that are closer than this may be in the wrong order. The largest error was 1.3e-6,
# for 3 million pairs of vectors of 8,208 numbers.
NEAR = 1e-5

# Similarities in double precision are ties if they agree to 2^-32, as in ``query.shared.statistics.neighbours``.
TIE_STEPS = 2.0**32

# Numbers of each side that are multiplied at a time, to fit the cache.
_PRODUCTS = 1 << 17

# (rows, ids) -> similarities in double precision
Exact = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


def pair_products(
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    other_vectors: NDArray[np.float32],
    columns: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(n,) inner products of ``vectors[rows]`` with ``other_vectors[columns]``, the same for a pair in any call.

    Products of numbers in single precision are exact in double precision, and the order in which NumPy sums them
    depends on the length of a vector alone.
    """
    sums = np.empty(len(rows))
    step = max(1, _PRODUCTS // max(1, vectors.shape[1]))
    for start in range(0, len(rows), step):
        tile = slice(start, start + step)
        products = vectors[rows[tile]].astype(np.float64)
        products *= other_vectors[columns[tile]]
        sums[tile] = products.sum(axis=1)
    return sums


def nearest_first(
    rows: NDArray[np.int64], ids: NDArray[np.int64], similarities: NDArray[np.float32], k: int, exact: Exact
) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.float32]]:
    """The k most similar of each row: positions of these pairs, by row and rank, ranks from 1, and similarities.

    - ``rows``, ``ids`` (n,): the pairs.
    - ``similarities`` (n,): single precision. Only pairs that may be among the first k by these are computed again.
    - ``exact``: computes similarities in double precision.

    Ties are in order of id.
    """
    order = np.lexsort((ids, -similarities, rows))
    row, value = rows[order], similarities[order]
    rank = np.arange(len(order)) - np.searchsorted(row, row, side="left")
    # Runs of pairs, each close to the one before.
    starts = np.append(True, (row[1:] != row[:-1]) | (value[:-1] - value[1:] > NEAR))[: len(order)]
    run = np.cumsum(starts) - 1
    is_near = rank[starts][run] < k
    near_ties, run, rank = order[is_near], run[is_near], rank[is_near]
    exact_similarities = exact(rows[near_ties], ids[near_ties])
    turn = np.lexsort((ids[near_ties], -np.rint(exact_similarities * TIE_STEPS), run))
    is_kept = rank < k
    nearest_pairs = turn[is_kept]
    return (
        near_ties[nearest_pairs],
        (rank[is_kept] + 1).astype(np.int32),
        np.clip(exact_similarities[nearest_pairs], -1.0, 1.0).astype(np.float32),
    )
