"""Representations made of singular triplets: sketched outer products of sides, and singular values.

The default, ``input``, is Σ_i σ_i v_i v_iᵀ per delta: it has no sign to choose and no basis to fix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from indexer.errors import AtlasError, Call, Text
from indexer.records.representations.representation import Representation, Vector
from indexer.records.sketch import DRAW, FIXED_LENGTH, OUTPUT_POWER, USUAL_BUDGET, block_length, sketched
from indexer.vectors.centre import ADAPTER, BY_OUTPUT, FULL, GROUPS

if TYPE_CHECKING:
    from indexer.records.record import Record


@dataclass(frozen=True, kw_only=True)
class OfTriplets(Representation):
    """Computed from the singular triplets of the deltas of a record, which may also store the vector.

    Attributes:
        function: the vector of a record and a budget.
        needs: what of the triplets it is computed from. A record may lack vectors, and a sampled one has neither U nor
            exact σ.
        block: numbers per delta, if fixed.
        groups: the groups of models that have it.
    """

    function: Callable[[Record, int], Vector]
    needs: str = "usv"
    block: int | None = None
    groups: tuple[str, ...] = GROUPS

    @property
    def needs_all_rows(self) -> bool:
        """Whether a sampled record lacks it: it has only V."""
        return self.needs != "v"

    def expected_length(self, record: Record) -> int | None:
        """Blocks of equal length, where their length is known."""
        if self.budget is not None:
            return block_length(record, self.budget) * len(record.deltas)
        return None if self.block is None else self.block * len(record.deltas)

    def is_held_by(self, record: Record) -> bool:
        """Whether the record stores the vector, or the triplets."""
        if record.vector_group not in self.groups:
            return False
        if self.tag in record.vectors:
            return True
        if record.is_sampled and self.needs_all_rows:
            return False
        if self.needs == "u":
            return all(delta.u is not None for delta in record.deltas)
        return self.needs == "s" or all(delta.v is not None for delta in record.deltas)

    def compute(self, record: Record) -> Vector:
        """What ``function`` makes of the triplets."""
        return self.function(record, self.budget or USUAL_BUDGET)

    def vector(self, record: Record) -> Vector:
        """The stored vector if its tag matches, else computed. Raises AtlasError if the record has no triplets."""
        stored = record.vectors.get(self.tag)
        if stored is not None:
            return np.zeros_like(stored) if record.is_copy else stored
        if not self.is_held_by(record):
            if record.is_sampled and self.needs_all_rows:
                raise AtlasError(
                    f"{self.name!r} needs all rows, but only a sample of {record.identity.model} was read.",
                    Text("Read the rest: ", Call("deepen", record.identity.model)),
                )
            raise AtlasError(
                f"The record of {record.identity.model} holds no factors, so {self.name!r} cannot be computed.",
                Text("Build again with ", Call(keep_factors=True), "."),
            )
        return self.of(record)

    def absent(self, model: str) -> AtlasError:
        """The error for a model of another group; otherwise its vector is missing."""
        if not self.is_partial:
            return super().absent(model)
        return AtlasError(
            f"{model} has no {self.name!r} vector: {self.lacking} have none.", "Use another representation."
        )


def _of_length(record: Record, budget: int, *, side: str, power: float = 1.0, is_traceless: bool = False) -> Vector:
    return sketched(record, side, block_length(record, budget), DRAW, power, is_traceless)


def _fixed(record: Record, budget: int, *, side: str) -> Vector:
    return sketched(record, side, FIXED_LENGTH)


def _spectrum(record: Record, budget: int) -> Vector:
    """The top singular values of every delta."""
    return np.concatenate([delta.s for delta in record.deltas]).astype(np.float32)


ADAPTER_OUTPUT = OfTriplets(
    name="adapter_output", version=2, description="output side of adapters: Σ √σ u uᵀ without its trace per delta, for "
    "pairs of which one began at unknown random numbers", per_delta=True,
    function=partial(_of_length, side="output", power=OUTPUT_POWER, is_traceless=True), centred=(FULL,),
    budget=USUAL_BUDGET, needs="u", groups=(ADAPTER, BY_OUTPUT), offered_to=(BY_OUTPUT,),
    is_partial=True, lacking="full fine-tunes",
)  # fmt: skip
INPUT = OfTriplets(
    name="input", version=4, description="input side: Σ σ v vᵀ per delta, sketched, minus the centre of its group",
    per_delta=True, function=partial(_of_length, side="learned"), centred=(FULL,), budget=USUAL_BUDGET, needs="v",
    adapters_by=ADAPTER_OUTPUT.name,
)  # fmt: skip
OUTPUT = OfTriplets(
    name="output", version=1, description="output side: Σ σ u uᵀ per delta, sketched", per_delta=True,
    function=partial(_fixed, side="output"), block=FIXED_LENGTH,
)  # fmt: skip
DELTA = OfTriplets(
    name="delta", version=1, description="the delta: Σ σ u vᵀ per delta, sketched", per_delta=True,
    function=partial(_fixed, side="delta"), block=FIXED_LENGTH,
)  # fmt: skip
SPECTRUM = OfTriplets(
    name="spectrum", version=1, description="top singular values of every delta", per_delta=True, function=_spectrum,
    needs="s",
)  # fmt: skip
INPUT_V1 = OfTriplets(
    name="input_v1", version=1, description="input side, 57 numbers per delta, not centred", per_delta=True,
    function=partial(_fixed, side="input"), block=FIXED_LENGTH, needs="v",
)  # fmt: skip
