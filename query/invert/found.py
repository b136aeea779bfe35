"""Words and images that layers gave back; not how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from indexer.profiles.single import ImageLayer, LayerWords


@dataclass(frozen=True)
class FoundWords:
    """What each layer gives back of ``input``; ``words`` are its tokens."""

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

    def to_rows(self, with_top: bool = False) -> list[dict[str, Any]]:
        """A row for each layer."""
        rows: list[dict[str, Any]] = []
        for one in self.layers:
            row: dict[str, Any] = {"layer": one.layer, "output": one.output, "right": one.right,
                                   "closer_ratio": one.closer_ratio}  # fmt: skip
            rows.append(row | ({"top": [" | ".join(words) for words in one.top]} if with_top else {}))
        return rows

    def to_df(self) -> pandas.DataFrame:
        """The rows as a data frame."""
        from query.extras import to_frame

        return to_frame(self.to_rows(with_top=True))


@dataclass(frozen=True)
class FoundImages:
    """What each layer gives back of ``target`` (images, channels, height, width), from 0 to 1."""

    model: str
    recipe: str
    target: Any
    layers: tuple[ImageLayer, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object, without pixels."""
        layers = [{"layer": one.layer, "error": one.error, "rows": list(one.rows)} for one in self.layers]
        return {"model": self.model, "recipe": self.recipe, "layers": layers, "notes": list(self.notes)}

    def to_rows(self, with_top: bool = False) -> list[dict[str, Any]]:
        """A row for each layer: the error, and the shares of the first and the last row of patches in it."""
        return [
            {"layer": one.layer, "error": one.error, "first row": one.rows[0], "last row": one.rows[-1]}
            for one in self.layers
        ]

    def to_df(self) -> pandas.DataFrame:
        """The rows as a data frame."""
        from query.extras import to_frame

        return to_frame(self.to_rows())
