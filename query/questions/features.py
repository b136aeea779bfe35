"""Feature visualisation: images that neurons respond to, found by ascent on their activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from indexer.console.option import Option
from indexer.errors import BadArgument, Call, Text, require
from query.contract.columns import IMAGE_RECIPE, ModelId, Notes
from query.contract.figures import Panels, add_title, model_label, row_bars, show_pixels
from query.contract.options import Base, Device, Layers, Model, Seed, Stem
from query.contract.registry import Invocation, question
from query.contract.results import After, Doc, Drawn, Hidden, Key, Spread, ThemeName
from query.models.lookup import version_of
from query.models.resolved import READERS
from query.shared.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from indexer.profiles.single import Feature
    from query.models.reader import AtlasReader

_MOST_NEURONS = 64
CELL = 0.98  # inches
MOST_COLUMNS = 16
NUMBERS = ("activation", "best_probe", "change_by_row", "change_by_column", "unchanged", "consistency")  # of a feature


@dataclass(frozen=True, repr=False)
class FeatureGrid(Drawn):
    """Features in the order asked: layer by layer, neuron by neuron (None: all neurons of the patch)."""

    HAS_DETAILS = True
    ROWS = "rows"
    TABLE = "means"
    # Of ``indexer.profiles.features.Feature``, and of the means in the table.
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "layer": "Number of the layer, from 1.",
        "neurons": "Number of neurons examined.",
        "neuron": "Number of the neuron, from 0; empty for all neurons of the patch together.",
        "activation": "The neuron's activation at the image found; it has no unit.",
        "best_probe": "The neuron's highest activation among the images of the probe.",
        "change_by_row": "Share of the squared change by row of patches, from the top.",
        "change_by_column": "Share of the squared change by column of patches, from the left.",
        "unchanged": (
            "Share of the patches that the ascent changed by less than a tenth of the root mean square change; "
            "what blur alone changes does not count."
        ),
        "consistency": (
            "Mean cosine of the changes of two patches: 0 if they are unrelated, 1 if every patch shows the same."
        ),
        "above the best image": "Neurons that respond more to the image found than to any image of the probe.",
        "change, upper quarter": (
            "Share of the squared change of the image in its upper quarter; 0.25 is evenly spread."
        ),
        "change, left quarter": "Share of the squared change of the image in its left quarter; 0.25 is evenly spread.",
    }
    SHOW_HEADLINE = True

    model: ModelId
    recipe: Annotated[str, IMAGE_RECIPE]
    patch: Annotated[int | None, Doc("The patch whose neurons were examined; empty: the class token.")]
    features: Annotated[tuple[Feature, ...], Hidden()]
    notes: Annotated[Notes, After("numbers")]
    module: Annotated[
        str,
        Doc(
            "Where the neurons are: block (its output), attention (the output of its heads) or mlp (the hidden "
            "neurons after the activation function)."
        ),
    ] = "block"

    @property
    def layers(self) -> list[int]:
        """The layers in the order asked."""
        return list(dict.fromkeys(one.layer for one in self.features))

    # The object has a list for each key, with an entry for each layer and neuron, and no pixels.

    @property
    def layer_numbers(self) -> Annotated[list[int], Doc("The layer of each neuron."), Key("layers")]:
        """In Python, ``layers`` has each once."""
        return [one.layer for one in self.features]

    @property
    def neurons(self) -> Annotated[list[int | str], Doc("The neurons; all: all of the patch together.")]:
        """In the order of ``features``."""
        return ["all" if one.neuron is None else one.neuron for one in self.features]

    @property
    def numbers(self) -> Annotated[dict[str, list[Any]], Spread()]:
        """By name."""
        return {name: [getattr(one, name) for one in self.features] for name in NUMBERS}

    @property
    def headline(self) -> str:
        """How many neurons respond more to the image found for them than to any image of the probe."""
        return (
            f"Of {counted(len(self.features), 'neuron')} in {counted(len(self.layers), 'layer')} of {self.model} "
            f"{_above_probe(self.features)} respond more to the image found for them than to any image of the probe."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer and neuron; ``neuron``: None for all of them together."""
        return [{name: getattr(one, name) for name in ("layer", "neuron", *NUMBERS)} for one in self.features]

    @property
    def means(self) -> list[dict[str, Any]]:
        """A row for each layer."""
        rows = []
        for layer in self.layers:
            found = [one for one in self.features if one.layer == layer]
            upper = [_first_quarter(one.change_by_row) for one in found]
            left = [_first_quarter(one.change_by_column) for one in found]
            rows.append(
                {"layer": layer, "neurons": len(found), "above the best image": _above_probe(found),
                 "change, upper quarter": sum(upper) / len(upper),
                 "change, left quarter": sum(left) / len(left),
                 "unchanged": sum(one.unchanged for one in found) / len(found),
                 "consistency": sum(one.consistency for one in found) / len(found)}
            )  # fmt: skip
        return rows

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """Rows are layers, columns neurons; below each image the activation reached and that of the best probe image.

        The bars at the right show where the image was changed, by row of patches.
        """
        by_layer = [[one for one in self.features if one.layer == layer][:MOST_COLUMNS] for layer in self.layers]
        count = max(len(row) for row in by_layer)
        counts, size = [count + 1] * len(by_layer), (CELL, CELL + 0.2)
        panels = Panels(counts, size, theme, ax, margin=(0.7, 0.75), least=4.2)
        figure, colours = panels.figure, panels.colours
        for row, layer, line in zip(panels.rows, self.layers, by_layer, strict=True):
            for panel, one in zip(row, line, strict=False):
                show_pixels(panel, one.image)
                reached = "" if one.best_probe is None else f" ({one.best_probe:.2g})"
                panel.set_xlabel(f"{one.activation:.2g}{reached}", fontsize=6, color=colours.ink, labelpad=2)
                if row is panels.rows[0]:
                    panels.title(panel, "all" if one.neuron is None else str(one.neuron), 7, loc="center", pad=3)
            for panel in row[len(line) : count]:
                panel.set_axis_off()
            row[0].set_ylabel(f"layer {layer}", fontsize=8, color=colours.ink)
            row_bars(row[-1], np.mean([one.change_by_row for one in line], axis=0), colours)
        panels.title(panels.rows[0][-1], "change by row", 7, loc="center", pad=3)
        where = "" if self.patch is None else f" at patch {self.patch}"
        title = (
            f"What neurons of {model_label(self.model, 48)} respond to{where}\n"
            "below: the activation reached (that of the best of 16 images)"
        )
        add_title(figure, title, colours, 8.5)
        return figure


