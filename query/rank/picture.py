"""Draws ranks by depth: a small panel for each family, all with the same scale, the best fit dashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from query.figures import THEMES, Theme, label, styled_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.rank.study import FamilyRanks, RankStudy

PANEL = (2.0, 1.5)  # inches
SMOOTH = 200  # points of a dashed curve
DASHES = (0, (4, 3))
WIDEST_LEGEND = 6.0  # inches: its four entries side by side
FEED_FORWARD = ("gate", "feedforward1", "feedforward2")
COLOURED = ("query", "key", "value", "output", *FEED_FORWARD)  # cross-attention and fused matrices share these colours


def rank_figure(study: RankStudy, theme: str = "light", ax: Axes | None = None) -> Figure:
    """Rows: attention, cross-attention and feed-forward of each stack. The others of a row are grey behind each."""
    colours, rows = THEMES[theme], _rows(list(study.families))
    columns = max(len(names) for names in rows)
    size = (max(PANEL[0] * columns, 4.0), PANEL[1] * len(rows) + 0.8)
    figure, axes = styled_grid(*size, len(rows), columns, theme, ax)
    highest = max(float(np.nan_to_num(_band(family)[1]).max()) for family in study.families.values())
    for names, panels in zip(rows, np.reshape(axes, (len(rows), columns)), strict=True):
        for name, panel in zip(names, panels, strict=False):
            for other in names:
                if other != name:
                    panel.plot(_column(study.families[other].ranks), color=colours.rest, linewidth=0.8, zorder=1)
            _draw(panel, study.families[name], _colour(name, colours), colours.ink)
            _head(panel, name, study.families[name], colours)
            panel.set_ylim(0, 1.06 * highest)
            panel.set_xticks(_ticks(len(study.families[name].ranks)))
        for panel in panels[len(names) :]:
            panel.set_axis_off()
        panels[0].set_ylabel("rank", fontsize=8)
    for panel in np.reshape(axes, (len(rows), columns))[-1][: len(rows[-1])]:
        panel.set_xlabel("layer x", fontsize=8)
    _legend(figure, study, colours)
    figure.suptitle(_title(study), x=0.01, horizontalalignment="left", fontsize=9, color=colours.ink)
    return figure


def _rows(names: Sequence[str]) -> list[list[str]]:
    """Families of one stack and kind, in the order of ``names``."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name in names:
        stack, _, family = name.rpartition(".")
        is_feed_forward = family.startswith(FEED_FORWARD)
        part = "cross" if family.startswith("cross_") else "feedforward" if is_feed_forward else "attention"
        rows.setdefault((stack, part), []).append(name)
    return list(rows.values())


def _ticks(depth: int) -> range:
    """Every layer, or every second, fourth … of a deep model."""
    return range(0, depth, next((step for step in (1, 2, 4, 5, 10) if depth <= 7 * step), 20))


def _colour(name: str, colours: Theme) -> str:
    family = name.rpartition(".")[2].removeprefix("cross_")
    return colours.palette[next(i for i, known in enumerate(COLOURED) if family.startswith(known))]


def _column(numbers: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if number is None else number for number in numbers])


def _band(family: FamilyRanks) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean ± spread, cut off at zero."""
    ranks, spread = _column(family.ranks), np.nan_to_num(_column(family.spread))
    return np.maximum(ranks - spread, 0), ranks + spread


def _draw(panel: Any, family: FamilyRanks, colour: str, ink: str) -> None:
    layers = np.arange(len(family.ranks))
    panel.fill_between(layers, *_band(family), color=colour, alpha=0.22, linewidth=0, zorder=2)
    panel.plot(layers, _column(family.ranks), color=colour, linewidth=1.4, marker="o", markersize=2.2, zorder=4)
    if family.fit is not None:
        x = np.linspace(0, layers[-1], SMOOTH)
        panel.plot(x, family.fit.at(x), color=ink, linewidth=0.8, linestyle=DASHES, zorder=5)


def _head(panel: Any, name: str, family: FamilyRanks, colours: Theme) -> None:
    panel.set_title(name, loc="left", fontsize=8, color=colours.ink, pad=11)
    if family.fit is not None:
        equation = family.fit.equation.removeprefix("rank ")
        panel.text(0, 1.03, equation, transform=panel.transAxes, fontsize=6, color=colours.ink)


def _legend(figure: Figure, study: RankStudy, colours: Theme) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ink = colours.ink
    is_mean = study.model is None
    what = "mean rank of this family" if is_mean else "rank of this family"
    handles: list[Any] = [
        Line2D([], [], color=ink, linewidth=1.4, marker="o", markersize=2.2, label=what),
        *([Patch(color=ink, alpha=0.22, linewidth=0, label="± standard deviation over models")] if is_mean else []),
        Line2D([], [], color=colours.ink, linewidth=0.8, linestyle=DASHES, label="best fit"),
        *(
            [Line2D([], [], color=colours.rest, linewidth=0.8, label="the row's other families")]
            if any(len(names) > 1 for names in _rows(list(study.families)))
            else []
        ),
    ]
    columns = 4 if figure.bbox.width / figure.dpi >= WIDEST_LEGEND else 2
    style: dict[str, Any] = {"ncols": columns, "fontsize": 7, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside lower left", **style)


def _title(study: RankStudy) -> str:
    what = {"delta": "δW", "weights": "W"}[study.of] + f" at {100 * study.threshold:g} % of the energy"
    base = f"fine-tunes of {label(study.base)}"
    who = f"{label(study.model, 48)}\none of the {base}" if study.model else f"{study.models} {base}"
    return f"Rank of {what}\n{who}"
