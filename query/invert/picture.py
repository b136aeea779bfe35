"""What layers give back, as pictures: words with the right ones coloured, images in rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from query.figures import THEMES, change_bars, label, model_label, new_figure, show_pixels, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.invert.found import FoundImages, FoundWords

CELL = (0.78, 0.27)  # inches
LONGEST_WORD = 10


def words_figure(found: FoundWords, theme: str = "light", ax: Axes | None = None) -> Figure:
    """A table: the input in the first row, then a row for each layer; right tokens on a coloured ground."""
    colours = THEMES[theme]
    columns = len(found.words)
    rows = len(found.layers) + 1
    figure, axes = new_figure(max(4.5, CELL[0] * columns + 1.5), CELL[1] * rows + 1.0, theme, ax)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks([])
    names = ["input", *(f"layer {one.layer}" for one in found.layers)]
    axes.set_yticks(np.arange(rows) + 0.5, names, fontsize=7)
    axes.tick_params(length=0)
    twin = axes.secondary_yaxis("right")
    twin.set_yticks(np.arange(rows) + 0.5, ["", *(f"{one.right:.0%}" for one in found.layers)], fontsize=7)
    twin.tick_params(length=0, colors=colours.ink)
    for spine in (*axes.spines.values(), *twin.spines.values()):
        spine.set_visible(False)
    words = [list(found.words), *([top[0] for top in one.top] for one in found.layers)]
    for row, line in enumerate(words):
        for column, word in enumerate(line):
            is_right = row > 0 and word == found.words[column]
            colour = colours.palette[2] if is_right else colours.faint if row else colours.background
            axes.add_patch(_cell(column, row, colour, 0.45 if is_right else 0.5))
            axes.text(column + 0.5, row + 0.5, label(word.strip() or "␣", LONGEST_WORD), fontsize=6.5,
                      color=colours.ink, horizontalalignment="center", verticalalignment="center")  # fmt: skip
    axes.set_title(f"What layers of {model_label(found.model, 48)} give back (recipe: {found.recipe})\n"
                   "green: the right token; at the right: their share",
                   loc="left", fontsize=8, color=colours.ink)  # fmt: skip
    return figure


def _cell(column: int, row: int, colour: str, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, facecolor=colour, alpha=alpha, linewidth=0)


def images_figure(found: FoundImages, theme: str = "light", ax: Axes | None = None) -> Figure:
    """Columns are images; the error and where it lies, by row of patches, stand at the right."""
    colours = THEMES[theme]
    count = len(found.target)
    rows = len(found.layers) + 1
    figure, axes = styled_grid(1.05 * count + 1.7, 1.05 * rows + 0.7, rows, count + 1, theme, ax)
    grid = np.reshape(axes, (rows, count + 1))
    pictures = [found.target, *(one.images for one in found.layers)]
    names = ["input", *(f"layer {one.layer}" for one in found.layers)]
    for row, (images, name) in enumerate(zip(pictures, names, strict=True)):
        for column, panel in enumerate(grid[row][:count]):
            show_pixels(panel, images[column])
        grid[row][0].set_ylabel(name, fontsize=8, color=colours.ink)
        last = grid[row][count]
        if row == 0:
            last.set_axis_off()
            continue
        one = found.layers[row - 1]
        change_bars(last, one.rows, colours)
        last.set_title(f"error {one.error:.2f}", fontsize=7, color=colours.ink, loc="left")
    grid[-1][count].set_xlabel("its share by row of patches", fontsize=6.5, color=colours.ink)
    figure.suptitle(f"Images as layers of {model_label(found.model, 48)} give them back", x=0.01,
                    horizontalalignment="left", fontsize=9, color=colours.ink)  # fmt: skip
    return figure
