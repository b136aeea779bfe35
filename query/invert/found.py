"""Words and images that layers gave back; not how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from query.results import Drawn
from query.wording import percent

if TYPE_CHECKING:
    from indexer.profiles.single import ImageLayer, LayerWords


@dataclass(frozen=True, repr=False)
class FoundWords(Drawn):
    """What each layer gives back of ``input``; ``words`` are its tokens."""

    OPTIONAL_COLUMNS = ("top", "closer_ratio")
    SHOW_HEADLINE = True

    model: str
    input: str
    recipe: str
    words: tuple[str, ...]
    layers: tuple[LayerWords, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "model": self.model,
            "input": self.input,
            "recipe": self.recipe,
            "tokens": list(self.words),
            "layers": [vars(one) | {"top": [list(words) for words in one.top]} for one in self.layers],
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """How much the first and the last layer give back."""
        first, last = self.layers[0], self.layers[-1]
        then = "" if first is last else f", and {percent(last.right)} from that of layer {last.layer}"
        return (
            f"From the output of layer {first.layer} of {self.model} {percent(first.right)} of the words of "
            f"“{self.input}” come back{then}."
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, with the nearest words of each place."""
        return [
            {"layer": one.layer, "output": one.output, "right": one.right, "closer_ratio": one.closer_ratio,
             "top": [" | ".join(words) for words in one.top]}
            for one in self.layers
        ]  # fmt: skip

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows; the nearest words where there is more than one of each, or with ``details``."""
        with_top = details or any(len(words) > 1 for one in self.layers for words in one.top)
        return [{name: row[name] for name in row if with_top or name != "top"} for row in self.to_rows()]


@dataclass(frozen=True, repr=False)
class FoundImages(Drawn):
    """What each layer gives back of ``target`` (images, channels, height, width), from 0 to 1."""

    SHOW_HEADLINE = True

    model: str
    recipe: str
    target: Any
    layers: tuple[ImageLayer, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object, without pixels."""
        layers = [{"layer": one.layer, "error": one.error, "rows": list(one.rows)} for one in self.layers]
        return {"model": self.model, "recipe": self.recipe, "layers": layers, "notes": list(self.notes)}

    @property
    def headline(self) -> str:
        """How far the first and the last layer are off."""
        first, last = self.layers[0], self.layers[-1]
        then = "" if first is last else f", and of {last.error:.3f} from that of layer {last.layer}"
        return (
            f"From the output of layer {first.layer} of {self.model} images come back with an error of "
            f"{first.error:.3f}{then} (0 is perfect)."
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer: the error, and the shares of the first and the last row of patches in it."""
        return [
            {"layer": one.layer, "error": one.error, "first row": one.rows[0], "last row": one.rows[-1]}
            for one in self.layers
        ]
