"""Features as a grid: rows are layers, columns neurons, and at the right where the image was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from query.figures import THEMES, change_bars, model_label, show_pixels, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.features.found import FoundFeatures

CELL = 0.98  # inches
MOST_COLUMNS = 16


def features_figure(found: FoundFeatures, theme: str = "light", ax: Axes | None = None) -> Figure:
    """Below each image the activation it reaches over that of the best probe image; more than one is more."""
    colours = THEMES[theme]
    layers = found.layers
    by_layer = [[one for one in found.features if one.layer == layer][:MOST_COLUMNS] for layer in layers]
    count = max(len(row) for row in by_layer)
    width = max(CELL * (count + 1) + 0.7, 4.2)
    figure, axes = styled_grid(width, (CELL + 0.2) * len(layers) + 0.75, len(layers), count + 1, theme, ax)
    grid = np.reshape(axes, (len(layers), count + 1))
    for row, (layer, line) in enumerate(zip(layers, by_layer, strict=True)):
        for panel, one in zip(grid[row], line, strict=False):
            show_pixels(panel, one.image)
            reached = "" if one.best_probe is None else f" ({one.best_probe:.2g})"
            panel.set_xlabel(f"{one.activation:.2g}{reached}", fontsize=6, color=colours.ink, labelpad=2)
            if row == 0:
                panel.set_title("all" if one.neuron is None else str(one.neuron), fontsize=7, color=colours.ink, pad=3)
        for panel in grid[row][len(line) : count]:
            panel.set_axis_off()
        grid[row][0].set_ylabel(f"layer {layer}", fontsize=8, color=colours.ink)
        change_bars(grid[row][count], np.mean([one.change_by_row for one in line], axis=0), colours)
    grid[0][count].set_title("change by row", fontsize=7, color=colours.ink, pad=3)
    where = "" if found.patch is None else f" at patch {found.patch}"
    figure.suptitle(
        f"What neurons of {model_label(found.model, 48)} look for{where}\n"
        "below: the activation reached (that of the best of 16 images)",
        x=0.01, horizontalalignment="left", fontsize=8.5, color=colours.ink,
    )  # fmt: skip
    return figure
