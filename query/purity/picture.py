"""Draws purity as dots with intervals and chance: of representations, or of the datasets of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from query.figures import THEMES, label, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _FRAME = 7.2, 0.42, 1.05  # inches
_APART = 0.16  # of a row, between the two forms


# A name, its purity, and its purity among other authors' models: a PurityScore or the score of one dataset.
Row = tuple[str, Any, Any]


def purity_figure(rows: Sequence[Row], theme: str = "light", ax: Axes | None = None) -> Figure:
    """A row for each name, in the given order: filled dots for all neighbours, hollow ones for other authors'."""
    figure, axes = new_figure(_WIDTH, _FRAME + _ROW * len(rows), theme, ax)
    from matplotlib.lines import Line2D

    colours = THEMES[theme]
    colour = colours.palette[0]
    dot: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 5.5}
    tick: dict[str, Any] = {"color": colours.rest, "marker": "|", "markersize": 9, "markeredgewidth": 1.6}
    for row, (_, *scores) in enumerate(rows):
        for score, apart, fill in zip(scores, (-_APART, _APART), (colour, colours.background), strict=True):
            if score is None or score.purity is None:
                continue
            y = row + apart
            low, high = getattr(score, "ci_low", None), getattr(score, "ci_high", None)
            if low is not None and high is not None:
                axes.plot([low, high], [y, y], color=colour, linewidth=1.4, zorder=2)
            axes.plot([score.chance], [y], zorder=3, **tick)
            axes.plot([score.purity], [y], markerfacecolor=fill, markeredgewidth=1.4, zorder=4, clip_on=False, **dot)
    axes.set_yticks(range(len(rows)), [label(name) for name, _, _ in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("purity: share of nearest neighbours tuned on the same data", fontsize=9)
    axes.grid(axis="x", color=colours.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], linestyle="", label="all neighbours", **dot),
        Line2D([], [], linestyle="", markerfacecolor=colours.background, label="other authors' models only", **dot),
        Line2D([], [], linestyle="", label="chance", **tick),
        Line2D([], [], color=colour, linewidth=1.4, label="95 % interval over authors"),
    ]
    style: dict[str, Any] = {"ncols": 4, "fontsize": 7.5, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside upper left", **style)
    return figure
