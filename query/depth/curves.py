"""What is told of one model layer by layer; not how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query.depth.profiled import LayerRows

if TYPE_CHECKING:
    import pandas

SHOWN = ("tolerance", "tolerance_own", "readable", "recovered", "verified", "reach", "cka", "drift", "image_error")


@dataclass(frozen=True)
class LayerCurves:
    """A model's layers; ``against_layers`` are those of what ``against`` names, ``untrained_layers`` may be empty.

    A row holds the measures with their standard errors, and ``delta``, ‖δW‖ over ‖W‖ up to this layer. None: not
    asked, or says nothing here.
    """

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

    def to_rows(self) -> list[dict[str, Any]]:
        """What a table shows: the measures that are there, without errors."""
        present = [name for name in SHOWN if any(row[name] is not None for row in self.layers)]
        return [{"layer": row["layer"], **{name: row[name] for name in (*present, "delta")}} for row in self.layers]

    def to_df(self) -> pandas.DataFrame:
        """A row for each layer with everything."""
        from query.extras import to_frame

        return to_frame(list(self.layers))
