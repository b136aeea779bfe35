"""Inversion: the words or images of an input, recovered from the output of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from indexer.console.option import Argument, Option
from indexer.errors import BadArgument, Call, Text, require
from query.contract.columns import IMAGE_RECIPE, ROW_FOR_EACH_LAYER, ModelId, Notes
from query.contract.figures import THEMES, Panels, add_title, label, model_label, new_figure, row_bars, show_pixels
from query.contract.options import Base, Device, Layers, Model, Seed, Stem
from query.contract.registry import Invocation, question
from query.contract.results import After, Doc, Drawn, Hidden, Key, ThemeName
from query.models.lookup import version_of
from query.models.resolved import READERS
from query.shared.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from indexer.profiles.single import ImageLayer, LayerWords
    from query.models.reader import AtlasReader

CELL = (0.78, 0.27)  # inches
_LONGEST_WORD = 10


@dataclass(frozen=True, repr=False)
class RecoveredWords(Drawn):
    """The words recovered from each layer. ``input``: the text; ``tokens``: its tokens."""

    HAS_DETAILS = True
    ROWS = "rows"
    TABLE = "short_rows"
    # Meanings of the fields of ``indexer.profiles.single.LayerWords``.
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "layer": "Number of the layer, from 1.",
        "output": "The words recovered from the layer's output.",
        "right": "Share of the words that are recovered correctly, from 0 to 1.",
        "closer_ratio": (
            "How many times nearer the output of the words found lies to the layer's output than that of a "
            "shifted input; above 1 the search succeeded."
        ),
        "top": "The nearest words at each position.",
        "condition": (
            "Largest over smallest singular value of the layer's Jacobian with respect to the middle token or "
            "patch of the input; empty if the smallest is 0. 1 for a rotation; descent is slow where it is "
            "large."
        ),
        "directions": (
            "Effective number of directions of that token or patch which reach the layer: (Σ σ²)²/Σ σ⁴ of the "
            "singular values; all of them for a rotation."
        ),
    }
    OPTIONAL_COLUMNS = ("top", "closer_ratio")
    SHOW_HEADLINE = True

    model: ModelId
    input: Annotated[str, Doc("The text.")]
    recipe: Annotated[str, Doc("How the words were found.")]
    tokens: Annotated[tuple[str, ...], Doc("The tokens of the text.")]
    layers: Annotated[tuple[LayerWords, ...], ROW_FOR_EACH_LAYER]
    notes: Notes

    @property
    def headline(self) -> str:
        """The shares of words recovered from the first and the last layer."""
        first, last = self.layers[0], self.layers[-1]
        last_clause = "" if first is last else f", and {percent(last.right)} from that of layer {last.layer}"
        return (
            f"From the output of layer {first.layer} of {self.model} {percent(first.right)} of the words of "
            f"“{self.input}” are recovered{last_clause}."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer, with the nearest words of each position."""
        return [asdict(layer) | {"top": [" | ".join(words) for words in layer.top]} for layer in self.layers]

    @property
    def short_rows(self) -> list[dict[str, Any]]:
        """The rows; ``top`` only if there is more than one word per position."""
        with_top = any(len(words) > 1 for layer in self.layers for words in layer.top)
        return [{name: row[name] for name in row if with_top or name != "top"} for row in self.rows]

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A table: the input in the first row, then a row for each layer, with right tokens in coloured cells."""
        from matplotlib.patches import Rectangle

        colours = THEMES[theme]
        columns, rows = len(self.tokens), len(self.layers) + 1
        figure, axes = new_figure(max(4.5, CELL[0] * columns + 1.5), CELL[1] * rows + 1.0, theme, ax)
        axes.set_xlim(0, columns)
        axes.set_ylim(rows, 0)
        axes.set_xticks([])
        names = ["input", *(f"layer {layer.layer}" for layer in self.layers)]
        axes.set_yticks(np.arange(rows) + 0.5, names, fontsize=7)
        axes.tick_params(length=0)
        twin = axes.secondary_yaxis("right")
        twin.set_yticks(np.arange(rows) + 0.5, ["", *(f"{layer.right:.0%}" for layer in self.layers)], fontsize=7)
        twin.tick_params(length=0, colors=colours.ink)
        for spine in (*axes.spines.values(), *twin.spines.values()):
            spine.set_visible(False)
        words = [list(self.tokens), *([top[0] for top in layer.top] for layer in self.layers)]
        for row, line in enumerate(words):
            for column, word in enumerate(line):
                is_right = row > 0 and word == self.tokens[column]
                colour = colours.palette[2] if is_right else colours.faint if row else colours.background
                cell = Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, facecolor=colour,
                                 alpha=0.45 if is_right else 0.5, linewidth=0)  # fmt: skip
                axes.add_patch(cell)
                axes.text(column + 0.5, row + 0.5, label(word.strip() or "␣", _LONGEST_WORD), fontsize=6.5,
                          color=colours.ink, horizontalalignment="center", verticalalignment="center")  # fmt: skip
        axes.set_title(f"Words recovered from layers of {model_label(self.model, 48)} (recipe: {self.recipe})\n"
                       "green: the right token; at the right: their share",
                       loc="left", fontsize=8, color=colours.ink)  # fmt: skip
        return figure


@dataclass(frozen=True, repr=False)
class RecoveredImages(Drawn):
    """The images recovered from each layer. ``target``: the true ones (images, channels, height, width), 0 to 1."""

    # Meanings of the fields of ``indexer.profiles.single.ImageLayer``.
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "error": "Distance of the recovered image from the true one; 0 is perfect.",
        "first row": "Share of the error in the top row of patches, from 0 to 1.",
        "last row": "Share of the error in the bottom row of patches, from 0 to 1.",
        "high_frequency": (
            "Share of the squared error of the images at spatial frequencies above half of the highest; 0.80 "
            "for white noise."
        ),
    }

    ROWS = "rows"
    SHOW_HEADLINE = True

    model: ModelId
    recipe: Annotated[str, IMAGE_RECIPE]
    target: Annotated[Any, Hidden()]
    layers: Annotated[tuple[ImageLayer, ...], Hidden()]
    notes: Notes

    @property
    def numbers(self) -> Annotated[list[dict[str, Any]], ROW_FOR_EACH_LAYER, Key("layers"), After("recipe")]:
        """The layers without pixels."""
        names = ("layer", "error", "rows", "high_frequency", "condition", "directions")
        return [{name: getattr(layer, name) for name in names} for layer in self.layers]

    @property
    def headline(self) -> str:
        """The errors of the first and the last layer."""
        first, last = self.layers[0], self.layers[-1]
        last_clause = "" if first is last else f", and of {last.error:.3f} from that of layer {last.layer}"
        return (
            f"From the output of layer {first.layer} of {self.model} images are recovered with an error of "
            f"{first.error:.3f}{last_clause} (0 is perfect)."
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer: the error, and the shares of the first and the last row of patches in it."""
        return [
            {"layer": layer.layer, "error": layer.error, "first row": layer.rows[0], "last row": layer.rows[-1],
             "high_frequency": layer.high_frequency, "condition": layer.condition, "directions": layer.directions}
            for layer in self.layers
        ]  # fmt: skip

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The target in the first row, then a row for each layer; at the right the error, by row of patches."""
        count = len(self.target)
        panels = Panels([count, *[count + 1] * len(self.layers)], (1.05, 1.05), theme, ax, margin=(0.65, 0.7))
        colours = panels.colours
        pictures = [self.target, *(layer.images for layer in self.layers)]
        names = ["input", *(f"layer {layer.layer}" for layer in self.layers)]
        for row, images, name in zip(panels.rows, pictures, names, strict=True):
            for panel, image in zip(row, images, strict=False):
                show_pixels(panel, image)
            row[0].set_ylabel(name, fontsize=8, color=colours.ink)
        for row, layer in zip(panels.rows[1:], self.layers, strict=True):
            row_bars(row[-1], layer.rows, colours)
            panels.title(row[-1], f"error {layer.error:.2f}", 7)
        panels.rows[-1][-1].set_xlabel("its share by row of patches", fontsize=6.5, color=colours.ink)
        add_title(panels.figure, f"Images recovered from layers of {model_label(self.model, 48)}", colours)
        return panels.figure


def _command(call: Invocation, model: str, **options: Any) -> None:
    with call.opened_if_there() as atlas:  # a model runs without an atlas, too
        call.show(invert(None, model, **options) if atlas is None else atlas.invert(model, **options))


@question(example='invert gpt2 "The sun is out." --layers 1,6,12', command=_command)
def invert(
    atlas: AtlasReader | None,
    model: Model,
    text: Annotated[str | None, Argument()] = None,
    *,
    images: Annotated[
        Sequence[str | Path],
        Option(
            "An image instead of a text. May be given several times.", metavar="FILE", flag="--image", is_repeated=True
        ),
    ] = (),
    layers: Layers = None,
    recipe: Annotated[
        str,
        Option(
            "blank: start from a blank input. original: the method of the original papers (printed as seed).",
            choices=("default", "blank", "original"),
        ),
    ] = "default",
    top: Annotated[int, Option("Number of nearest words for each position.", least=1, most=50)] = 1,
    keep: Annotated[str | None, Option("Use only these output positions.", metavar="1:")] = None,
    restrict: Annotated[bool, Option("Search only among the words of the text.")] = False,
    shift: Annotated[
        float | None, Option("σ of the criterion. Default: .35 of the embeddings' own.", least=0, most=1e6)
    ] = None,
    steps: Annotated[int | None, Option("Number of steps of gradient descent.", least=1, most=1_000_000)] = None,
    rate: Annotated[float | None, Option("Initial learning rate of the original method.", least=0, most=1e6)] = None,
    stem: Stem = None,
    base: Base = None,
    seed: Seed = 0,
    device: Device = "cpu",
) -> RecoveredWords | RecoveredImages:
    """Recover ``text``, or an image, from the output of each layer of ``model``.

    Without ``text``, recover images (by default those of scikit-learn). ``model`` must then be a ViT, or have an image
    stem (``stem``).

    Returns:
        See :func:`indexer.profiles.single.invert_words` and ``invert_images``.

    Raises:
        AtlasError: options contradict each other, or the model cannot be read.
    """
    model = str(model)
    require("Running a model", *READERS)
    from indexer.console.messages import say_more
    from indexer.profiles.single import check_recipe, invert_images, invert_words, parse_layers, read_now

    if text is not None and (images or stem):
        raise BadArgument(
            "Give a text or images, not both.", Text("For example: ", Call("invert", "MODEL", "The sky is blue."))
        )
    check_recipe(recipe, "blank")
    if isinstance(layers, str):
        layers = parse_layers(layers)
    version = version_of(atlas, model, base)

    def on_progress(layer: int) -> None:
        say_more(f"layer {layer}")

    if text is None:
        if keep or restrict:
            raise BadArgument("`keep` and `restrict` apply to words only.", "Give a text.")
        if recipe == "blank":
            raise BadArgument("Images always start from a blank.", "Leave `recipe` out.")
        subject = read_now(version, device)
        target, image_layers, notes = invert_images(
            subject, [Path(path) for path in images], layers, stem=stem, recipe=recipe, steps=steps, rate=rate,
            seed=seed, progress=on_progress,
        )  # fmt: skip
        return RecoveredImages(subject.name, recipe, target, image_layers, notes)
    if rate is not None and recipe != "original":
        raise BadArgument("`rate` is a setting of the original method.", Text("Add ", Call(recipe="original"), "."))
    positions = _parse_slice(keep)
    subject = read_now(version, device)
    tokens, layer_words = invert_words(
        subject, text, layers, recipe=recipe, top=top, keep=positions, restrict=restrict, seed=seed, shift=shift,
        steps=steps, rate=rate, progress=on_progress,
    )  # fmt: skip
    notes = subject.notes
    if restrict:
        notes = (*notes, "only words of the text could be chosen, so a right answer says less than it seems to")
    return RecoveredWords(subject.name, text, recipe, tokens, layer_words, notes)


def _parse_slice(text: str | None) -> slice:
    """A slice as Python writes it. Raises AtlasError on anything else."""
    if text is None:
        return slice(None)
    try:
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) != 2:
        raise BadArgument(f"`keep` {text[:20]!r} is not a range of positions.", "Write it like 1: or 0:4.")
    return slice(*numbers)
