"""The lineage of a conversion: one step, from the model that it is a copy of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indexer.errors import Call, Text
from indexer.records.conversion import DIFFERS, EXACTLY
from query.questions.lineage.result import CONFIRMED, CONTRADICTED, CONVERSION, NOT_DECLARED, Edge, Lineage

if TYPE_CHECKING:
    from query.models.conversions import Conversion

_LARGEST = 0.9999


def lineage_of_conversion(conversion: Conversion) -> Lineage:
    """The answer of ``lineage`` for a conversion: its source, or none if that is not known."""
    found = conversion.found
    card = NOT_DECLARED
    if found.source in found.claimed:
        card = CONFIRMED
    elif found.verdict == DIFFERS:
        card = CONTRADICTED
    left = 0.0 if found.verdict == EXACTLY or found.residual is None else min(found.residual**2, 1.0)
    edge = Edge(
        conversion.model, found.source, CONVERSION, 1.0, 1.0 if found.source is None else left, found.headline,
        card=card, probability=_probability(conversion), same=found.also, parent_id=conversion.source_id,
        is_proven=found.verdict == EXACTLY,
    )  # fmt: skip
    notes: list[str] = list(found.notes)
    if found.differing:
        notes.append(f"tensors that differ: {', '.join(found.differing)}")
    if conversion.answered_at is not None:
        when = f"This answer was stored in the atlas on {conversion.answered_at:%Y-%m-%d}"
        notes.append(Text(f"{when}; to read the weights again: ", Call(fresh=True), "."))
    return Lineage(
        conversion.model, found.base, conversion.model_id, (edge,), found.bytes_read, 1, tuple(notes),
        conversion.answered_at,
    )  # fmt: skip


def _probability(conversion: Conversion) -> float | None:
    """By the odds against the next candidate; None if the source is not known."""
    found = conversion.found
    if found.source is None:
        return None
    if found.verdict == EXACTLY or found.log_odds is None:
        return _LARGEST
    return min(1.0 / (1.0 + 10.0 ** -min(found.log_odds, 300.0)), _LARGEST)
