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
    match = conversion.match
    card = NOT_DECLARED
    if match.source in match.claimed:
        card = CONFIRMED
    elif match.verdict == DIFFERS:
        card = CONTRADICTED
    residual = 0.0 if match.verdict == EXACTLY or match.residual is None else min(match.residual**2, 1.0)
    edge = Edge(
        conversion.model, match.source, CONVERSION, 1.0, 1.0 if match.source is None else residual, match.headline,
        card=card, probability=_probability(conversion), same=match.also, parent_id=conversion.source_id,
        is_proven=match.verdict == EXACTLY,
    )  # fmt: skip
    notes: list[str] = list(match.notes)
    if match.differing:
        notes.append(f"tensors that differ: {', '.join(match.differing)}")
    if conversion.answered_at is not None:
        when = f"This answer was stored in the atlas on {conversion.answered_at:%Y-%m-%d}"
        notes.append(Text(f"{when}; to read the weights again: ", Call(fresh=True), "."))
    return Lineage(
        conversion.model, match.base, conversion.model_id, (edge,), match.bytes_read, 1, tuple(notes),
        conversion.answered_at,
    )  # fmt: skip


def _probability(conversion: Conversion) -> float | None:
    """By the odds against the next candidate; None if the source is not known."""
    match = conversion.match
    if match.source is None:
        return None
    if match.verdict == EXACTLY or match.log_odds is None:
        return _LARGEST
    return min(1.0 / (1.0 + 10.0 ** -min(match.log_odds, 300.0)), _LARGEST)
