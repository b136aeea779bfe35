"""Similarities of models from their vectors: for all pairs, or as points with these inner products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.vectors.table import VectorTable, block_similarities

# Up to this many models, points are exact; more models are placed by their similarities to this many of them.
_LANDMARKS = 2048

# Directions with smaller eigenvalues are rounding errors, or come from models that lack blocks, whose similarities are
# not exactly inner products of points.
_LEAST, _LEAST_OF_MANY = 1e-6, 0.1

Reals = NDArray[np.floating[Any]]

similarities = block_similarities


def points(table: VectorTable) -> Reals:
    """(n, m) unit vectors whose cosines are the similarities, for methods that need points.

    If some models lack blocks, or are compared by other vectors, such points may not exist. Then the inner products are
    as close as possible (classical scaling; Torgerson, 1952). More than 2,048 models are placed by their similarities
    to 2,048 landmarks drawn with a fixed seed (Williams & Seeger, 2001, "Using the Nyström method").
    """
    vectors = table.inputs
    if table.is_plain or not len(table):
        return vectors / np.float32(np.sqrt(table.blocks or 1))
    count = len(table)
    is_exact = count <= _LANDMARKS
    landmark_rows = np.arange(count)
    if not is_exact:
        landmark_rows = np.sort(np.random.default_rng(0).choice(count, _LANDMARKS, replace=False))
    landmarks = table.take(landmark_rows)
    between = landmarks.similarities(landmarks).astype(np.float64)
    np.fill_diagonal(between, 1.0)  # also for a model of very few blocks, whose similarities are shrunk
    eigenvalues, directions = np.linalg.eigh((between + between.T) / 2)
    is_kept = eigenvalues > (_LEAST if is_exact else _LEAST_OF_MANY)
    if is_exact:
        coordinates = directions[:, is_kept] * np.sqrt(eigenvalues[is_kept])
    else:
        coordinates = table.similarities(landmarks) @ (directions[:, is_kept] / np.sqrt(eigenvalues[is_kept]))
    norms = np.linalg.norm(coordinates, axis=1, keepdims=True)
    return np.divide(coordinates, norms, out=np.zeros_like(coordinates), where=norms > 0).astype(vectors.dtype)
