"""Sketched outer products: the input or output directions of deltas, independent of sign and basis.

Outer products are compressed by TensorSketch (Pham & Pagh, 2013, "Fast and scalable polynomial kernels via explicit
feature maps"): the sketch of a ⊗ b is the circular convolution of two CountSketches, and preserves inner products in
expectation.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from indexer.records.record import Record
from indexer.records.row_plan import coordinates

Vector = NDArray[np.float32]

# Numbers of a block in representations of version 1.
FIXED_LENGTH = 57

# The default length of a whole vector: 342 numbers for each of 24 matrices, 57 for each of 144.
USUAL_BUDGET = 8_208

# The draw of the hashes for vectors of a chosen length: the best of five on RoBERTa. On four bases purity varies by
# ±.01 with the draw, that of eight adapters by ±.08 (docs/evidence/vectors.md).
DRAW = "0|"

# The shortest block, however many matrices share the budget.
SHORTEST = 8


def block_length(record: Record, budget: int) -> int:
    """The length of the block of each delta, so that all together have about ``budget`` numbers.

    A block is computed from r vectors of n numbers (n: columns of δW), so it is never longer than r · n of the
    narrowest delta: vectors of small bases are shorter.
    """
    made_of = min(delta.shape[1] * len(delta.s) for delta in record.deltas)
    return max(1, min(max(SHORTEST, budget // len(record.deltas)), made_of))


# The power of singular values in blocks made of U, and of what an adapter learned. With 1, as in blocks made of V, the
# first directions of an adapter would decide: they are those of the largest activations, whatever the data are. Both
# were chosen on adapters of three small bases and on real ones of GPT-2 (docs/evidence/vectors.md).
OUTPUT_POWER = 0.5
LEARNED_POWER = 0.25

# Singular values below this share of the largest may be rounding of the file.
_LEAST = 1e-3


def sketched(
    record: Record, side: str, length: int, draw: str = "", power: float = 1.0, is_traceless: bool = False
) -> Vector:
    """For each delta Σ σ_i^power a_i ⊗ b_i, sketched to ``length`` numbers of unit norm; zeros for a zero delta.

    ``side``: "input" (v ⊗ v), "output" (u ⊗ u), "delta" (u ⊗ v), or "learned": as input, but of A − A₀ where the start
    of an adapter is known. ``draw`` selects the hashes; if it is empty, those of the representations of version 1.
    ``is_traceless``: minus the multiple of the identity that has the same trace, as always of what an adapter learned.
    The inner product of two is then 0 on average over all rotations of one of them, not tr M · tr N / n.
    """
    has_learned = any(delta.learned_v is not None for delta in record.deltas)
    blocks = []
    for delta in record.deltas:
        of_left, of_right, values, exponent, traceless = delta.u, delta.v, delta.s, power, is_traceless
        if side in ("input", "learned"):
            of_left = delta.v
        elif side == "output":
            of_right = delta.u
        if side == "learned" and has_learned:
            of_left = of_right = delta.learned_v  # None where the start of this matrix is not known
            values = delta.s if delta.learned_s is None else delta.learned_s
            exponent, traceless = LEARNED_POWER, True
        if delta.norm == 0.0 or of_left is None or of_right is None:
            blocks.append(np.zeros(length))
            continue
        left, right, weights = of_left.astype(np.float64), of_right.astype(np.float64), values.astype(np.float64)
        sampled = None
        if of_left is of_right is not delta.u and (sampled := coordinates(delta.shape, delta.transposed)) is not None:
            # Of σ vᵀ on these coordinates: what a sample of the matrix has, and what is left of a whole one.
            _, weights, rows = np.linalg.svd((left[sampled] * weights).T, full_matrices=False)
            left = right = np.zeros((delta.shape[1], len(rows)))
            left[sampled] = rows.T
        if exponent != 1.0:
            weights = np.where(weights > _LEAST * weights.max(initial=0.0), weights, 0.0) ** exponent
        name = f"{draw}{delta.key}"
        block = tensor_sketch(left, right, weights, name, length)
        if traceless:
            among = np.arange(len(left)) if sampled is None else sampled
            block -= weights.sum() / len(among) * identity_sketch(len(left), name, length, among)
        norm = np.linalg.norm(block)
        blocks.append(block / norm if norm else block)
    return np.concatenate(blocks).astype(np.float32)


def tensor_sketch(
    left: NDArray[np.float64], right: NDArray[np.float64], weights: NDArray[np.float64], name: str, length: int
) -> NDArray[np.float64]:
    """(length,) the sketch of Σ w_i a_i ⊗ b_i, for columns a_i of (n, r) ``left`` and b_i of (k, r) ``right``.

    ``name`` determines the hashes. The two hashes are independent even if a and b are the same vector.
    """
    first, second = count_sketches(left, right, name, length)
    return convolved(first, second, weights)


def count_sketches(
    left: NDArray[np.floating], right: NDArray[np.floating], name: str, length: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(length, r) and (length, r): the two CountSketches of ``tensor_sketch``. They are linear in the columns."""
    return _count_sketch(left, f"{name}|first", length), _count_sketch(right, f"{name}|second", length)


