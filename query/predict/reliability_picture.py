"""Draws the reliability diagram: how often the best answer is right, by its probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from query.figures import THEMES, Theme, label, styled_grid
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
    figure, panels = styled_grid(7.2, 3.55, 1, len(_TITLES), theme, ax)
    colours = THEMES[theme]
    by_evidence = {score.evidence: score for score in scores}
    for panel, (evidence, title), colour in zip(panels, _TITLES.items(), colours.palette, strict=False):
        _draw(panel, [one for one in bins if one.evidence == evidence], colour, colours)
        _caption(panel, title, by_evidence[evidence], colours)
        panel.tick_params(labelleft=panel is panels[0])
    panels[0].set_ylabel("share that is right", fontsize=9)
    panels[1].set_xlabel("probability of the best answer", fontsize=9)
    what = "Are predictions right as often as their probability says?"
    who = f"{models:,} labelled models of {label(base)}, each predicted from models by other authors" if base else ""
    figure.suptitle(f"{what}\n{who}".strip(), x=0.01, horizontalalignment="left", fontsize=9, color=colours.ink)
    _legend(figure, colours)
    return figure


def _legend(figure: Figure, colours: Theme) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ink = colours.ink
    handles: list[Any] = [
        Line2D([], [], color=ink, linestyle="", marker="o", markersize=4, label="models of similar probability"),
        Line2D([], [], color=ink, linewidth=1.2, alpha=0.6, label="95 % interval over authors"),
        Line2D([], [], color=colours.rest, linestyle=(0, (4, 3)), label="perfectly calibrated"),
        Patch(color=colours.faint, label="bar: share of all models"),
    ]
    style: dict[str, Any] = {"ncols": 4, "fontsize": 6.5, "frameon": False, "labelcolor": ink}
    figure.legend(handles=handles, loc="outside lower left", **style)


def _draw(panel: Any, bins: list[Bin], colour: str, colours: Theme) -> None:
    width = 1 / BINS
    for one in bins:
        place = min(int(one.probability * BINS), BINS - 1)
        panel.bar((place + 0.5) * width, one.share, 0.86 * width, color=colours.faint, zorder=1)
        if one.low is not None and one.high is not None:
            panel.plot([one.probability] * 2, [one.low, one.high], color=colour, linewidth=1.2, alpha=0.6, zorder=3)
        size = _SMALLEST + (_LARGEST - _SMALLEST) * one.share  # its area grows with the number of models
        panel.scatter([one.probability], [one.right], s=size, color=colour, zorder=4, clip_on=False, linewidths=0)
    panel.plot([0, 1], [0, 1], color=colours.rest, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    ticks, labels = [0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"]
    panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    panel.set_xticks(ticks, labels)
    panel.set_yticks(ticks, labels)


def _caption(panel: Any, title: str, score: PredictionScore, colours: Theme) -> None:
    panel.set_title(title, fontsize=10, color=colours.ink, pad=17)
    numbers = {"accuracy": score.accuracy, "Brier": score.brier, "ECE": score.calibration_error}
    text = "  ".join(f"{name} {value:.3f}".replace(" 0.", " .") for name, value in numbers.items())
    panel.text(0.5, 1.04, text, ha="center", va="bottom", fontsize=7.5, color=colours.ink, transform=panel.transAxes)