def _above_probe(features: Sequence[Feature]) -> int:
    return sum(one.best_probe is not None and one.activation > one.best_probe for one in features)


def _first_quarter(shares: tuple[float, ...]) -> float:
    return sum(shares[: max(1, len(shares) // 4)])


def _command(
    call: Invocation,
    model: str,
    out: Annotated[str, Option("The picture: .png, .svg or .pdf.", metavar="FILE")],
    **options: Any,
) -> None:
    file = call.picture(out)
    with call.opened_if_there() as atlas:  # running a model needs none
        found = features(None, model, **options) if atlas is None else atlas.features(model, **options)
        call.show(found, drawn=file)


@question(example="features google/vit-base-patch16-224 --out features.png", command=_command)
def features(
    atlas: AtlasReader | None,
    model: Model,
    *,
    layers: Layers = None,
    neurons: Annotated[
        str | Sequence[int],
        Option("Neurons to draw. all (with --patch): draw all neurons together.", metavar="0-15"),
    ] = "0-7",
    patch: Annotated[
        int | None, Option("Only at this patch, counted from 0; without blur and jitter.", least=0)
    ] = None,
    plain: Annotated[bool, Option("Search without octaves, blur and jitter.")] = False,
    module: Annotated[
        str,
        Option(
            "Where the neurons are: the block's output, its attention heads, or its MLP.",
            choices=("block", "attention", "mlp"),
        ),
    ] = "block",
    recipe: Annotated[
        str, Option("original: the method of the original papers (printed as seed).", choices=("default", "original"))
    ] = "default",
    stem: Stem = None,
    base: Base = None,
    seed: Seed = 0,
    device: Device = "cpu",
) -> FeatureGrid:
    """Draw what single neurons of ``model`` respond to: images found by gradient ascent on their activation.

    Returns:
        See :func:`indexer.profiles.single.neuron_features`.

    Raises:
        AtlasError: a layer, neuron or patch does not exist, or the model cannot be read.
    """
    model = str(model)
    require("Running a model", *READERS)
    from indexer.console.messages import say_more
    from indexer.profiles.single import check_recipe, neuron_features, parse_layers, read_now

    check_recipe(recipe)
    if isinstance(layers, str):
        layers = parse_layers(layers)
    chosen = _parse_neurons(neurons, patch)
    subject = read_now(version_of(atlas, model, base), device)
    found, notes = neuron_features(
        subject, chosen, layers, patch=patch, stem=stem, recipe=recipe, plain=plain, module=module, seed=seed,
        progress=lambda layer: say_more(f"layer {layer}"),
    )  # fmt: skip
    return FeatureGrid(subject.name, recipe, patch, found, notes, module)


def _parse_neurons(asked: str | Sequence[int], patch: int | None) -> list[int | None]:
    """Raises AtlasError if the text is not a list of numbers, or asks for all neurons without a patch."""
    if not isinstance(asked, str):
        return list(asked)
    if asked == "all":
        if patch is None:
            raise BadArgument("All neurons together can only be drawn at one patch.", Text("Add ", Call(patch=0), "."))
        return [None]
    found: list[int | None] = []
    for part in asked.split(","):
        first, _, last = part.strip().partition("-")
        if not (
            first.isascii() and first.isdigit() and len(first) < 7 and (not last or (last.isdigit() and len(last) < 7))
        ):
            raise BadArgument(f"`neurons` {asked[:40]!r} is not a valid list of neurons.", "Write it like 0-15 or 3,7.")
        found += range(int(first), min(int(last or first), int(first) + _MOST_NEURONS) + 1)
    if not 0 < len(found) <= _MOST_NEURONS:
        raise BadArgument(f"`neurons` names {len(found)} neurons; up to {_MOST_NEURONS} are drawn.", "Name fewer.")
    return found
