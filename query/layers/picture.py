"""Where a model changed, as a picture: a field for each delta, layers upwards, families side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from query.figures import THEMES, Theme, label, model_label, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.layers.parts import Change

FIELD = (0.62, 0.24)  # inches
TITLES = {
    "relative_norm": "‖δW‖ / ‖W‖",
    "norm": "‖δW‖",
    "share": "share of the squared norm of the change",
    "rank_50": "rank that holds 50 % of the energy",
    "rank_90": "rank that holds 90 % of the energy",
    "energy": "energy that the kept singular values hold",
}


def layers_figure(
    model: str,
    base: str,
    deltas: Sequence[Change],
    of: str = "relative_norm",
    theme: str = "light",
    ax: Axes | None = None,
) -> Figure:
    """A panel for each stack, one scale for all; fields without a value, and untouched matrices, stay empty."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = THEMES[theme]
    stacks = list(dict.fromkeys(one.stack for one in deltas))
    widest = max(len({one.family for one in deltas if one.stack == stack}) for stack in stacks)
    deepest = max(one.layer for one in deltas) + 1
    size = (max(FIELD[0] * widest, 3.0) * len(stacks) + 1.2, max(FIELD[1] * deepest, 0.8) + 1.3)
    figure, axes = styled_grid(*size, 1, len(stacks), theme, ax)
    values = [_value(one, of) for one in deltas]
    scale = Normalize(0, float(np.nanmax(values)) if np.isfinite(values).any() else 1.0)
    shades = LinearSegmentedColormap.from_list("scale", colours.scale)
    panels = list(np.reshape(axes, -1))
    for stack, panel in zip(stacks, panels, strict=True):
        _draw(panel, [one for one in deltas if one.stack == stack], of, (shades, scale), colours)
    bar = figure.colorbar(ScalarMappable(scale, shades), ax=panels, shrink=0.9, pad=0.02)
    bar.ax.tick_params(colors=colours.ink, labelsize=7)
    bar.outline.set_edgecolor(colours.faint)
    what = f"{TITLES[of]}, by layer and family; empty: untouched" + (" or not known" if of.startswith("rank") else "")
    title = f"Where {model_label(model, 48)} changed\n{what}\na fine-tune of {label(base)}"
    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=8, color=colours.ink)
    return figure


def _value(one: Any, of: str) -> float:
    """NaN where there is nothing to colour."""
    value = getattr(one, of)
    return float("nan") if value is None or one.norm == 0 else float(value)


def _draw(panel: Any, deltas: list[Any], of: str, coloured: tuple[Any, Any], colours: Theme) -> None:
    families = list(dict.fromkeys(one.family for one in deltas))
    field = np.full((max(one.layer for one in deltas) + 1, len(families)), np.nan)
    for one in deltas:
        field[one.layer, families.index(one.family)] = _value(one, of)
    panel.imshow(field, origin="lower", aspect="auto", cmap=coloured[0], norm=coloured[1], interpolation="nearest")
    panel.set_xticks(range(len(families)), families, rotation=30, ha="right", fontsize=7)
    step = -(-len(field) // 12)
    panel.set_yticks(range(0, len(field), step))
    panel.tick_params(length=2)
    panel.set_ylabel("layer", fontsize=8)
    if deltas[0].stack:
        panel.set_title(deltas[0].stack, loc="left", fontsize=8, color=colours.ink)
