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

from indexer.errors import AtlasError, BadArgument, Call, Text
from indexer.records.record import DeltaRecord, Record
from indexer.records.sketch import DRAW, FIXED_LENGTH, OUTPUT_POWER, USUAL_BUDGET, block_length, sketched
from indexer.records.tokens import EXACT, MISSING, STATISTICAL, UNSURE, token_rows
from indexer.vectors.centre import FULL

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
    ``block``: numbers per delta, if fixed. ``of_tokens``: it is computed from the rows of the input embedding, not
    from triplets; many records have none. ``blocks``: how many blocks its vectors have, where they are not those of
    deltas. ``of_adapters``: other models have none.
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
    of_tokens: bool = False
    blocks: int | None = None
    of_adapters: bool = False

    @property
    def from_samples(self) -> bool:
        """Whether a sampled record has the vector, if a full one has it."""
        return self.needs == "v" or self.of_tokens

    @property
    def tag(self) -> str:
        """Name, version and an unusual budget. Vectors with different tags are never compared."""
        length = "" if self.budget in (None, USUAL_BUDGET) else f".{self.budget}"
        return f"{self.name}.{self.version}{length}"

    def of_length(self, budget: int | None) -> Representation:
        """The same with about ``budget`` numbers; itself if its length is fixed or ``budget`` is None."""
        return self if budget is None or self.budget is None else replace(self, budget=budget)

    def expected_length(self, record: Record) -> int | None:
        """The length that the vector of ``record`` must have; None if only the computation can say."""
        if self.of_tokens:
            return None if record.tokens is None else 2 * len(token_rows(record.tokens.base_vocabulary))
        if self.budget is not None:
            return block_length(record, self.budget) * len(record.deltas)
        return None if self.block is None else self.block * len(record.deltas)

    def is_held_by(self, record: Record) -> bool:
        """Whether ``record`` holds the vector, or what it is computed from."""
        if self.of_profiles:
            return False
        if self.of_tokens:
            return _has_vocabulary(record)
        if self.of_adapters and record.vector_group == FULL:
            return False
        if self.tag in record.vectors:
            return True
        if record.is_sampled and self.needs != "v":
            return False
        if self.needs == "u":
            return all(delta.u is not None for delta in record.deltas)
        return self.needs == "s" or all(delta.v is not None for delta in record.deltas)

    def of(self, record: Record) -> Vector:
        """The uncentred vector, computed from the factors even if one is stored; zeros if nothing changed."""
        found = self.compute(record, self.budget or USUAL_BUDGET)
        return np.zeros_like(found) if record.is_copy and not self.of_profiles else found

    def vector(self, record: Record) -> Vector:
        """The uncentred vector of ``record``: the stored one if its tag matches, else computed from the factors.

        Raises AtlasError if the record has no factors, or no rows of the input embedding that moved.
        """
        if self.of_tokens:
            return self.of(record)
        stored = record.vectors.get(self.tag)
        if stored is not None:
            return np.zeros_like(stored) if record.is_copy else stored
        if not self.of_profiles and not self.is_held_by(record):
            if record.is_sampled and self.needs != "v":
                raise AtlasError(
                    f"{self.name!r} needs all rows, but only a sample of {record.identity.model} was read.",
                    Text("Read the rest: ", Call("deepen", record.identity.model)),
                )
            raise AtlasError(
                f"The record of {record.identity.model} holds no factors, so {self.name!r} cannot be computed.",
                Text("Build again with ", Call(keep_factors=True), "."),
            )
        return self.of(record)


def representation_named(name: str, budget: int | None = None) -> Representation:
    """The representation of that name, with about ``budget`` numbers. Raises BadArgument that lists the known ones."""
    try:
        return REPRESENTATIONS[name].of_length(budget)
    except KeyError:
        known = ", ".join(REPRESENTATIONS)
        raise BadArgument(f"Unknown representation {name!r}.", f"Choose one of: {known}.") from None


