"""Row spaces of LoRA's factor A, which show whether adapters started from the same random A.

PEFT initialises A at random and B at zero. Training moves A little, so that the space of its rows stays near the one
that the seed drew, whatever the data are. For every matrix the projector onto that space, QQᵀ with orthonormal
Q (in, r), is sketched (TensorSketch) without its share of the identity, r/in. So the inner product of two sketches is 0
in expectation if the spaces were drawn independently, and r·(1 − r/in) if they are the same.
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
from indexer.vectors.centre import FULL

Sketches = NDArray[np.float32]

# Numbers of a whole sketch, divided among the matrices.
_BUDGET = 2_048
_SHORTEST = 4

# Two adapters of one initialisation agree by .5 to 1 (ranks 4 to 16; least at learning rates that move A far), others
# by .06 at most. The agreement must also be _CERTAIN times the standard deviation that hashing gives independent ones.
ALIKE = 0.3
_CERTAIN = 5.0

# A change of low rank: its kept singular values hold this share of its energy (see the view merged_loras).
_LOW_RANK = 0.999

_CELLS = 1 << 22  # agreements computed at a time


def row_space(bases: Mapping[DeltaKey, NDArray[np.floating]], keys: Sequence[DeltaKey]) -> NDArray[np.float16]:
    """(K, 1 + m) for all ``keys``: ‖QQᵀ − r/in‖² and the sketch; zeros for a matrix without factors.

    ``bases``: by matrix, orthonormal columns (in, r) that span the rows of A.
    """
    length = max(_SHORTEST, _BUDGET // len(keys))
    sketches = np.zeros((len(keys), 1 + length))
    for row, key in enumerate(keys):
        if key in bases:
            basis = np.asarray(bases[key], dtype=np.float64)
            count, rank = basis.shape
            name = f"row-space|{key}"
            space = tensor_sketch(basis, basis, np.ones(rank), name, length)
            sketches[row, 0] = rank * (1 - rank / count)
            sketches[row, 1:] = space - rank / count * identity_sketch(count, name, length)
    return sketches.astype(np.float16)


def row_space_of(record: Record) -> NDArray[np.float16] | None:
    """The sketch of a record, (K, 1 + m); None unless its change looks like that of LoRA factors.

    The stored one, else one computed from the right singular vectors if these contain the whole change, as in LoRAs
    merged into full weights. Raises ValueError if the stored sketch is malformed.
    """
    keys = [delta.key for delta in record.deltas]
    stored = record.row_space
    if stored is not None:
        if stored.shape != (len(keys), 1 + max(_SHORTEST, _BUDGET // len(keys))) or not np.isfinite(stored).all():
            raise ValueError("its sketch of row spaces is malformed")
        return stored
    changed = [delta for delta in record.deltas if delta.norm > 0]
    is_on_fine_tune = record.is_adapter and record.vector_group == FULL
    if not changed or is_on_fine_tune or any(delta.v is None or delta.energy < _LOW_RANK for delta in changed):
        return None
    # As many singular vectors as rows hold all of any change, and give no evidence of its rank.
    if any(delta.lines is not None and delta.lines < 2 * len(delta.s) for delta in changed):
        return None
    return row_space({delta.key: _directions(delta) for delta in changed}, keys)


def _directions(delta: DeltaRecord) -> NDArray[np.float64]:
    """The right singular vectors of a change of low rank, without those that are only rounding."""
    assert delta.v is not None
    remainder = max(delta.norm**2 - float(np.square(delta.s, dtype=np.float64).sum()), 0.0)
    # The largest singular value of a matrix of rounding errors is about twice their root mean square.
    noise = 4 * np.sqrt(remainder / max(min(delta.shape) - len(delta.s), 1))
    is_clear = delta.s > max(noise, 1e-3 * float(delta.s[0]))
    is_clear[0] = True
    return np.linalg.qr(delta.v[:, is_clear].astype(np.float64))[0]


def as_text(sketch: NDArray[np.float16]) -> str:
    """A sketch in the form in which the database stores it."""
    return base64.b64encode(np.ascontiguousarray(sketch, dtype="<f2").tobytes()).decode()


def from_texts(texts: Sequence[str], matrices: int) -> Sketches:
    """(n, K, 1 + m) sketches from ``as_text``; zeros, which agree with nothing, for invalid texts."""
    length = 1 + max(_SHORTEST, _BUDGET // matrices)
    sketches = np.zeros((len(texts), matrices, length), dtype=np.float32)
    for row, text in enumerate(texts):
        try:
            numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f2")
            sketches[row] = numbers.reshape(matrices, length)
        except ValueError:
            continue
    sketches[~np.isfinite(sketches).all(axis=(1, 2))] = 0
    return sketches


def agreement(sketches: Sketches, other_sketches: Sketches) -> NDArray[np.float32]:
    """(a, n): the agreement of the row spaces of (a, K, 1 + m) and (n, K, 1 + m) sketches, over shared matrices.

    1: the smaller space of each pair lies in the larger one; 0: like spaces drawn independently. Also 0 if two models
    share fewer than FEWEST_SHARED matrices (or all, if there are fewer), or if the hashes may explain the agreement.
    """
    step = max(1, _CELLS // max(1, len(other_sketches)))
    return np.concatenate(
        [_agreement(sketches[start : start + step], other_sketches) for start in range(0, len(sketches), step)]
        or [np.zeros((0, len(other_sketches)), np.float32)]
    )


def _agreement(sketches: Sketches, other_sketches: Sketches) -> NDArray[np.float32]:
    shape = (len(sketches), len(other_sketches))
    product, most, chance, shared = (np.zeros(shape, np.float32) for _ in range(4))
    for matrix in range(sketches.shape[1]):
        first, second = sketches[:, matrix], other_sketches[:, matrix]
        are_present = (first[:, :1] > 0) & (second[:, 0] > 0)
        product += np.where(are_present, first[:, 1:] @ second[:, 1:].T, 0)
        most += np.where(are_present, np.minimum(first[:, :1], second[:, 0]), 0)
        chance += np.where(are_present, first[:, :1] * second[:, 0], 0)
        shared += are_present
    noise = np.sqrt(2 * chance / (sketches.shape[2] - 1))
    is_enough = (shared >= min(FEWEST_SHARED, sketches.shape[1])) & (product >= _CERTAIN * noise) & (most > 0)
    return np.where(is_enough, product / np.maximum(most, 1e-6), 0).astype(np.float32)