def convolved(
    first: NDArray[np.floating], second: NDArray[np.floating], weights: NDArray[np.floating]
) -> NDArray[np.float64]:
    """(length,) Σ w_i times the circular convolution of columns i of two CountSketches (length, r)."""
    products = np.fft.rfft(first, axis=0) * np.fft.rfft(second, axis=0)
    return np.fft.irfft(products @ weights, n=len(first))


def identity_sketch(
    count: int, name: str, length: int, among: NDArray[np.integer] | None = None
) -> NDArray[np.float64]:
    """(length,) the ``tensor_sketch`` of the identity, Σ e_i ⊗ e_i over ``count`` coordinates, or ``among`` them."""
    first, second = (_hashes(f"{name}|{which}", count, length).astype(np.intp) for which in ("first", "second"))
    if among is not None:
        first, second = first[among], second[among]
    buckets = ((first >> 1) + (second >> 1)) % length
    signs = np.where((first & 1) == (second & 1), 1.0, -1.0)
    return np.bincount(buckets, weights=signs, minlength=length).astype(np.float64)


# From here on a sparse product is faster. Workers of a build have fewer, and need not load scipy.sparse (9 MB each).
_MANY_COLUMNS = 128


def _count_sketch(columns: NDArray[np.floating], seed: str, length: int = FIXED_LENGTH) -> NDArray[np.float64]:
    """CountSketch of each column of an (n, r) array: (length, r)."""
    packed = _hashes(seed, columns.shape[0], length)
    if columns.shape[1] < _MANY_COLUMNS:
        signed = columns * np.where(packed & 1, 1.0, -1.0)[:, None]
        buckets = (packed >> 1).astype(np.intp)
        return np.stack([np.bincount(buckets, weights=column, minlength=length) for column in signed.T], axis=1)
    from scipy.sparse import csr_array  # sums in the order of the coordinates, in double precision, as bincount does

    order = np.argsort(packed >> 1, kind="stable")
    starts = np.searchsorted((packed >> 1)[order], np.arange(length + 1))
    signs = np.where(packed & 1, 1.0, -1.0)[order]
    sketch: NDArray[np.float64] = csr_array((signs, order, starts), shape=(length, len(packed))) @ columns
    return sketch


# Two for each matrix, with one or two bytes per coordinate: 28 KB for a layer of roberta-base. For models of more than
# 40 layers of six matrices they are recomputed, in microseconds.
@lru_cache(maxsize=512)
def _hashes(seed: str, count: int, length: int) -> NDArray[np.unsignedinteger]:
    """2 · bucket + (1 if the sign is +) of each coordinate, from SHAKE-256: independent of library versions."""
    stream = hashlib.shake_256(f"tensor-sketch|{seed}".encode()).digest(4 * count)
    words = np.frombuffer(stream, dtype="<u4")
    packed = (words >> 1) % length << 1 | words & 1
    return packed.astype(np.uint8 if length <= 128 else np.uint16 if length <= 1 << 15 else np.uint32)
