"""Signatures: uncentred vectors folded into a few bytes, by which near copies of a model are found among all others.

A fold with random signs keeps cosines: two vectors of cosine c have signatures of c ± (1 − c²)/√120 (Charikar, Chen &
Farach-Colton, 2002, "Finding frequent items in data streams"), so nearly equal vectors have nearly equal signatures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LENGTH = 120  # bytes: 160 characters without padding

# Vectors of duplicates are nearly the same, after rounding to bfloat16 less nearly (cosine .9 and above); only pairs
# with signatures above this cosine are compared matrix by matrix.
ALIKE = 0.85

# As many of those most alike are compared with one model at most.
MOST = 50

_CELLS = 1 << 24  # cosines held at a time


def signature_of(vector: NDArray[np.floating]) -> str:
    """The signature of an uncentred vector (d,), as text; of zeros it is all zeros."""
    signed = np.asarray(vector, dtype=np.float64) * _signs(len(vector))
    folded = np.pad(signed, (0, -len(vector) % LENGTH)).reshape(-1, LENGTH).sum(axis=0)
    highest = np.abs(folded).max()
    steps = np.rint(127 * folded / highest) if highest else folded
    return base64.b64encode(steps.astype(np.int8).tobytes()).decode()


def signatures_from(texts: Sequence[str | None]) -> NDArray[np.float32]:
    """(n, LENGTH) of unit norm; zeros where there is none, or none of ours."""
    nothing = "A" * (LENGTH // 3 * 4)
    whole = "".join(text if text and len(text) == len(nothing) else nothing for text in texts)
    try:
        steps = np.frombuffer(base64.b64decode(whole, validate=True), dtype=np.int8).reshape(-1, LENGTH)
    except ValueError:
        return np.zeros((len(texts), LENGTH), dtype=np.float32)
    found = steps.astype(np.float32)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return np.divide(found, norms, out=np.zeros_like(found), where=norms > 0)


def alike(
    signatures: NDArray[np.float32], rows: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs (of ``rows``, of all rows) whose signatures are alike, a block at a time; no row with itself."""
    step = max(1, _CELLS // max(1, len(signatures)))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        cosines = signatures[part] @ signatures.T
        cosines[np.arange(len(part)), part] = -1.0
        is_near = cosines >= ALIKE
        crowded = np.flatnonzero(np.count_nonzero(is_near, axis=1) > MOST)
        if len(crowded):  # hardly ever; finding the highest of every row takes as long as all the rest
            highest = np.partition(cosines[crowded], -MOST, axis=1)[:, -MOST, None]
            is_near[crowded] &= cosines[crowded] >= highest
        mine, others = np.nonzero(is_near)
        yield part[mine], others


@lru_cache(maxsize=8)
def _signs(length: int) -> NDArray[np.float64]:
    bits = np.frombuffer(hashlib.shake_256(b"signature").digest(-(-length // 8)), dtype=np.uint8)
    return np.where(np.unpackbits(bits)[:length], 1.0, -1.0)
