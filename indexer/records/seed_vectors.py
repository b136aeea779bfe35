"""The seed's own vectors: U_r (or U_r Σ_r) of each matrix as its checkpoint stores it, layers averaged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError
from indexer.records.record import DeltaRecord, Record


def seed_vector(record: Record, *, scaled: bool) -> NDArray[np.float32]:
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
    """One sign per triplet: the side on which the data agree more strongly decides.

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
