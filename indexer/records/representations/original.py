"""The representations of the original method: left singular vectors with fixed signs, layers averaged."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.records.representations.representation import Vector
from indexer.records.representations.triplets import OfTriplets

if TYPE_CHECKING:
    from indexer.records.record import DeltaRecord, Record


def _original(record: Record, budget: int, *, scaled: bool) -> Vector:
    """U_r (``scaled``: U_r Σ_r); families and stacks are concatenated.

    Signs by Bro, Acar & Kolda (2008), "Resolving the sign ambiguity in the singular value decomposition". Raises
    AtlasError where the matrices of a family differ in shape.
    """
    groups: dict[str, list[NDArray[np.float64]]] = {}
    for delta in record.deltas:
        factor = delta.v if delta.transposed else delta.u
        assert factor is not None
        weights = _bro_signs(delta) * (delta.s.astype(np.float64) if scaled else 1.0)
        groups.setdefault(delta.key.family_key, []).append(factor.astype(np.float64) * weights)
    for family, members in groups.items():
        if len({member.shape for member in members}) > 1:
            raise AtlasError(
                f"'seed' averages layers, and the {family} matrices of {record.identity.base} differ in shape.",
                "Use another representation.",
            )
    averaged = [np.mean(members, axis=0).ravel(order="F") for members in groups.values()]
    return np.concatenate(averaged).astype(np.float32)


def _bro_signs(delta: DeltaRecord) -> NDArray[np.float64]:
    """One sign per triplet, chosen by the side on which the data agree more strongly.

    For the truncated SVD itself u_iᵀ δW = σ_i v_iᵀ, so the sum over the columns of δW of
    sign(u_iᵀ a_j)(u_iᵀ a_j)² is σ_i² Σ_j sign(v_ij) v_ij², and likewise for the rows.
    """
    assert delta.u is not None
    assert delta.v is not None
    u, v = delta.u.astype(np.float64), delta.v.astype(np.float64)
    left = (np.sign(v) * v**2).sum(axis=0)
    right = (np.sign(u) * u**2).sum(axis=0)
    deciding = np.where(np.abs(left) >= np.abs(right), left, right)
    return np.where(deciding < 0, -1.0, 1.0)


SEED = OfTriplets(
    name="seed", version=1, description="U_r with fixed signs, layers averaged (the original method)",
    function=partial(_original, scaled=False),
)  # fmt: skip
SEED_SCALED = OfTriplets(
    name="seed_scaled", version=1, description="U_r Σ_r with fixed signs, layers averaged",
    function=partial(_original, scaled=True),
)  # fmt: skip
