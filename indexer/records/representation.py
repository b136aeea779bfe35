"""Representations: named, versioned, pure functions from a record to a vector of fixed length.

The default, ``input``, is Σ_i σ_i v_i v_iᵀ per delta: it has no sign to choose and no basis to fix. Vectors computed
here are *uncentred*: the atlas subtracts the centre of the model's group when it publishes them (see
``indexer.vectors.centre``). To add a representation, write its function and add a line to ``REPRESENTATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError, BadArgument
from indexer.records.record import DeltaRecord, Record
from indexer.records.row_plan import ROW_PLAN, coordinates
from indexer.records.sketch import DRAW, FIXED_LENGTH, USUAL_BUDGET, block_length, sketched

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Representation:
    """One way to turn a record into a vector.

    ``compute`` returns the float32 vector of a record and a budget, not normalised as a whole. If ``per_delta``, the
    vector consists of blocks of equal length, one for each delta in the order of ``DeltaKey.sort_key``; only then can a
    similarity be explained by layer and family. If ``centred``, the blocks have unit norm and about ``budget`` numbers
    together, the atlas subtracts the centre of the model's group, and two models are compared by the mean cosine of the
    blocks that both have; otherwise by the cosine of the whole vectors. If ``of_profiles``, the vector is made from
    depth profiles, in units of their standard deviation over the atlas, not from a record. ``needs``: what of the
    singular triplets it is computed from; a record may lack vectors, and a sampled one has neither U nor exact σ.
    ``block``: numbers per delta, if fixed. ``earlier``: its name in an earlier version.
    """

    name: str
    version: int
    description: str
    per_delta: bool
    compute: Callable[[Record, int], Vector]
    of_profiles: bool = False
    centred: bool = False
    budget: int | None = None
    needs: str = "usv"
    block: int | None = None
    earlier: str = ""

    @property
    def tag(self) -> str:
        """Name, version and an unusual budget. Vectors with different tags are never compared."""
        length = "" if self.budget in (None, USUAL_BUDGET) else f".{self.budget}"
        return f"{self.earlier or self.name}.{self.version}{length}"

    def of_length(self, budget: int | None) -> Representation:
        """The same with about ``budget`` numbers; itself if its length is fixed or ``budget`` is None."""
        return self if budget is None or self.budget is None else replace(self, budget=budget)

    def expected_length(self, record: Record) -> int | None:
        """The length that the vector of ``record`` must have; None if only the computation can say."""
        if self.budget is not None:
            return block_length(record, self.budget) * len(record.deltas)
        return None if self.block is None else self.block * len(record.deltas)

    def is_held_by(self, record: Record) -> bool:
        """Whether ``record`` holds the vector, or what it is computed from."""
        if self.of_profiles:
            return False
        if self._stored(record) is not None:
            return True
        if record.is_sampled and self.needs != "v":
            return False
        return self.needs == "s" or all(delta.v is not None for delta in record.deltas)

    def of(self, record: Record) -> Vector:
        """The uncentred vector, computed from the factors even if one is stored."""
        return self.compute(record, self.budget or USUAL_BUDGET)

    def vector(self, record: Record) -> Vector:
        """The uncentred vector of ``record``: the stored one if its tag matches, else computed from the factors.

        Raises AtlasError if the record has no factors.
        """
        stored = self._stored(record)
        if stored is not None:
            return stored
        if not self.of_profiles and not self.is_held_by(record):
            if record.is_sampled and self.needs != "v":
                raise AtlasError(
                    f"{self.name!r} needs all of a model's matrices, and of {record.identity.model} a sample was read.",
                    f"Read the rest: `deepen({record.identity.model!r})`",
                )
            raise AtlasError(
                f"The record of {record.identity.model} holds no factors, so {self.name!r} cannot be computed.",
                "Build again with `keep_factors=True`.",
            )
        return self.of(record)

    def _stored(self, record: Record) -> Vector | None:
        """The vector in the record, unless it was computed from input coordinates that are no longer used."""
        is_old = self.needs == "v" and record.row_plan != ROW_PLAN
        if is_old and any(coordinates(delta.shape, delta.transposed) is not None for delta in record.deltas):
            return None
        return record.vectors.get(self.tag)


def representation_named(name: str, budget: int | None = None) -> Representation:
    """The representation of that name, with about ``budget`` numbers. Raises BadArgument that lists the known ones."""
    try:
        return REPRESENTATIONS[name].of_length(budget)
    except KeyError:
        known = ", ".join(REPRESENTATIONS)
        raise BadArgument(f"Unknown representation {name!r}.", f"Choose one of: {known}.") from None


def _of_length(record: Record, budget: int, *, side: str) -> Vector:
    return sketched(record, side, block_length(record, budget), DRAW)


def _fixed(record: Record, budget: int, *, side: str) -> Vector:
    return sketched(record, side, FIXED_LENGTH)


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


def _spectrum(record: Record, budget: int) -> Vector:
    """The top singular values of every delta."""
    return np.concatenate([delta.s for delta in record.deltas]).astype(np.float32)


def _no_record(record: Record, budget: int) -> Vector:
    raise AtlasError(
        f"{record.identity.model} has no depth profile in this atlas, so 'depth' cannot be computed.",
        f"Make one: index profile {record.identity.model}",
    )


REPRESENTATIONS: dict[str, Representation] = {
    made.name: made
    for made in (
        Representation(
            "input", 2, "input side: Σ σ v vᵀ per delta, sketched, minus the centre of its group", True,
            partial(_of_length, side="input"), centred=True, budget=USUAL_BUDGET, needs="v",
        ),
        Representation(
            "output", 1, "output side: Σ σ u uᵀ per delta, sketched", True, partial(_fixed, side="output"),
            block=FIXED_LENGTH,
        ),
        Representation(
            "delta", 1, "the delta: Σ σ u vᵀ per delta, sketched", True, partial(_fixed, side="delta"),
            block=FIXED_LENGTH,
        ),
        Representation(
            "seed", 1, "U_r with fixed signs, layers averaged (the original method)", False,
            partial(_original, scaled=False),
        ),
        Representation(
            "seed_scaled", 1, "U_r Σ_r with fixed signs, layers averaged", False, partial(_original, scaled=True)
        ),
        Representation("spectrum", 1, "top singular values of every delta", True, _spectrum, needs="s"),
        Representation(
            "depth", 1, "what layers keep, against the base; only of profiled models", False, _no_record, True
        ),
        Representation(
            "input_v1", 1, "input side, 57 numbers a delta, not centred (the default before)", True,
            partial(_fixed, side="input"), block=FIXED_LENGTH, earlier="input", needs="v",
        ),
    )
}  # fmt: skip

DEFAULT = "input"
