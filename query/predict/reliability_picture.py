"""Draws the reliability diagram: how often the best answer is right, by its probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from query.figures import THEMES, label, styled_grid
from query.predict.scoring import BINS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.predict.scoring import Bin, PredictionScore

_SMALLEST, _LARGEST = 6.0, 55.0  # area of a point, in square points

_TITLES = {"vectors": "vectors alone", "head": "head alone", "together": "together"}


def reliability_figure(
    bins: Sequence[Bin],
    scores: Sequence[PredictionScore],
    theme: str = "light",
    base: str = "",
    models: int = 0,
    ax: Axes | None = None,
) -> Figure:
    """Three panels: vectors, head, together. A point is the models whose best answer is equally probable, to a tenth.

    A calibrated prediction has its points on the diagonal, within their 95 % intervals over authors. An interval needs
    at least five authors. The bars are the number of models, and the area of a point grows with it.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, panels = styled_grid(7.2, 3.55, 1, len(_TITLES), theme, ax)
    colours = THEMES[theme]
    ink = colours.ink
    diagonal: dict[str, Any] = {"color": colours.rest, "linestyle": (0, (4, 3))}
    by_evidence = {score.evidence: score for score in scores}
    for panel, (evidence, title), colour in zip(panels, _TITLES.items(), colours.palette, strict=False):
        for one in bins:
            if one.evidence != evidence:
                continue
            middle = (min(int(one.probability * BINS), BINS - 1) + 0.5) / BINS
            panel.bar(middle, one.share, 0.86 / BINS, color=colours.faint, zorder=1)
            if one.low is not None and one.high is not None:
                panel.plot([one.probability] * 2, [one.low, one.high], color=colour, linewidth=1.2, alpha=0.6, zorder=3)
            size = _SMALLEST + (_LARGEST - _SMALLEST) * one.share  # its area grows with the number of models
            panel.scatter([one.probability], [one.right], s=size, color=colour, zorder=4, clip_on=False, linewidths=0)
        panel.plot([0, 1], [0, 1], linewidth=1, zorder=2, **diagonal)
        panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
        panel.tick_params(labelleft=panel is panels[0])
        panel.set_title(title, fontsize=10, color=ink, pad=17)
        score = by_evidence[evidence]
        numbers = {"accuracy": score.accuracy, "Brier": score.brier, "ECE": score.calibration_error}
        text = "  ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in numbers.items())
        panel.text(0.5, 1.04, text, ha="center", va="bottom", fontsize=7.5, color=ink, transform=panel.transAxes)
    panels[0].set_ylabel("share that is right", fontsize=9)
    panels[1].set_xlabel("probability of the best answer", fontsize=9)
    what = "Are predictions right as often as their probability says?"
    who = f"{models:,} labelled models of {label(base)}, each predicted from models by other authors" if base else ""
    figure.suptitle(f"{what}\n{who}".strip(), x=0.01, horizontalalignment="left", fontsize=9, color=ink)
    handles: list[Any] = [
        Line2D([], [], color=ink, linestyle="", marker="o", markersize=4, label="models of similar probability"),
        Line2D([], [], color=ink, linewidth=1.2, alpha=0.6, label="95 % interval over authors"),
        Line2D([], [], label="perfectly calibrated", **diagonal),
        Patch(color=colours.faint, label="bar: share of all models"),
    ]
    style: dict[str, Any] = {"ncols": 4, "fontsize": 6.5, "frameon": False, "labelcolor": ink}
    figure.legend(handles=handles, loc="outside lower left", **style)
    return figure
