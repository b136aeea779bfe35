"""Exact nearest neighbours of every vector, block by block, ties by id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexer.vectors import TIE_DIGITS, Vectors

# Rows of the similarity matrix held at once: 512 × 10,000 float32 are 20 MB.
BLOCK_ROWS = 512


def nearest(
    vectors: Vectors, k: int, rows: NDArray[np.int64] | None = None
) -> list[tuple[int, int, int, float]]:
    """(model id, rank from 1, neighbour id, cosine) for each row's k nearest others.

    ``rows`` are positions in ``vectors``; all by default. Equal cosines are ordered by id.
    """
    positions = np.arange(len(vectors.ids)) if rows is None else rows
    found: list[tuple[int, int, int, float]] = []
    for start in range(0, len(positions), BLOCK_ROWS):
        block = positions[start : start + BLOCK_ROWS]
        similarities = vectors.matrix[block] @ vectors.matrix.T
        similarities[np.arange(len(block)), block] = -np.inf
        for position, row in zip(block, similarities, strict=True):
            model_id = int(vectors.ids[position])
            for rank, other in enumerate(top(row, vectors.ids, min(k, len(row) - 1)), start=1):
                found.append((model_id, rank, int(vectors.ids[other]), float(np.clip(row[other], -1.0, 1.0))))
    return found


def top(similarities: NDArray[np.float32], ids: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Positions of the k largest similarities, ties by id.

    Equal vectors can differ in the last bits of their products, so similarities that agree to TIE_DIGITS
    digits are ties.
    """
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    similarities = np.round(similarities, TIE_DIGITS)
    if k < len(similarities):
        edge = np.partition(similarities, len(similarities) - k)[len(similarities) - k]
        candidates = np.flatnonzero(similarities >= edge)
    else:
        candidates = np.arange(len(similarities))
    order = np.lexsort((ids[candidates], -similarities[candidates]))
    return candidates[order[:k]]
