"""Near copies of a model: how different two records are, and signatures by which similar records are found.

A signature is an uncentred vector folded into a few bytes with random signs, which keeps cosines: two vectors of cosine
c have signatures of cosine c ± (1 − c²)/√120 (Charikar, Chen & Farach-Colton, 2002, "Finding frequent items in data
streams").
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from indexer.records.record import DeltaRecord, Record
from indexer.records.weight_sample import ROUNDOFF, agree
from indexer.vectors.centre import unit_norm

# Fewer changed weights in a sample may agree by chance.
_FEWEST_MOVED = 64
# Where rounding adds noise to a delta, their cosine is the ratio of the norms without it and with it, or little less.
_OF_THAT_COSINE = 0.9

# Signatures.
LENGTH = 120  # bytes: 160 characters without padding

# Vectors of duplicates are nearly the same, after rounding to bfloat16 less nearly (cosine .9 and above); only pairs
# with signatures above this cosine are compared matrix by matrix.
ALIKE = 0.85

# At most this many of the most similar models are compared with one model.
MOST = 50

_CELLS = 1 << 24  # cosines held at a time


def difference_of(record: Record, other: Record) -> float:
    """How different the changes of two records of one base are; infinite if that is unknown.

    The larger of the largest relative difference of norms and 1 − the cosine of the deltas; 0 if rounding explains all
    of it (``_is_rounding_apart``). The cosine is that of the kept parts, ⟨U₁Σ₁V₁ᵀ, U₂Σ₂V₂ᵀ⟩ summed over matrices, which
    are never formed: tr(V₁Σ₁U₁ᵀU₂Σ₂V₂ᵀ) = Σ_ij σ₁ᵢ σ₂ⱼ (u₁ᵢ·u₂ⱼ)(v₁ᵢ·v₂ⱼ).
    """
    cosine = _cosine(record, other)
    if _is_rounding_apart(record, other, cosine):
        return 0.0
    if cosine is None:
        return math.inf
    norms = max(relative_difference(first.norm, second.norm) for first, second in _pairs(record, other))
    # Factors are float16, and this rounding costs equal deltas far less of cosine 1 than any sensible threshold.
    return max(norms, 1.0 - cosine)


def distance_of(record: Record, other: Record) -> float:
    """‖δW₁ − δW₂‖ over the larger of the two norms; infinite if that is unknown.

    For full weights it is estimated from the weights that both records sample, as δW₁ − δW₂ is W₁ − W₂; otherwise it
    follows from the norms and the cosine of the kept parts.
    """
    if max(record.norm, other.norm) == 0:
        return 0.0
    is_alike = record.identity.spec.version == other.identity.spec.version and len(record.deltas) == len(other.deltas)
    sample, other_sample = record.sample, other.sample
    if is_alike and sample is not None and other_sample is not None and sample.shape == other_sample.shape:
        squares = np.square(sample.astype(np.float64) - other_sample.astype(np.float64))
        # As many weights of each matrix are sampled.
        means = squares.reshape(len(record.deltas), -1).mean(axis=1)
        sizes = [math.prod(delta.shape) for delta in record.deltas]
        return math.sqrt(float(means @ np.array(sizes, dtype=np.float64))) / max(record.norm, other.norm)
    cosine = _cosine(record, other)
    return math.inf if cosine is None else distance_from(record.norm, other.norm, cosine)


def distance_from(norm: float, other: float, cosine: float) -> float:
    """The distance of two changes of these norms at this cosine, over the larger norm."""
    square = norm**2 + other**2 - 2 * cosine * norm * other
    return math.sqrt(max(square, 0.0)) / max(norm, other, math.ulp(0.0))


def _is_rounding_apart(first_record: Record, second_record: Record, cosine: float | None) -> bool:
    """Whether two checkpoints have one origin and differ only by casts to other dtypes, by their sampled weights.

    The samples must agree to within half a unit in the last place of the narrowest dtypes that hold them, and the norms
    must differ by no more than rounding adds. If hardly any weight was changed, samples may agree by chance; then the
    ``cosine`` of the deltas (None if unknown) must be as large as rounding leaves it.
    """
    if (
        first_record.sample is None
        or second_record.sample is None
        or not first_record.precision
        or not second_record.precision
    ):
        return False  # adapters
    if first_record.identity.spec.version != second_record.identity.spec.version:
        return False  # their weights may have been taken at other positions
    if not agree(first_record.sample, first_record.precision, second_record.sample, second_record.precision):
        return False
    # An estimate and an exact norm differ, whatever the models are.
    alike = [
        (first_delta, second_delta)
        for first_delta, second_delta in _pairs(first_record, second_record)
        if first_delta.lines == second_delta.lines
    ]
    if not all(
        norms_fit(first_delta.norm, second_delta.norm, first_delta.base_norm) for first_delta, second_delta in alike
    ):
        return False
    if min(first_record.moved, second_record.moved) >= _FEWEST_MOVED:
        return True
    first, second = (math.hypot(*(delta.norm for delta in record.deltas)) for record in (first_record, second_record))
    return cosine is not None and cosine >= _OF_THAT_COSINE * min(first, second) / max(first, second, math.ulp(0.0))


def norms_fit(norm: float, other: float, base_norm: float) -> bool:
    """Whether rounding to bfloat16 can turn a delta of one norm into a delta of the other.

    It adds noise to the weights and to the base's, together no more than one unit roundoff of each weight: in units in
    the last place, a smaller change is rounded to 0 or 1 with a variance of ¼ at most, and beyond that two errors of
    variance 1/12 add up.
    """
    return abs(norm**2 - other**2) <= (ROUNDOFF * (base_norm + max(norm, other))) ** 2


def _pairs(record: Record, other: Record) -> Iterable[tuple[DeltaRecord, DeltaRecord]]:
    return zip(record.deltas, other.deltas, strict=True)


def _cosine(record: Record, other: Record) -> float | None:
    """The cosine of the kept parts; None without factors, 1 of two zero deltas, 0 of a zero and a nonzero delta."""
    product = first_square = second_square = 0.0
    for first, second in _pairs(record, other):
        if first.u is None or first.v is None or second.u is None or second.v is None:
            return None
        left = first.u.astype(np.float64).T @ second.u.astype(np.float64)
        right = first.v.astype(np.float64).T @ second.v.astype(np.float64)
        s, t = first.s.astype(np.float64), second.s.astype(np.float64)
        product += float(s @ (left * right) @ t)
        first_square += float(s @ s)
        second_square += float(t @ t)
    if not first_square or not second_square:
        return 1.0 if first_square == second_square else 0.0
    return product / math.sqrt(first_square * second_square)


def relative_difference(value: float, other: float) -> float:
    """|one − other| over the larger; 0 where both are 0."""
    return abs(value - other) / max(value, other) if value != other else 0.0


def signature_of(vector: NDArray[np.floating]) -> str:
    """The signature of an uncentred vector (d,), as text; of zeros it is all zeros."""
    signed = np.asarray(vector, dtype=np.float64) * _signs(len(vector))
    folded = np.pad(signed, (0, -len(vector) % LENGTH)).reshape(-1, LENGTH).sum(axis=0)
    highest = np.abs(folded).max()
    steps = np.rint(127 * folded / highest) if highest else folded
    return base64.b64encode(steps.astype(np.int8).tobytes()).decode()


def signatures_from(texts: Sequence[str | None]) -> NDArray[np.float32]:
    """(n, LENGTH) of unit norm; zeros for a missing or malformed signature."""
    nothing = "A" * (LENGTH // 3 * 4)
    joined = "".join(text if text and len(text) == len(nothing) else nothing for text in texts)
    try:
        steps = np.frombuffer(base64.b64decode(joined, validate=True), dtype=np.int8).reshape(-1, LENGTH)
    except ValueError:
        return np.zeros((len(texts), LENGTH), dtype=np.float32)
    return unit_norm(steps.astype(np.float32))


def alike(
    signatures: NDArray[np.float32], rows: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs (one of ``rows``, any row) with similar signatures, a block at a time; a row is not paired with itself."""
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
        pair_rows, pair_columns = np.nonzero(is_near)
        yield part[pair_rows], pair_columns


@lru_cache(maxsize=8)
def _signs(length: int) -> NDArray[np.float64]:
    bits = np.frombuffer(hashlib.shake_256(b"signature").digest(-(-length // 8)), dtype=np.uint8)
    return np.where(np.unpackbits(bits)[:length], 1.0, -1.0)
