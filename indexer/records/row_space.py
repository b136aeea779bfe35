"""Row spaces of LoRA's factor A, by which adapters that started from the same random A are recognised.

PEFT starts A at random numbers and B at zero. Training moves A little, so that the space that its rows span stays near
the one that the seed drew, whatever the data are. Of every matrix the projector onto that space, QQᵀ with orthonormal
Q (in, r), is sketched (TensorSketch), without its share of the identity, r/in: so the inner product of two is 0 in
expectation where one space was drawn without the other, and r·(1 − r/in) where they are the same.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import FEWEST_SHARED
from indexer.names import DeltaKey
from indexer.records.record import DeltaRecord, Record
from indexer.records.sketch import identity_sketch, tensor_sketch

Sketches = NDArray[np.float32]

# Numbers of a whole sketch, divided among the matrices.
BUDGET = 2_048
_SHORTEST = 4

# Two adapters of one initialisation agree by .5 to 1 (ranks 4 to 16, the lowest at rates that move A the furthest),
# others by .06 at most; and it must be so many times what the hashes alone make of two with nothing in common.
ALIKE = 0.3
_CERTAIN = 5.0

# A change of low rank: its kept singular values hold this share of its energy (see the view merged_loras).
LOW_RANK = 0.999

_CELLS = 1 << 22  # agreements worked out at a time


def row_space(bases: Mapping[DeltaKey, NDArray[np.floating]], keys: Sequence[DeltaKey]) -> NDArray[np.float16]:
    """(K, 1 + m) for all ``keys``: ‖QQᵀ − r/in‖² and the sketch; zeros for a matrix without factors.

    ``bases``: by matrix, orthonormal columns (in, r) that span the rows of A.
    """
    length = max(_SHORTEST, BUDGET // len(keys))
    found = np.zeros((len(keys), 1 + length))
    for place, key in enumerate(keys):
        if key in bases:
            basis = np.asarray(bases[key], dtype=np.float64)
            count, rank = basis.shape
            name = f"row-space|{key}"
            whole = tensor_sketch(basis, basis, np.ones(rank), name, length)
            found[place, 0] = rank * (1 - rank / count)
            found[place, 1:] = whole - rank / count * identity_sketch(count, name, length)
    return found.astype(np.float16)


def row_space_of(record: Record) -> NDArray[np.float16] | None:
    """The sketch of a record, (K, 1 + m); None where its change is not that of LoRA factors, as far as it tells.

    The stored one, else from the right singular vectors where these hold every change: of a LoRA merged into full
    weights, and of records of earlier versions. Raises ValueError where what is stored is no such sketch.
    """
    keys = [delta.key for delta in record.deltas]
    stored = record.row_space
    if stored is not None:
        if stored.shape != (len(keys), 1 + max(_SHORTEST, BUDGET // len(keys))) or not np.isfinite(stored).all():
            raise ValueError("its sketch of row spaces is malformed")
        return stored
    changed = [delta for delta in record.deltas if delta.norm > 0]
    stands_on_another = record.is_adapter and record.vector_group != "adapter"
    if not changed or stands_on_another or any(delta.v is None or delta.energy < LOW_RANK for delta in changed):
        return None
    return row_space({delta.key: _directions(delta) for delta in changed}, keys)


def _directions(delta: DeltaRecord) -> NDArray[np.float64]:
    """The right singular vectors of a change of low rank, without those that only its rounding made."""
    assert delta.v is not None
    rest = max(delta.norm**2 - float(np.square(delta.s, dtype=np.float64).sum()), 0.0)
    # Of a matrix of rounding errors the largest singular value is about twice the root mean square.
    noise = 4 * np.sqrt(rest / max(min(delta.shape) - len(delta.s), 1))
    kept = delta.s > max(noise, 1e-3 * float(delta.s[0]))
    kept[0] = True
    return np.linalg.qr(delta.v[:, kept].astype(np.float64))[0]


def as_text(sketch: NDArray[np.float16]) -> str:
    """A sketch as the database keeps it."""
    return base64.b64encode(np.ascontiguousarray(sketch, dtype="<f2").tobytes()).decode()


def from_texts(texts: Sequence[str], matrices: int) -> Sketches:
    """(n, K, 1 + m) of ``as_text``; zeros, which agree with nothing, for what is none of ours."""
    length = 1 + max(_SHORTEST, BUDGET // matrices)
    found = np.zeros((len(texts), matrices, length), dtype=np.float32)
    for place, text in enumerate(texts):
        try:
            numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f2")
            found[place] = numbers.reshape(matrices, length)
        except ValueError:
            continue
    found[~np.isfinite(found).all(axis=(1, 2))] = 0
    return found


def agreement(mine: Sketches, others: Sketches) -> NDArray[np.float32]:
    """(a, n): how far the row spaces of (a, K, 1 + m) and (n, K, 1 + m) are the same, over the matrices of both.

    1: the smaller space of each pair lies in the larger one; 0: as spaces drawn apart. 0 too where the two share
    fewer than FEWEST_SHARED matrices (or than all there are), and where so much may be the work of the hashes.
    """
    step = max(1, _CELLS // max(1, len(others)))
    return np.concatenate(
        [_agreement(mine[start : start + step], others) for start in range(0, len(mine), step)]
        or [np.zeros((0, len(others)), np.float32)]
    )


def _agreement(mine: Sketches, others: Sketches) -> NDArray[np.float32]:
    shape = (len(mine), len(others))
    product, most, chance, shared = (np.zeros(shape, np.float32) for _ in range(4))
    for matrix in range(mine.shape[1]):
        first, second = mine[:, matrix], others[:, matrix]
        both = (first[:, :1] > 0) & (second[:, 0] > 0)
        product += np.where(both, first[:, 1:] @ second[:, 1:].T, 0)
        most += np.where(both, np.minimum(first[:, :1], second[:, 0]), 0)
        chance += np.where(both, first[:, :1] * second[:, 0], 0)
        shared += both
    noise = np.sqrt(2 * chance / (mine.shape[2] - 1))
    is_enough = (shared >= min(FEWEST_SHARED, mine.shape[1])) & (product >= _CERTAIN * noise) & (most > 0)
    return np.where(is_enough, product / np.maximum(most, 1e-6), 0).astype(np.float32)
