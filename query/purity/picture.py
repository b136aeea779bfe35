"""Draws purity as dots with intervals and chance: of representations, or of the datasets of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from query.figures import THEMES, Theme, label, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _FRAME = 7.2, 0.42, 1.05  # inches
_APART = 0.16  # of a row, between the two forms


class Scored(Protocol):
    """A purity and its chance level; it may also have an interval, ``ci_low`` to ``ci_high``."""

    @property
    def purity(self) -> float | None: ...  # noqa: D102
    @property
    def chance(self) -> float | None: ...  # noqa: D102


Row = tuple[str, Scored, Scored | None]  # a name, its purity, and its purity among other authors' models


def purity_figure(rows: Sequence[Row], theme: str = "light", ax: Axes | None = None) -> Figure:
    """A row for each name, in the given order: filled dots for all neighbours, hollow ones for other authors'."""
    figure, axes = new_figure(_WIDTH, _FRAME + _ROW * len(rows), theme, ax)
    colours = THEMES[theme]
    for row, (_, plain, other) in enumerate(rows):
        _draw(axes, row - _APART, plain, colours, is_filled=True)
        _draw(axes, row + _APART, other, colours, is_filled=False)
    axes.set_yticks(range(len(rows)), [label(name) for name, _, _ in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.set_xlabel("purity: share of nearest neighbours tuned on the same data", fontsize=9)
    axes.grid(axis="x", color=colours.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _legend(figure, colours)
    return figure


def _draw(axes: Any, y: float, score: Scored | None, colours: Theme, *, is_filled: bool) -> None:
    if score is None or score.purity is None:
        return
    colour = colours.palette[0]
    low, high = getattr(score, "ci_low", None), getattr(score, "ci_high", None)
    if low is not None and high is not None:
        axes.plot([low, high], [y, y], color=colour, linewidth=1.4, zorder=2)
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
               label="other authors' models only"),
        Line2D([], [], color=colours.rest, linestyle="", marker="|", markersize=9, markeredgewidth=1.6, label="chance"),
        Line2D([], [], color=colour, linewidth=1.4, label="95 % interval over authors"),
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4, fontsize=7.5, frameon=False, labelcolor=colours.ink
    )
