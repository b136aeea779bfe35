"""Where one model comes from, as it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One parent of a model, or the base; ``card``: confirmed, contradicted or not declared."""

    parent: str | None
    kind: str
    coefficient: float
    left: float
    card: str
    method: str | None
    direction: str
    because: str
    same: tuple[str, ...] = ()
    parent_id: int | None = None

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return {
            "parent": self.parent,
            "kind": self.kind,
            "coefficient": round(self.coefficient, 4),
            "left": round(self.left, 6),
            "card": self.card,
            "method": self.method,
            "direction": self.direction,
            "because": self.because,
            "same": list(self.same),
        }


@dataclass(frozen=True)
class Lineage:
    """Where one model comes from.

    ``rows``: its parents, or one row for the base. ``bytes_read``: of weights, for this answer. ``models_read``: how
    many models' weights that was. ``notes``: what a person should know besides.
    """

    model: str
    base: str
    model_id: int | None
    rows: tuple[Row, ...]
    bytes_read: int
    models_read: int
    notes: tuple[str, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """The command's JSON."""
        return [row.as_row() | {"bytes_read": self.bytes_read} for row in self.rows]
