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
    """Features in the requested order: layer by layer, neuron by neuron (None: all neurons of the patch)."""

    HAS_DETAILS = True
    ROWS = "rows"
    TABLE = "means"
    # Meanings of the fields of ``indexer.profiles.features.Feature``, and of the means in the table.
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
        """The layers in the requested order, each once."""
        return list(dict.fromkeys(feature.layer for feature in self.features))

    # The object has a list for each key, with an entry for each layer and neuron, and no pixels.

    @property
    def layer_numbers(self) -> Annotated[list[int], Doc("The layer of each neuron."), Key("layers")]:
        """The layer of each neuron, in the order of ``features``."""
        return [feature.layer for feature in self.features]

    @property
    def neurons(self) -> Annotated[list[int | str], Doc("The neurons; all: all of the patch together.")]:
        """The neurons in the order of ``features``."""
        return ["all" if feature.neuron is None else feature.neuron for feature in self.features]

    @property
    def numbers(self) -> Annotated[dict[str, list[Any]], Spread()]:
        """The lists of NUMBERS by name, in the order of ``features``."""
        return {name: [getattr(feature, name) for feature in self.features] for name in NUMBERS}

    @property
    def headline(self) -> str:
        """The number of neurons that respond more to the image found for them than to any image of the probe."""
        return (
            f"{_above_probe(self.features)} of {counted(len(self.features), 'neuron')} in "
            f"{counted(len(self.layers), 'layer')} of {self.model} respond more to the image found for them than to "
            "any image of the probe."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer and neuron; ``neuron``: None for all of them together."""
        return [{name: getattr(feature, name) for name in ("layer", "neuron", *NUMBERS)} for feature in self.features]

    @property
    def means(self) -> list[dict[str, Any]]:
        """A row for each layer."""
        rows = []
        for layer in self.layers:
            layer_features = [feature for feature in self.features if feature.layer == layer]
            upper = [_first_quarter(feature.change_by_row) for feature in layer_features]
            left_shares = [_first_quarter(feature.change_by_column) for feature in layer_features]
            rows.append(
                {"layer": layer, "neurons": len(layer_features), "above the best image": _above_probe(layer_features),
                 "change, upper quarter": sum(upper) / len(upper),
                 "change, left quarter": sum(left_shares) / len(left_shares),
                 "unchanged": sum(feature.unchanged for feature in layer_features) / len(layer_features),
                 "consistency": sum(feature.consistency for feature in layer_features) / len(layer_features)}
            )  # fmt: skip
        return rows

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A grid of images: rows are layers, columns are neurons.

        Below each image stand its activation and that of the best probe image. The bars at the right show where the
        images were changed, by row of patches. ``theme`` and ``ax``: as in ``Drawn.figure``.
        """
        by_layer = [
            [feature for feature in self.features if feature.layer == layer][:MOST_COLUMNS] for layer in self.layers
        ]
        count = max(len(row) for row in by_layer)
        counts, size = [count + 1] * len(by_layer), (CELL, CELL + 0.2)
        panels = Panels(counts, size, theme, ax, margin=(0.7, 0.75), least=4.2)
        figure, colours = panels.figure, panels.colours
        for row, layer, line in zip(panels.rows, self.layers, by_layer, strict=True):
            for panel, feature in zip(row, line, strict=False):
                show_pixels(panel, feature.image)
                reached = "" if feature.best_probe is None else f" ({feature.best_probe:.2g})"
                panel.set_xlabel(f"{feature.activation:.2g}{reached}", fontsize=6, color=colours.ink, labelpad=2)
                if row is panels.rows[0]:
                    panels.title(
                        panel, "all" if feature.neuron is None else str(feature.neuron), 7, loc="center", pad=3
                    )
            for panel in row[len(line) : count]:
                panel.set_axis_off()
            row[0].set_ylabel(f"layer {layer}", fontsize=8, color=colours.ink)
            row_bars(row[-1], np.mean([feature.change_by_row for feature in line], axis=0), colours)
        panels.title(panels.rows[0][-1], "change by row", 7, loc="center", pad=3)
        where = "" if self.patch is None else f" at patch {self.patch}"
        title = (
            f"What neurons of {model_label(self.model, 48)} respond to{where}\n"
            "below: the activation reached (that of the best of 16 images)"
        )
        add_title(figure, title, colours, 8.5)
        return figure


def _above_probe(features: Sequence[Feature]) -> int:
    return sum(feature.best_probe is not None and feature.activation > feature.best_probe for feature in features)


def _first_quarter(shares: tuple[float, ...]) -> float:
    return sum(shares[: max(1, len(shares) // 4)])


def _command(
    call: Invocation,
    model: str,
    out: Annotated[str, Option("The picture: .png, .svg or .pdf.", metavar="FILE")],
    **options: Any,
) -> None:
    file = call.picture(out)
    with call.opened_if_there() as atlas:  # a model runs without an atlas, too
        grid = features(None, model, **options) if atlas is None else atlas.features(model, **options)
        call.show(grid, drawn=file)


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
    numbers = _parse_neurons(neurons, patch)
    subject = read_now(version_of(atlas, model, base), device)
    neuron_images, notes = neuron_features(
        subject, numbers, layers, patch=patch, stem=stem, recipe=recipe, plain=plain, module=module, seed=seed,
        progress=lambda layer: say_more(f"layer {layer}"),
    )  # fmt: skip
    return FeatureGrid(subject.name, recipe, patch, neuron_images, notes, module)


def _parse_neurons(neurons: str | Sequence[int], patch: int | None) -> list[int | None]:
    """The numbers in a text like ``0-15`` or ``3,7``; None stands for all neurons of the patch together.

    Raises AtlasError if the text is not such a list, or is ``all`` without a patch.
    """
    if not isinstance(neurons, str):
        return list(neurons)
    if neurons == "all":
        if patch is None:
            raise BadArgument("All neurons together can only be drawn at one patch.", Text("Add ", Call(patch=0), "."))
        return [None]
    numbers: list[int | None] = []
    for part in neurons.split(","):
        first, _, last = part.strip().partition("-")
        if not (
            first.isascii() and first.isdigit() and len(first) < 7 and (not last or (last.isdigit() and len(last) < 7))
        ):
            raise BadArgument(
                f"`neurons` {neurons[:40]!r} is not a valid list of neurons.", "Write it like 0-15 or 3,7."
            )
        numbers += range(int(first), min(int(last or first), int(first) + _MOST_NEURONS) + 1)
    if not 0 < len(numbers) <= _MOST_NEURONS:
        raise BadArgument(f"`neurons` names {len(numbers)} neurons; up to {_MOST_NEURONS} are drawn.", "Name fewer.")
    return numbers
