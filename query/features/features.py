"""What neurons look for, layer by layer: images found by ascent on their activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from indexer.profiles.single import Feature
    from query.reader import Atlas

MOST_NEURONS = 64


@dataclass(frozen=True)
class FeatureGrid:
    """Features in the order asked: layer by layer, neuron by neuron (None: all neurons of the patch)."""

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
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer: how many neurons beat the best probe image, and where the change lies."""
        rows = []
        for layer in self.layers:
            found = [one for one in self.features if one.layer == layer]
            beaten = sum(one.best_probe is not None and one.activation > one.best_probe for one in found)
            upper = [sum(one.change_by_row[: max(1, len(one.change_by_row) // 4)]) for one in found]
            rows.append(
                {"layer": layer, "neurons": len(found), "above the best image": beaten,
                 "change in the upper quarter": sum(upper) / len(upper)}
            )  # fmt: skip
        return rows

    def to_df(self) -> pandas.DataFrame:
        """A row for each layer and neuron."""
        from query.extras import to_frame

        kept = ("layer", "neuron", "activation", "best_probe", "change_by_row")
        return to_frame([{name: getattr(one, name) for name in kept} for one in self.features])

    def figure(self, theme: str = "light") -> Figure:
        """Rows are layers, columns neurons."""
        from query.features.picture import features_figure

        return features_figure(self, theme)

    def write(self, path: str | Path, theme: str = "light") -> None:
        """Write the figure as .png, .svg or .pdf."""
        from query.figures import checked_output, draw, write_output

        file = checked_output(path)
        write_output(file, draw(self.figure(theme), file.suffix.lower()))


def features(
    atlas: Atlas,
    model: str,
    *,
    layers: Sequence[int] | None = None,
    neurons: str | Sequence[int] = "0-7",
    patch: int | None = None,
    stem: str | None = None,
    recipe: str = "default",
    plain: bool = False,
    base: str | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> FeatureGrid:
    """See :func:`indexer.profiles.single.features_now`. ``neurons``: numbers, "0-15", "3,7", or "all" with a patch.

    Raises AtlasError where a layer, neuron or patch does not exist, or the model cannot be read.
    """
    from indexer.console.messages import say_more
    from indexer.profiles.single import features_now
    from query.depth.depth import reference_of

    chosen = _neurons(neurons, patch)
    found = features_now(
        reference_of(atlas, model, base), layers=layers, neurons=chosen, patch=patch, stem=stem, recipe=recipe,
        plain=plain, seed=seed, device=device, progress=lambda layer: say_more(f"layer {layer}"),
    )  # fmt: skip
    return FeatureGrid(found.model, recipe, patch, found.features, found.notes)


def _neurons(asked: str | Sequence[int], patch: int | None) -> list[int | None]:
    """Raises AtlasError where the text is no list of numbers, or all are asked of no patch."""
    if not isinstance(asked, str):
        return list(asked)
    if asked == "all":
        if patch is None:
            raise AtlasError("All neurons together are asked of one patch.", "Add --patch N.")
        return [None]
    found: list[int | None] = []
    for part in asked.split(","):
        first, _, last = part.strip().partition("-")
        if not (
            first.isascii() and first.isdigit() and len(first) < 7 and (not last or (last.isdigit() and len(last) < 7))
        ):
            raise AtlasError(f"--neurons {asked[:40]!r} is no list of neurons.", "Write it like 0-15 or 3,7.")
        found += range(int(first), min(int(last or first), int(first) + MOST_NEURONS) + 1)
    if not 0 < len(found) <= MOST_NEURONS:
        raise AtlasError(f"--neurons asks for {len(found)} neurons; up to {MOST_NEURONS} are drawn.", "Ask for fewer.")
    return found