def _of_length(record: Record, budget: int, *, side: str, power: float = 1.0, is_traceless: bool = False) -> Vector:
    return sketched(record, side, block_length(record, budget), DRAW, power, is_traceless)


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


def _has_vocabulary(record: Record) -> bool:
    """Whether rows of its input embedding moved, not all alike, and are the rows of the base that are read today."""
    tokens = record.tokens
    if tokens is None or tokens.kind not in (EXACT, STATISTICAL) or record.is_copy:
        return False
    is_read = tokens.codes.shape == (len(token_rows(tokens.base_vocabulary)),)
    return is_read and len(np.unique(tokens.codes[tokens.codes != MISSING] % UNSURE)) > 1  # unsure rows count as 0


def _vocabulary(record: Record, budget: int) -> Vector:
    """(2n,): in the first half how far the n rows moved or, in the second, their shares of the change of a tied head.

    The other half is zero, so that the two kinds have their own centres and are never compared with each other. A row
    counts by the square of its rank among the rows that moved, from 0 (untouched) to 1, minus the mean over the rows:
    sizes depend on the learning rate, their order much less. A missing row counts as the mean. On two families of
    fine-tunes, squared ranks separated datasets better than ranks, sizes, powers and logarithms of sizes, or one bit.
    """
    tokens = record.tokens
    if tokens is None or not _has_vocabulary(record):
        raise AtlasError(
            f"{record.identity.model} has no vocabulary vector: no row of its input embedding is known to have moved "
            "(it is an adapter, or its embedding is frozen or cannot be compared).",
            "Use another representation.",
        )
    is_there = tokens.codes != MISSING
    found, place, counts = np.unique(tokens.codes[is_there] % UNSURE, return_inverse=True, return_counts=True)
    counts = np.where(found == 0, 0, counts)
    ranks = np.where(found == 0, 0.0, (np.cumsum(counts) - (counts - 1) / 2) / counts.sum())  # equal codes share one
    block = np.zeros(len(tokens.codes))
    block[is_there] = ranks[place] ** 2
    block[is_there] -= block[is_there].mean()
    unit, other = (block / np.linalg.norm(block)).astype(np.float32), np.zeros(len(block), np.float32)
    return np.concatenate([other, unit] if tokens.is_share else [unit, other])


def _no_record(record: Record, budget: int) -> Vector:
    raise AtlasError(
        f"{record.identity.model} has no depth profile in this atlas, so 'depth' cannot be computed.",
        f"Make one: index profile {record.identity.model}",
    )


VOCABULARY = "vocabulary"
ADAPTER_OUTPUT = "adapter_output"

REPRESENTATIONS: dict[str, Representation] = {
    made.name: made
    for made in (
        Representation(
            "input", 4, "input side: Σ σ v vᵀ per delta, sketched, minus the centre of its group", True,
            partial(_of_length, side="learned"), centred=True, budget=USUAL_BUDGET, needs="v",
        ),
        Representation(
            ADAPTER_OUTPUT, 2, "output side of adapters: Σ √σ u uᵀ without its trace per delta, for pairs of which one "
            "began at unknown random numbers", True,
            partial(_of_length, side="output", power=OUTPUT_POWER, is_traceless=True), centred=True,
            budget=USUAL_BUDGET, needs="u", of_adapters=True,
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
            "depth", 1, "what layers keep, compared with the base; only for profiled models", False, _no_record, True
        ),
        Representation(
            "input_v1", 1, "input side, 57 numbers per delta, not centred", True,
            partial(_fixed, side="input"), block=FIXED_LENGTH, needs="v",
        ),
        Representation(
            VOCABULARY, 1, "the tokens of the training text: how far each row of the input embedding moved, minus the "
            "centre of the full fine-tunes; not of adapters", False, _vocabulary, centred=True, needs="",
            of_tokens=True, blocks=2,
        ),
    )
}  # fmt: skip

DEFAULT = "input"
