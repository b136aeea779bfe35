"""Purity by representation as dots with their intervals, beside chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from query.figures import THEMES, Theme, label, new_figure
from query.purity.purity import PurityResult, PurityScore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _ROW, _FRAME = 7.2, 0.42, 1.05  # inches
_APART = 0.16  # of a row, between the two forms


def purity_figure(results: Sequence[PurityResult], theme: str = "light") -> Figure:
    """A row for each representation, the purest first: filled dots for all neighbours, hollow for other authors'."""
    results = sorted(results, key=lambda one: -(one.purity or 0.0))
    figure, axes = new_figure(_WIDTH, _FRAME + _ROW * len(results), theme)
    colours = THEMES[theme]
    for row, result in enumerate(results):
        _draw(axes, row - _APART, result, colours, is_filled=True)
        _draw(axes, row + _APART, result.cross_author, colours, is_filled=False)
    axes.set_yticks(range(len(results)), [label(result.representation) for result in results], fontsize=9)
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("purity: share of nearest neighbours tuned on the same data", fontsize=9)
    axes.grid(axis="x", color=colours.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _legend(figure, colours)
    return figure


def _draw(axes: Any, y: float, score: PurityScore, colours: Theme, *, is_filled: bool) -> None:
    if score.purity is None:
        return
    colour = colours.palette[0]
    if score.ci_low is not None and score.ci_high is not None:
        axes.plot([score.ci_low, score.ci_high], [y, y], color=colour, linewidth=1.4, zorder=2)
    axes.plot([score.chance], [y], marker="|", color=colours.rest, markersize=9, markeredgewidth=1.6, zorder=3)
    fill = colour if is_filled else colours.background
    axes.plot(
        [score.purity], [y], marker="o", color=colour, markerfacecolor=fill, markersize=5.5, markeredgewidth=1.4,
        zorder=4, clip_on=False,
    )  # fmt: skip


def _legend(figure: Figure, colours: Theme) -> None:
    from matplotlib.lines import Line2D

    colour = colours.palette[0]
    handles = [
        Line2D([], [], color=colour, linestyle="", marker="o", markersize=5.5, label="all neighbours"),
        Line2D([], [], color=colour, linestyle="", marker="o", markersize=5.5, markerfacecolor=colours.background,
               label="other authors' models alone"),
        Line2D([], [], color=colours.rest, linestyle="", marker="|", markersize=9, markeredgewidth=1.6, label="chance"),
        Line2D([], [], color=colour, linewidth=1.4, label="95 % interval over authors"),
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4, fontsize=7.5, frameon=False, labelcolor=colours.ink
    )
