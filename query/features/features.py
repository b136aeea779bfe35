"""What neurons look for, layer by layer: images found by ascent on their activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import BadArgument, require
from query.features.found import FoundFeatures
from query.lookup import READERS, reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

MOST_NEURONS = 64


@dataclass(frozen=True, repr=False)
class FeatureGrid(FoundFeatures):
    """Features, drawn on request as a grid."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """Rows are layers, columns neurons."""
        from query.features.picture import features_figure

        return features_figure(self, theme, ax)


def features(
    atlas: AtlasReader,
    model: str | Path,
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
    """What single neurons of ``model`` respond to, as images; see :func:`indexer.profiles.single.features_now`.

    ``neurons``: numbers, "0-15", "3,7", or "all" with a ``patch``. ``stem``: an image stem in front of a language
    model's layers. ``plain``: without octaves, blur and jitter. Raises AtlasError if a layer, neuron or patch does not
    exist, or the model cannot be read.
    """
    model = str(model)
    require("Running a model", *READERS)
    from indexer.console.messages import say_more
    from indexer.profiles.single import features_now

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
            raise BadArgument("All neurons together are asked of one patch.", "Add `patch=0`.")
        return [None]
    found: list[int | None] = []
    for part in asked.split(","):
        first, _, last = part.strip().partition("-")
        if not (
            first.isascii() and first.isdigit() and len(first) < 7 and (not last or (last.isdigit() and len(last) < 7))
        ):
            raise BadArgument(f"`neurons` {asked[:40]!r} is no list of neurons.", "Write it like 0-15 or 3,7.")
        found += range(int(first), min(int(last or first), int(first) + MOST_NEURONS) + 1)
    if not 0 < len(found) <= MOST_NEURONS:
        raise BadArgument(f"`neurons` asks for {len(found)} neurons; up to {MOST_NEURONS} are drawn.", "Ask for fewer.")
    return found
