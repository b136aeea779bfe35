"""Draws a family tree: the base on the left, one column for each generation, lines coloured by kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.figures import THEMES, draw, label, new_figure, write_output
from query.lineage.edges import CONTINUED, CONTINUED_OR_RUN, COPY, LORA, MERGE, QUANTISED, RECAST, TUNED, Edge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, ROW, MARGIN = 2.5, 0.19, 0.9  # inches
MAX_HEIGHT = 180.0
KINDS = (TUNED, CONTINUED, MERGE, LORA, COPY, RECAST, QUANTISED, CONTINUED_OR_RUN)
DASHED = (0, (3, 2))


def around(edges: Sequence[Edge], model: str) -> list[Edge]:
    """The edges that lead from the base to ``model``, and from there to everything made from it."""

    def closure(steps: list[tuple[str | None, str | None]]) -> set[str | None]:
        reached: set[str | None] = {model}
        while further := {to for start, to in steps if start in reached and to is not None} - reached:
            reached |= further
        return reached

    up = closure([(edge.child, edge.parent) for edge in edges])
    down = closure([(edge.parent, edge.child) for edge in edges])
    return [edge for edge in edges if edge.child in up or edge.parent in down]


def positions(edges: Sequence[Edge], base: str) -> dict[str, tuple[int, float]]:
    """The (generation, row from the top) of the base and of every model: children next to their first parent.

    Edges may contradict each other, as an atlas may come from anyone: an edge that would close a circle is skipped.
    """
    parents: dict[str, list[str]] = {}
    for edge in edges:
        parents.setdefault(edge.child, []).append(edge.parent or base)
        if edge.parent not in (None, base):
            parents.setdefault(edge.parent, [])
    columns: dict[str, int] = {base: 0}

    def column(model: str, seen: frozenset[str]) -> int:
        if model not in columns:
            before = [column(one, seen | {model}) for one in parents.get(model, []) if one not in seen | {model}]
            columns[model] = 1 + max(before, default=0)
        return columns[model]

    children: dict[str, list[str]] = {}
    for model, above in parents.items():
        column(model, frozenset())
        first = next((one for one in above if columns.get(one, 0) < columns[model]), base)
        children.setdefault(first, []).append(model)
    found: dict[str, tuple[int, float]] = {}
    row = 0.0
    waiting: list[tuple[str, bool]] = [(base, False)]
    while waiting:
        model, is_done = waiting.pop()
        below = children.get(model, [])
        if is_done:
            found[model] = columns[model], sum(found[one][1] for one in below) / len(below)
        elif below:
            waiting.append((model, True))
            waiting.extend((one, False) for one in reversed(below))
        else:
            found[model] = columns[model], row
            row += 1
    return found


def tree_figure(
    edges: Sequence[Edge], base: str, theme: str = "light", marked: str | None = None, ax: Axes | None = None
) -> Figure:
    """The tree. A merge has lines from all its parents; dashed lines have no known direction."""
    from matplotlib.lines import Line2D

    found = positions(edges, base)
    colours = THEMES[theme]
    columns = 1 + max(column for column, _ in found.values())
    rows = 1 + max(row for _, row in found.values())
    figure, axes = new_figure(COLUMN * columns + MARGIN, min(ROW * rows + MARGIN, MAX_HEIGHT), theme, ax)
    axes.set_axis_off()
    for edge in edges:
        (from_column, from_row), (column, row) = found[edge.parent or base], found[edge.child]
        axes.plot(
            [from_column, column - 0.35, column - 0.03],
            [-from_row, -row, -row],
            color=_colour(edge.kind, colours.palette),
            linewidth=0.9,
            linestyle="-" if edge.direction == "known" else DASHED,
            solid_joinstyle="round",
            zorder=1,
        )
    for model, (column, row) in found.items():
        is_marked = model in (base, marked)
        axes.plot([column], [-row], ".", color=colours.ink, markersize=6 if is_marked else 3, zorder=3)
        axes.annotate(
            label(model, 40), (column, -row), xytext=(4, 0), textcoords="offset points", fontsize=6,
            verticalalignment="center", color=colours.ink, fontweight="bold" if is_marked else "normal", zorder=4,
            bbox={"facecolor": colours.background, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip
    axes.set_xlim(-0.1, columns - 1 + 0.95)
    axes.set_ylim(-rows, 1)
    present = [kind for kind in KINDS if any(edge.kind == kind for edge in edges)]
    handles = [Line2D([], [], color=_colour(kind, colours.palette), linewidth=1.2, label=kind) for kind in present]
    if any(edge.direction != "known" for edge in edges):
        handles.append(Line2D([], [], color=colours.ink, linestyle=DASHED, linewidth=1.0, label="direction unknown"))
    style: dict[str, Any] = {"ncols": 4, "fontsize": 6, "frameon": False, "labelcolor": colours.ink}
    figure.legend(handles=handles, loc="outside lower left", **style)
    return figure


def _colour(kind: str, palette: Sequence[str]) -> str:
    return palette[KINDS.index(kind) % len(palette)] if kind in KINDS else palette[-1]


def write_tree(path: Path, edges: Sequence[Edge], base: str, theme: str = "light", marked: str | None = None) -> None:
    """Draw it into a .svg, .png or .pdf."""
    write_output(path, draw(tree_figure(edges, base, theme, marked), path.suffix.lower()))
