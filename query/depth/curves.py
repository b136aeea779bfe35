"""What is told of one model layer by layer; not how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from query.depth.profiled import LayerRows
from query.results import Drawn

SHOWN = ("tolerance", "tolerance_own", "readable", "recovered", "verified", "reach", "cka", "drift", "image_error")


@dataclass(frozen=True, repr=False)
class LayerCurves(Drawn):
    """A model's layers; ``against_layers`` are those of what ``against`` names, ``untrained_layers`` may be empty.

    A row holds the measures with their standard errors, and ``delta``, ‖δW‖ over ‖W‖ up to this layer. None: not
    asked, or says nothing here.
    """

    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("drift", "cka", "tolerance_own", "verified", "reach")

    model: str
    base: str
    against: str
    probe: str
    sequences: int | None
    tokens: int | None
    seed: int
    recipe: str
    layers: LayerRows
    against_layers: LayerRows
    untrained_layers: LayerRows
    sentence: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        names = ("model", "base", "against", "probe", "sequences", "tokens", "seed", "recipe")
        return {name: getattr(self, name) for name in names} | {
            "layers": list(self.layers),
            "against_layers": list(self.against_layers),
            "untrained_layers": list(self.untrained_layers),
            "sentence": self.sentence,
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """Where it keeps less than what it is compared with."""
        return f"{self.model}: {self.sentence}"

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer with everything."""
        return [dict(row) for row in self.layers]

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """A row for each layer: the measures that are there, without errors; ``details``: everything."""
        if details:
            return self.to_rows()
        present = [name for name in SHOWN if any(row[name] is not None for row in self.layers)]
        return [{"layer": row["layer"], **{name: row[name] for name in (*present, "delta")}} for row in self.layers]
