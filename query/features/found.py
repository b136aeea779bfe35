"""Features that were found; not how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query.results import Drawn
from query.wording import counted

if TYPE_CHECKING:
    from indexer.profiles.single import Feature


@dataclass(frozen=True, repr=False)
class FoundFeatures(Drawn):
    """Features in the order asked: layer by layer, neuron by neuron (None: all neurons of the patch)."""

    SHOW_HEADLINE = True

    model: str
    recipe: str
    patch: int | None
    features: tuple[Feature, ...]
    notes: tuple[str, ...]

    @property
    def layers(self) -> list[int]:
        """The layers in the order asked."""
        return list(dict.fromkeys(one.layer for one in self.features))

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object, without pixels: one entry for each layer and neuron."""
        return {
            "model": self.model,
            "recipe": self.recipe,
            "patch": self.patch,
            "layers": [one.layer for one in self.features],
            "neurons": ["all" if one.neuron is None else one.neuron for one in self.features],
            "activation": [one.activation for one in self.features],
            "best_probe": [one.best_probe for one in self.features],
            "change_by_row": [list(one.change_by_row) for one in self.features],
            "change_by_column": [list(one.change_by_column) for one in self.features],
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """How many neurons were looked at, and how many have an image that suits them better than any of the probe."""
        beaten = sum(one.best_probe is not None and one.activation > one.best_probe for one in self.features)
        return (
            f"Of {counted(len(self.features), 'neuron')} in {counted(len(self.layers), 'layer')} of {self.model} "
            f"{beaten} respond more to the image found for them than to any image of the probe."
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer and neuron; ``neuron``: None for all of them together."""
        kept = ("layer", "neuron", "activation", "best_probe", "change_by_row", "change_by_column")
        return [{name: getattr(one, name) for name in kept} for one in self.features]

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """A row for each layer: how many neurons beat the best probe image; ``details``: a row for each neuron."""
        if details:
            return self.to_rows()
        rows = []
        for layer in self.layers:
            found = [one for one in self.features if one.layer == layer]
            beaten = sum(one.best_probe is not None and one.activation > one.best_probe for one in found)
            upper = [_first_quarter(one.change_by_row) for one in found]
            left = [_first_quarter(one.change_by_column) for one in found]
            rows.append(
                {"layer": layer, "neurons": len(found), "above the best image": beaten,
                 "change, upper quarter": sum(upper) / len(upper),
                 "change, left quarter": sum(left) / len(left)}
            )  # fmt: skip
        return rows


def _first_quarter(shares: tuple[float, ...]) -> float:
    return sum(shares[: max(1, len(shares) // 4)])
