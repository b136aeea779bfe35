"""Duplicates: models that were uploaded before, byte for byte or in another file format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from indexer.records.record import DeltaRecord, Record
from indexer.weight_sample import ROUNDOFF, agree

# Vectors of duplicates are nearly the same, after rounding to bfloat16 less nearly; only pairs above this cosine are
# compared matrix by matrix.
CANDIDATE_COSINE = 0.9

# Fewer changed weights in a sample may agree by chance.
_FEWEST_MOVED = 64
# Where rounding adds noise to a delta, their cosine is the ratio of the norms without it and with it, or little less.
_OF_THAT_COSINE = 0.9


@dataclass(frozen=True)
class Upload:
    """What decides whether two models are one, and which of them came first."""

    model_id: int
    created: datetime | None
    file_hashes: tuple[str, ...]


class Groups:
    """Models put together two by two (union–find; Galler & Fischer, 1964), those of equal file hashes to begin with."""

    def __init__(self, uploads: Sequence[Upload]) -> None:
        self._leader = {upload.model_id: upload.model_id for upload in uploads}
        seen: dict[tuple[str, ...], int] = {}
        for upload in uploads:
            if upload.file_hashes:
                self.join(upload.model_id, seen.setdefault(upload.file_hashes, upload.model_id))

    def find(self, model_id: int) -> int:
        """The model that stands for this one's group."""
        while self._leader[model_id] != model_id:
            self._leader[model_id] = self._leader[self._leader[model_id]]
            model_id = self._leader[model_id]
        return model_id

    def join(self, one: int, other: int) -> None:
        """Put two groups together."""
        self._leader[self.find(other)] = self.find(one)

    def are_together(self, one: int, other: int) -> bool:
        """Whether two models are in one group."""
        return self.find(one) == self.find(other)


def find_duplicates(
    uploads: Sequence[Upload], differences: Iterable[tuple[int, int, float]], within: float
) -> dict[int, int]:
    """Map each member of a group of duplicates to the model_id of the group's earliest upload.

    Two models are duplicates where their weight files have the same hashes, or where their changes, compared matrix
    by matrix, differ by no more than ``within``. Unique models do not appear.
    """
    groups = Groups(uploads)
    known = {upload.model_id for upload in uploads}
    for one, other, difference in differences:
        if difference <= within and one in known and other in known:
            groups.join(one, other)
    members: dict[int, list[Upload]] = {}
    for upload in uploads:
        members.setdefault(groups.find(upload.model_id), []).append(upload)
    return {
        upload.model_id: min(group, key=_age).model_id
        for group in members.values()
        if len(group) > 1
        for upload in group
    }


def _age(upload: Upload) -> tuple[bool, float, int]:
    created = upload.created
    return (created is None, created.timestamp() if created else 0.0, upload.model_id)


def difference_of(one: Record, other: Record) -> float:
    """How far two records of one base are from holding the same change; infinite where that cannot be told.

    The largest of the relative differences of the norms, and 1 − the cosine of the deltas; 0 where rounding explains
    all of it (``is_rounding_apart``). That cosine is that of the kept parts, ⟨U₁Σ₁V₁ᵀ, U₂Σ₂V₂ᵀ⟩ summed over matrices,
    never formed: tr(V₁Σ₁U₁ᵀU₂Σ₂V₂ᵀ) = Σ_ij σ₁ᵢ σ₂ⱼ (u₁ᵢ·u₂ⱼ)(v₁ᵢ·v₂ⱼ).
    """
    cosine = _cosine(one, other)
    if is_rounding_apart(one, other, cosine):
        return 0.0
    if cosine is None:
        return math.inf
    norms = max(relative_difference(first.norm, second.norm) for first, second in _pairs(one, other))
    # Factors are float16: what two equal deltas miss of cosine 1 by that is far below any sensible threshold.
    return max(norms, 1.0 - cosine)


def is_rounding_apart(one: Record, other: Record, cosine: float | None) -> bool:
    """Whether two checkpoints are of one origin, cast to other dtypes on the way: by their sampled weights.

    These must agree to within half a unit in the last place of the narrowest dtypes that hold them, and the norms must
    differ by no more than rounding adds. Where hardly a weight was changed samples may agree by chance: then the
    ``cosine`` of the deltas (None where it is not known) must be what rounding leaves of it.
    """
    if one.sample is None or other.sample is None or not one.precision or not other.precision:
        return False  # adapters, and records of earlier versions
    if not agree(one.sample, one.precision, other.sample, other.precision):
        return False
    if not all(norms_fit(first.norm, second.norm, first.base_norm) for first, second in _pairs(one, other)):
        return False
    if min(one.moved, other.moved) >= _FEWEST_MOVED:
        return True
    first, second = (math.hypot(*(delta.norm for delta in record.deltas)) for record in (one, other))
    return cosine is not None and cosine >= _OF_THAT_COSINE * min(first, second) / max(first, second, math.ulp(0.0))


def norms_fit(one: float, other: float, base_norm: float) -> bool:
    """Whether rounding to bfloat16 can make a delta of the one norm one of the other.

    It adds noise to the weights and to the base's, together no more than one unit roundoff of each weight: in units in
    the last place, a smaller change is rounded to 0 or 1 with a variance of ¼ at most, and beyond that two errors of
    variance 1/12 add up.
    """
    return abs(one**2 - other**2) <= (ROUNDOFF * (base_norm + max(one, other))) ** 2


def _pairs(one: Record, other: Record) -> Iterable[tuple[DeltaRecord, DeltaRecord]]:
    return zip(one.deltas, other.deltas, strict=True)


def _cosine(one: Record, other: Record) -> float | None:
    """Of the kept parts; None without factors, 1 between zero deltas, 0 between a zero delta and another one."""
    product = first_square = second_square = 0.0
    for first, second in _pairs(one, other):
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


def relative_difference(one: float, other: float) -> float:
    """|one − other| over the larger; 0 where both are 0."""
    return abs(one - other) / max(one, other) if one != other else 0.0
