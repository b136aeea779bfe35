"""The study's own figure: purity by representation, one panel for each base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from indexer.errors import require
from query.figures import THEMES, draw, styled_grid, write_output
from scripts.reproduce.bases import REPRESENTATIONS
from scripts.reproduce.results import BaseResults, Results

THEME = "light"
OWN, ACROSS = THEMES[THEME].palette[0], THEMES[THEME].palette[4]
APART = 0.16  # of a row: how far the two marks stand from its middle


def draw_purity(results: Results, out: Path) -> None:
    """Purity with its interval against chance, plain and across authors; ``out`` is .png, .svg or .pdf."""
    require("A figure", "matplotlib")
    from matplotlib.lines import Line2D

    ink, bases = THEMES[THEME].ink, results.bases
    figure, grid = styled_grid(2.4 * len(bases) + 1.4, 3.4, 1, len(bases), THEME)
    for panel, (axes, one) in enumerate(zip([grid] if len(bases) == 1 else grid.flat, bases, strict=True)):
        _draw_base(axes, one, is_first=panel == 0)
    marks = [
        Line2D([], [], color=OWN, marker="o", markersize=5, label="all models"),
        Line2D([], [], color=ACROSS, marker="o", markersize=5, label="other authors’ models"),
        Line2D([], [], color=ink, marker="|", markersize=9, linestyle="none", label="chance"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=ink)
    figure.suptitle("Purity: the share of nearest neighbours that share a dataset", color=ink, fontsize=10)
    write_output(out, draw(figure, out.suffix))


def _draw_base(axes: Any, one: BaseResults, *, is_first: bool) -> None:
    ink = THEMES[THEME].ink
    for row, name in enumerate(REPRESENTATIONS):
        answer = one.answer(f"purity-{name}") or {}
        for score, colour, place in (
            (answer, OWN, row - APART),
            (answer.get("cross_author", {}), ACROSS, row + APART),
        ):
            if score.get("purity") is None:
                continue
            if score["ci_low"] is not None:
                axes.plot([score["ci_low"], score["ci_high"]], [place, place], color=colour, linewidth=2, alpha=0.5)
            axes.plot(score["purity"], place, "o", color=colour, markersize=5)
            axes.plot([score["chance"]] * 2, [place - APART, place + APART], color=ink, linewidth=1.2)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])  # neighbours' ends do not touch
    axes.set_ylim(len(REPRESENTATIONS) - 0.5, -0.5)
    axes.set_yticks(range(len(REPRESENTATIONS)), REPRESENTATIONS if is_first else [""] * len(REPRESENTATIONS))
    axes.set_title(one.base, fontsize=8, color=ink, parse_math=False)
    axes.grid(axis="x", color=THEMES[THEME].faint, linewidth=0.6)
    axes.set_axisbelow(True)
    if not is_first:
        axes.tick_params(axis="y", length=0)
