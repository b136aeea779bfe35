"""All models of a study in small panels: the weights' change and the function's change, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from query.figures import THEMES, label, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.depth.findings import DepthFindings

PANEL = (1.35, 1.05)  # inches
COLUMNS = 6
MOST = 60
HIGH = 0.95


def study_figure(study: DepthFindings, theme: str = "light", ax: Axes | None = None) -> Figure:
    """Models by how far their function moved, all on the same scales; those that forget have a coloured name."""
    colours = THEMES[theme]
    models = sorted(study.profiles, key=lambda one: -(one.layers[-1]["drift"] or 0.0))[:MOST]
    columns = min(COLUMNS, len(models))
    rows = -(-len(models) // columns)
    figure, axes = styled_grid(PANEL[0] * columns + 0.6, PANEL[1] * rows + 1.0, rows, columns, theme, ax)
    grid = np.reshape(axes, (rows, columns))
    highest = max(row["drift"] or 0 for one in models for row in one.layers)
    # One model that changed far more than the rest must not press the others flat.
    most_delta = float(np.quantile([one.layers[-1]["delta"] or 0 for one in models], HIGH)) or 1.0
    forgetful = {one.model for one in study.forgetful}
    for place_in_grid, (one, panel) in enumerate(zip(models, grid.flat, strict=False)):
        layers = [row["layer"] for row in one.layers]
        for name, scale, place in (("delta", most_delta, 0), ("drift", highest or 1.0, 1)):
            values = [np.nan if row[name] is None else row[name] / scale for row in one.layers]
            panel.plot(layers, values, color=colours.palette[place], linewidth=1.3, marker="o", markersize=2)
        panel.set_ylim(-0.05, 1.08)
        panel.set_xticks(layers if len(layers) <= 6 else layers[1::2])
        if place_in_grid + columns < len(models):
            panel.set_xticklabels([])
        panel.set_yticks([0, 1], ["", ""])
        panel.tick_params(labelsize=6, length=2)
        name = one.model.rpartition("/")[2] if "/" in one.model else one.model
        panel.set_title(label(name, 24), fontsize=5.5, loc="left", pad=2,
                        color=colours.palette[4] if one.model in forgetful else colours.ink)  # fmt: skip
    for panel in grid.flat[len(models) :]:
        panel.set_axis_off()
    _legend(figure, colours, most_delta, highest, bool(forgetful))
    more = f" (the {MOST} that moved most)" if len(study.profiles) > MOST else ""
    title = (
        f"Where weights and function changed, layer by layer\n{study.models} fine-tunes of {label(study.base)}{more}"
    )
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=9, color=colours.ink)
    return figure


def _legend(figure: Figure, colours: Any, most_delta: float, highest: float, has_forgetful: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=1.3, label=f"{what} ({more} {most:.2g})")
        for colour, what, more, most in (
            (colours.palette[0], "weights: ‖δW‖/‖W‖ up to here", "top and more:", most_delta),
            (colours.palette[1], "function: drift from the base", "top:", highest),
        )
    ]  # fmt: skip
    if has_forgetful:
        handles.append(Line2D([], [], linestyle="", marker="s", color=colours.palette[4], label="forgets its input"))
    style: dict[str, Any] = {"ncols": 3, "fontsize": 6.5, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside lower left", **style)
