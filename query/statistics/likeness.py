"""How alike models are, from their vectors: all pairs, and as points whose inner products are the similarities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.masks import changed_blocks, divisors, shared_blocks

# Points are found exactly for so many models; others are placed by their similarities to so many of them.
_LANDMARKS = 2048

# Of directions that hold less, what is not rounding is that similarities of models that lack blocks are none of points.
_LEAST, _LEAST_OF_MANY = 1e-6, 0.1

Reals = NDArray[np.floating[Any]]


def similarities(mine: Reals, theirs: Reals, blocks: int = 0) -> Reals:
    """(a, b) from (a, d) and (b, d) vectors of ``blocks`` of unit norm, or of unit norm as a whole (0)."""
    products: Reals = mine @ theirs.T
    if not blocks:
        return products
    shared = shared_blocks(changed_blocks(mine, blocks), changed_blocks(theirs, blocks))
    scaled: Reals = products / divisors(shared, blocks)
    return scaled


def points(vectors: Reals, blocks: int = 0) -> Reals:
    """(n, m) unit vectors whose cosines are the similarities: what methods made for points are given.

    Where some models lack blocks there may be no such points: then those whose inner products come nearest (classical
    scaling; Torgerson, 1952), of more than 2,048 models by way of as many landmarks (Williams & Seeger, 2001, "Using
    the Nyström method"), drawn with a fixed seed.
    """
    if not blocks or not len(vectors):
        return vectors
    if changed_blocks(vectors, blocks).all():
        return vectors / np.float32(np.sqrt(blocks))
    count = len(vectors)
    is_whole = count <= _LANDMARKS
    chosen = np.arange(count)
    if not is_whole:
        chosen = np.sort(np.random.default_rng(0).choice(count, _LANDMARKS, replace=False))
    table = similarities(vectors[chosen], vectors[chosen], blocks).astype(np.float64)
    np.fill_diagonal(table, 1.0)  # also of a model of very few blocks, which is shrunk against others
    held, directions = np.linalg.eigh((table + table.T) / 2)
    kept = held > (_LEAST if is_whole else _LEAST_OF_MANY)
    if is_whole:
        placed = directions[:, kept] * np.sqrt(held[kept])
    else:
        placed = similarities(vectors, vectors[chosen], blocks) @ (directions[:, kept] / np.sqrt(held[kept]))
    norms = np.linalg.norm(placed, axis=1, keepdims=True)
    unit: Reals = np.divide(placed, norms, out=np.zeros_like(placed), where=norms > 0).astype(vectors.dtype)
    return unit
