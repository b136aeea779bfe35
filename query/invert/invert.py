"""Words or images again from the output of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import BadArgument, require
from query.invert.found import FoundImages, FoundWords
from query.lookup import READERS, reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName


@dataclass(frozen=True, repr=False)
class WordsBack(FoundWords):
    """Words that layers gave back, drawn on request."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The words of each layer, right ones coloured."""
        from query.invert.picture import words_figure

        return words_figure(self, theme, ax)


@dataclass(frozen=True, repr=False)
class ImagesBack(FoundImages):
    """Images that layers gave back, drawn on request."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """Rows: the target, then layers."""
        from query.invert.picture import images_figure

        return images_figure(self, theme, ax)


def invert(
    atlas: AtlasReader,
    model: str | Path,
    text: str | None = None,
    *,
    images: Sequence[str | Path] = (),
    layers: Sequence[int] | None = None,
    recipe: str = "default",
    top: int = 1,
    keep: str | None = None,
    restrict: bool = False,
    stem: str | None = None,
    base: str | None = None,
    seed: int = 0,
    shift: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
    device: str = "cpu",
) -> WordsBack | ImagesBack:
    """Recover ``text``, or images, from the output of each layer of ``model``.

    ``images``: files, instead of a text. ``recipe``: default, blank or seed. ``top``: nearest words for each position.
    ``keep``: a slice of the output positions that may be used ("1:"). ``restrict``: search among the text's own words
    only. ``shift``: σ of the criterion. ``steps``, ``rate``: of the descent. See
    :func:`indexer.profiles.single.invert_text` and ``invert_images``. Raises AtlasError if options contradict each
    other, or the model cannot be read.
    """
    model = str(model)
    require("Running a model", *READERS)
    from indexer.console.messages import say_more
    from indexer.profiles.single import invert_images, invert_text

    if text is not None and (images or stem):
        raise BadArgument(
            "Give a text or images, not both.", "For example: `atlas.invert('MODEL', 'The sky is blue.')`"
        )
    reference = reference_of(atlas, model, base)

    def told(layer: int) -> None:
        say_more(f"layer {layer}")

    if text is None:
        if keep or restrict:
            raise BadArgument("`keep` and `restrict` are for words.", "Give a text.")
        if recipe == "blank":
            raise BadArgument("Images always start from a blank.", "Leave `recipe` out.")
        files = [Path(one) for one in images]
        made = invert_images(reference, files, stem=stem, layers=layers, recipe=recipe, steps=steps, rate=rate,
                             seed=seed, device=device, progress=told)  # fmt: skip
        return ImagesBack(made.model, recipe, made.target, made.layers, made.notes)
    if rate is not None and recipe != "seed":
        raise BadArgument("`rate` belongs to the seeds' recipe.", "Add `recipe='seed'`.")
    found = invert_text(reference, text, layers=layers, recipe=recipe, top=top, keep=_slice(keep), restrict=restrict,
                        seed=seed, shift=shift, steps=steps, rate=rate, device=device, progress=told)  # fmt: skip
    notes = found.notes
    if restrict:
        notes = (*notes, "the answer was sought among the text's own words: a sentence back says less than it seems")
    return WordsBack(found.model, found.input, recipe, found.words, found.layers, notes)


def _slice(text: str | None) -> slice:
    """A slice as Python writes it. Raises AtlasError on anything else."""
    if text is None:
        return slice(None)
    parts = text.split(":")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != 2:
        raise BadArgument(f"`keep` {text[:20]!r} is no range of positions.", "Write it like 1: or 0:4.")
    return slice(*numbers)
