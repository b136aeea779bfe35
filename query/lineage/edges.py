"""One edge of a family tree: a step from a parent to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Kinds of edges.
TUNED = "tuned from the base"
CONTINUED = "continued"
CONTINUED_OR_RUN = "continued, or a run with the same data and seed"
MERGE = "merge"
LORA = "LoRA merged"
COPY = "copy"
RECAST = "recast"
QUANTISED = "quantised copy"
UNRELATED = "unrelated"

# The methods of a merge that drops entries of its parents.
SPARSE_METHODS = "ties or dare"

# Whether a model's card agrees with an edge. UNSURE: the edge is not probable enough to contradict a card.
CONFIRMED = "confirmed"
CONTRADICTED = "contradicted"
NOT_DECLARED = "not declared"
UNSURE = "unsure"


@dataclass(frozen=True)
class Edge:
    """One step of a family tree: ``child`` was made from ``parent``.

    Attributes:
        child: name of the model.
        parent: name of a model of the atlas, or of the base; None where it is not known.
        kind: one of the kinds above.
        coefficient: the parent's weight in the child; 1 but for merges.
        residual: share of the child's ‖δ‖² that its edges together do not explain; ``left`` in JSON.
        evidence: the reason in a few words; ``because`` in JSON.
        method: of a merge.
        direction: "known", or "unknown" where the child may as well be the parent.
        card: what the child's card says, one of the constants above.
        probability: that the edge is right; None before it is calculated, and in answers stored by version 0.1.
        same: other models that the weights cannot distinguish from the parent.
        parent_id: of the parent, where it is a model of the atlas.
        is_proven: whether equal weights prove the edge, rather than sizes and angles.
        signals: of a continued model, the measurements behind the probability.
    """

    child: str
    parent: str | None
    kind: str
    coefficient: float
    residual: float
    evidence: str = ""
    method: str | None = None
    direction: str = "known"
    card: str = NOT_DECLARED
    probability: float | None = None
    same: tuple[str, ...] = ()
    parent_id: int | None = None
    is_proven: bool = True
    signals: Mapping[str, float] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The step in words, with its parent."""
        if self.parent is None:
            return self.kind
        if self.kind == TUNED:
            return f"{self.kind}, {self.parent}"
        how, comma, otherwise = self.kind.partition(",")  # "continued, or a run with the same data and seed"
        return f"{how} from {self.parent}{comma}{otherwise}"

    def to_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return {
            "parent": self.parent,
            "kind": self.kind,
            "coefficient": round(self.coefficient, 4),
            "left": round(self.residual, 6),
            "card": self.card,
            "probability": None if self.probability is None else round(self.probability, 4),
            "method": self.method,
            "direction": self.direction,
            "because": self.evidence,
            "same": list(self.same),
        }
