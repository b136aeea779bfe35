"""What lineage tells: steps from parents to a model, and the words for their kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from query.lineage.candidates import Candidate

if TYPE_CHECKING:
    from indexer.records.parts import ModelParts

TUNED = "tuned from the base"
CONTINUED = "continued"
CONTINUED_OR_RUN = "continued, or a run with the same data and seed"
MERGE = "merge"
LORA = "LoRA merged"
COPY = "copy"
RECAST = "recast"
QUANTISED = "quantised copy"
UNRELATED = "unrelated"


# Steps to the nearest relative, sure or not.
RELATED = (CONTINUED, CONTINUED_OR_RUN)


@dataclass(frozen=True)
class Link:
    """One step: from ``parent`` (None: the base, or a model that the atlas does not hold) to the asked model.

    ``coefficient``: the parent's weight. ``left``: share of ‖δ‖² that all links together do not explain. ``method``: of
    a merge. ``because``: the evidence in a few words. ``direction``: whether the order is known. ``proven``: by what is
    exactly the same, not by sizes and angles. ``same``: other models that the weights cannot tell from the parent.
    ``signals``: of a continued model, the numbers that its probability is made from.
    """

    parent: Candidate | None
    kind: str
    coefficient: float
    left: float
    because: str
    method: str | None = None
    direction: bool = True
    proven: bool = True
    same: tuple[str, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The links found; ``settled``: reading more models would not change them. No links: none was found."""

    links: tuple[Link, ...]
    settled: bool


@dataclass(frozen=True)
class Reading:
    """A candidate and its parts."""

    candidate: Candidate
    parts: ModelParts


def one_link(
    one: Reading, kind: str, coefficient: float, left: float, because: str, direction: bool, others: Sequence[Reading]
) -> Verdict:
    """A settled verdict of one link; ``others`` are those that the weights cannot tell from its parent."""
    same = tuple(other.candidate.model for other in others)
    link = Link(one.candidate, kind, coefficient, left, because, direction=direction, same=same)
    return Verdict((link,), settled=True)


def age(candidate: Candidate) -> tuple[bool, float, int]:
    """The earlier upload first; those without a date last, by id."""
    created = candidate.created
    return created is None, created.timestamp() if created else 0.0, candidate.model_id
