"""Duplicates: models that were uploaded before, byte for byte or in another file format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from indexer.record import Record

# Vectors of duplicates are nearly the same; only pairs above this cosine are compared matrix by matrix.
CANDIDATE_COSINE = 0.98


@dataclass(frozen=True)
class Upload:
    """What decides whether two models are one, and which of them came first."""

    model_id: int
    created: datetime | None
    file_hashes: tuple[str, ...]
    record_key: str
    norm: float


def find_duplicates(
    uploads: Sequence[Upload],
    near: Iterable[tuple[int, int]],
    read: Callable[[str], Record],
    within: float,
) -> dict[int, int]:
    """Map each member of a group of duplicates to the model_id of the group's earliest upload.

    Two models are duplicates where their weight files have the same hashes, or where (among the pairs of
    ``near``) their norms and their delta cosine are equal within ``within``. Unique models do not appear.
    """
    by_id = {upload.model_id: upload for upload in uploads}
    leader = {model_id: model_id for model_id in by_id}

    def find(model_id: int) -> int:
        while leader[model_id] != model_id:
            leader[model_id] = leader[leader[model_id]]
            model_id = leader[model_id]
        return model_id

    def age(model_id: int) -> tuple[bool, float, int]:
        created = by_id[model_id].created
        return (created is None, created.timestamp() if created else 0.0, model_id)

    def join(one: int, other: int) -> None:
        first, second = sorted((find(one), find(other)), key=age)
        leader[second] = first

    seen: dict[tuple[str, ...], int] = {}
    for upload in uploads:
        if upload.file_hashes:
            join(upload.model_id, seen.setdefault(upload.file_hashes, upload.model_id))
    for one, other in near:
        first, second = by_id.get(one), by_id.get(other)
        if first is None or second is None or find(one) == find(other):
            continue
        if _close(first.norm, second.norm, within) and same_deltas(
            read(first.record_key), read(second.record_key), within
        ):
            join(one, other)
    sizes: dict[int, int] = {}
    for model_id in by_id:
        sizes[find(model_id)] = sizes.get(find(model_id), 0) + 1
    return {model_id: find(model_id) for model_id in by_id if sizes[find(model_id)] > 1}


def same_deltas(one: Record, other: Record, within: float) -> bool:
    """Whether two records of one base hold the same change: every norm, and the cosine of the deltas.

    The cosine is that of the kept parts, ⟨U₁Σ₁V₁ᵀ, U₂Σ₂V₂ᵀ⟩ summed over matrices, never formed:
    tr(V₁Σ₁U₁ᵀU₂Σ₂V₂ᵀ) = Σ_ij σ₁ᵢ σ₂ⱼ (u₁ᵢ·u₂ⱼ)(v₁ᵢ·v₂ⱼ).
    """
    product = first_square = second_square = 0.0
    for first, second in zip(one.deltas, other.deltas, strict=True):
        if not _close(first.norm, second.norm, within):
            return False
        if first.u is None or first.v is None or second.u is None or second.v is None:
            return False
        left = first.u.astype(np.float64).T @ second.u.astype(np.float64)
        right = first.v.astype(np.float64).T @ second.v.astype(np.float64)
        s, t = first.s.astype(np.float64), second.s.astype(np.float64)
        product += float(s @ (left * right) @ t)
        first_square += float(s @ s)
        second_square += float(t @ t)
    if not first_square or not second_square:
        return first_square == second_square
    # Factors are float16: what two equal deltas miss of cosine 1 by that is far below any sensible threshold.
    return bool(product / np.sqrt(first_square * second_square) >= 1.0 - within)


def _close(one: float, other: float, within: float) -> bool:
    return abs(one - other) <= within * max(one, other)
