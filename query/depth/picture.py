"""A profile as a picture: a panel for each measure, the base grey, an untrained twin dotted, the model coloured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from query.figures import THEMES, Theme, model_label, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.depth.curves import LayerCurves
    from query.depth.profiled import LayerRows

PANEL = (2.1, 1.75)  # inches
PANELS = {
    "tolerance": "tolerance: white noise borne",
    "tolerance_own": "tolerance_own: noise of its kind",
    "readable": "readable: share read off",
    "recovered": "recovered: found by descent",
    "recovered_seed": "recovered, the seeds' recipe",
    "verified": "verified (a certificate)",
    "reach": "reach: positions looked at",
    "image_error": "error of recovered images",
    "cka": "cka: likeness to the base",
    "drift": "drift: distance from the base",
    "delta": "‖δW‖/‖W‖ up to here",
}
SHARES = ("readable", "recovered", "recovered_seed", "verified", "cka")


def depth_figure(depth: LayerCurves, theme: str = "light", ax: Axes | None = None) -> Figure:
    """One panel for each measure that the model has."""
    colours = THEMES[theme]
    names = [name for name in PANELS if any(row.get(name) is not None for row in depth.layers)]
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = styled_grid(PANEL[0] * columns, PANEL[1] * rows + 0.95, rows, columns, theme, ax)
    panels = list(np.reshape(axes, -1))
    for name, panel in zip(names, panels, strict=False):
        _draw(panel, name, depth, colours)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    for panel in panels[len(names) - columns : len(names)]:
        panel.set_xlabel("layer", fontsize=8)
    _legend(figure, depth, colours)
    probe = f"{depth.sequences} × {depth.tokens} {depth.probe} tokens" if depth.tokens else f"{depth.sequences} images"
    title = f"What the layers of {model_label(depth.model, 60)} keep\nasked with {probe}; shaded: ± a standard error"
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=9, color=colours.ink)
    return figure


def _draw(panel: Any, name: str, depth: LayerCurves, colours: Theme) -> None:
    panel.set_title(PANELS[name], loc="left", fontsize=7.5, color=colours.ink)
    if depth.against_layers:
        _curve(panel, depth.against_layers, name, colours.rest, "-", 2)
    if depth.untrained_layers and depth.against != "untrained":
        _curve(panel, depth.untrained_layers, name, colours.ink, ":", 3)
    _curve(panel, depth.layers, name, colours.palette[0], "-", 4)
    low, high = panel.get_ylim()
    if name in SHARES:
        panel.set_ylim(-0.04, 1.04)
    else:
        panel.set_ylim(min(0, low), high + 0.05 * (high - low))
    layers = [row["layer"] for row in depth.layers]
    step = next((one for one in (1, 2, 3, 4, 6, 8) if len(layers) <= 7 * one), 12)
    panel.set_xticks(layers[step - 1 :: step] if step > 1 else layers)


def _curve(panel: Any, rows: LayerRows, name: str, colour: str, style: str, order: int) -> None:
    layers = np.array([row["layer"] for row in rows])
    values = np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)
    errors = np.array([row.get(f"{name}_error") or 0.0 for row in rows], dtype=float)
    if np.isnan(values).all():
        return
    low, high = values - errors, values + errors
    if name in SHARES:
        low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
    panel.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0, zorder=order)
    marker = "o" if style == "-" else None
    panel.plot(
        layers, values, color=colour, linestyle=style, linewidth=1.4, marker=marker, markersize=2.5, zorder=order
    )


def _legend(figure: Figure, depth: LayerCurves, colours: Theme) -> None:
    from matplotlib.lines import Line2D

    name = {"base": "its base", "untrained": "an untrained twin"}.get(depth.against, model_label(depth.against))
    if depth.model == depth.base and depth.against == "base":
        name = "an untrained twin"
    handles = [Line2D([], [], color=colours.palette[0], linewidth=1.4, marker="o", markersize=2.5,
                      label=model_label(depth.model))]  # fmt: skip
    if depth.against_layers:
        handles.append(Line2D([], [], color=colours.rest, linewidth=1.4, marker="o", markersize=2.5, label=name))
    if depth.untrained_layers and depth.against != "untrained" and name != "an untrained twin":
        handles.append(Line2D([], [], color=colours.ink, linewidth=1.4, linestyle=":", label="an untrained twin"))
    style: dict[str, Any] = {"ncols": 3, "fontsize": 7, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside lower left", **style)
