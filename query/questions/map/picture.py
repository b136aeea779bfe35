"""A map for print: the largest groups in colours, with their names; numbers on a scale.

Colours show groups, and shapes show adapters. Models without a group, such as undocumented ones, are rings in the
colour of the text, in front of all others. On a map of few models each has its name, else each coloured group has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from query.contract.figures import THEMES, Theme, label, new_figure
from query.questions.map.coloring import ColorGroups, Coloring, Scale
from query.questions.map.groups import (
    NAMED,
    Positions,
    Spot,
    are_places,
    group_spots,
    place_names,
    short_names,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.2  # inches: the width of a printed page
_POINTS, _WORDS = 5.0, 0.9  # inches: width of the points without the legend; height of title and margins
_LOWEST, _HIGHEST = 3.6, 5.6
_NAMES_ROOM = 1.0  # inches that a flat map is higher if its models are named
FULL, ADAPTER = "o", "^"
_AREA = {FULL: 1.0, ADAPTER: 1.1}  # relative areas that look equally large
_RING = 0.9  # points: line width of models without a group
_NAME, _LONGEST_NAME = 6.5, 28  # size in points, and characters, of a name on the picture
_GAP = 2.5  # points between a name and its surroundings
_LINE = 0.5  # points: width of a line from a name
_EDGES, _WIDE_EDGES = 0.06, 0.14  # of the map beyond its outermost points; wide ones have names of models
_RASTERISED = 3000  # from this many points on, an SVG or PDF contains an image of them
_OUTLINED = 1000  # up to this many points, each has an outline and hides those below
_SECONDS_A_DAY = 86_400.0

Mask = NDArray[np.bool_]


def map_figure(
    positions: Positions,
    is_adapter: Mask,
    models: Sequence[str],
    base: str,
    coloring: Coloring,
    title: str,
    subtitle: str,
    axis_labels: tuple[str, str] | None,
    theme: str = "light",
    ax: Axes | None = None,
    named: ColorGroups | None = None,
) -> Figure:
    """The map, without frame or ticks: positions have no unit, and only PCA's axes have a meaning.

    ``models``: the id of each point, made from ``base``. ``named``: the groups whose names are written beside their
    points, by default those that have the colours.
    """
    colours = THEMES[theme]
    wide, high = np.ptp(positions, axis=0)  # the points fill their width, and x and y have the same scale
    is_few = len(models) < NAMED
    lowest = _LOWEST + _NAMES_ROOM * is_few
    height = float(np.clip(_POINTS * high / wide + _WORDS, lowest, _HIGHEST)) if wide else lowest
    figure, axes = new_figure(WIDTH, height, theme, ax)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    lines = [label(line, 90) for line in subtitle.split("; ")]
    axes.set_title(label(title, 75), loc="left", fontsize=10, pad=8 + 9 * len(lines), color=colours.ink)
    axes.text(0, 1, "\n".join(lines), transform=axes.transAxes, fontsize=7, color=colours.ink, alpha=0.75,
              va="bottom")  # fmt: skip
    if axis_labels:
        axes.set_xlabel(axis_labels[0], fontsize=8)
        axes.set_ylabel(axis_labels[1], fontsize=8)
    canvas = _Canvas(figure, axes, colours, positions, is_adapter)
    if isinstance(coloring, ColorGroups):
        _draw_groups(canvas, coloring)
    else:
        _draw_scale(canvas, coloring)
    axes.margins(_WIDE_EDGES if is_few else _EDGES)
    if is_few:
        spots = [Spot(float(x), float(y)) for x, y in positions]
        if _write_names(canvas, short_names(models, base), range(len(models)), spots):
            return figure
    if isinstance(groups := named or coloring, ColorGroups):
        shown = (*groups.shown, *groups.rest) if len(groups.rest) == 1 else groups.shown
        spots_of_groups = group_spots(positions, groups.codes, len(shown))
        if are_places(spots_of_groups):
            _write_names(canvas, [group.group for group in shown], groups.codes, spots_of_groups)
    return figure


class _Canvas:
    """Draws points, whose size and opacity depend on their number."""

    def __init__(self, figure: Any, axes: Any, colours: Theme, positions: Positions, is_adapter: Mask) -> None:
        self.figure, self.axes, self.colours = figure, axes, colours
        self.positions, self.is_adapter = positions, is_adapter
        count = len(positions)
        self.size = float(np.clip(330 / np.sqrt(count), 4.5, 42))
        self.alpha = 1.0 if count <= _OUTLINED else 0.8
        self.is_rasterised = count >= _RASTERISED
        self.outline = 0.5 if count <= _OUTLINED else 0.0
        # Groups are drawn in a fixed random order, so that none covers the others.
        self.order = np.random.default_rng(0).permutation(count)

    def shapes(self, chosen: Mask) -> Iterator[tuple[str, NDArray[np.intp]]]:
        """The chosen rows of full models, then of adapters, each with their shape."""
        for shape, has_shape in ((FULL, ~self.is_adapter), (ADAPTER, self.is_adapter)):
            rows = self.order[(chosen & has_shape)[self.order]]
            if len(rows):
                yield shape, rows

    def dots(self, chosen: Mask, colour: Any, size: float = 1.0, zorder: int = 3) -> None:
        """Draw the chosen points; ``colour``: a colour for all, or an array with a colour for each point of the map."""
        for shape, rows in self.shapes(chosen):
            self.axes.scatter(
                *self.positions[rows].T, s=self.size * size * _AREA[shape], marker=shape, alpha=self.alpha,
                c=colour if isinstance(colour, str) else colour[rows], edgecolors=self.colours.background,
                linewidths=self.outline, rasterized=self.is_rasterised, zorder=zorder,
            )  # fmt: skip

    def rings(self, chosen: Mask) -> None:
        """Draw points without a group: hollow, in the colour of the text, in front."""
        for shape, rows in self.shapes(chosen):
            self.axes.scatter(
                *self.positions[rows].T, s=self.size * _AREA[shape], marker=shape, facecolors=self.colours.background,
                edgecolors=self.colours.ink, linewidths=_RING, rasterized=self.is_rasterised, zorder=4,
            )  # fmt: skip

    def handle(self, shape: str, colour: str, text: str, **more: Any) -> Any:
        """An entry of the legend."""
        from matplotlib.lines import Line2D

        outline = {"markeredgewidth": 0} | more
        return Line2D([], [], linestyle="", marker=shape, color=colour, markersize=5.5, label=text, **outline)

    def legend(self, handles: list[Any], title: str, location: Any) -> None:
        """Add a legend outside the points."""
        legend = self.figure.legend(handles=handles, title=title, loc=location, frameon=False, fontsize=7.5,
                               labelcolor=self.colours.ink, handletextpad=0.4, borderaxespad=0.6,
                               ncols=1 if "right" in location else 3)  # fmt: skip
        legend.get_title().set(color=self.colours.ink, fontsize=8)
        legend.set_alignment("left")


def _draw_groups(canvas: _Canvas, groups: ColorGroups) -> None:
    theme = canvas.colours
    codes = np.array(groups.codes)
    shown = len(groups.shown)
    canvas.dots(codes >= shown, theme.rest, 0.8, zorder=2)
    canvas.dots((codes >= 0) & (codes < shown), np.array(theme.palette)[codes % shown if shown else codes])
    canvas.rings(codes < 0)
    handles = [
        canvas.handle(FULL, theme.palette[index], f"{label(group.group, 34)} ({group.models:,})")
        for index, group in enumerate(groups.shown)
    ]
    if groups.rest:
        models = sum(group.models for group in groups.rest)
        others = label(groups.rest[0].group, 34) if len(groups.rest) == 1 else f"{len(groups.rest):,} others"
        handles.append(canvas.handle(FULL, theme.rest, f"{others} ({models:,})"))
    handles += _general(canvas, codes < 0, groups.none)
    canvas.legend(handles, label(groups.column), "outside right upper")


def _write_names(canvas: _Canvas, names: Sequence[str], codes: Sequence[int], spots: Sequence[Spot | None]) -> bool:
    """Write names next to their spots, or with a line to them.

    None is written if there is no room for all. Returns whether any is.
    """
    axes, dpi = canvas.axes, canvas.figure.dpi
    texts = [
        axes.text(0, 0, label(name, _LONGEST_NAME), fontsize=_NAME, ha="center", va="center",
                  color=canvas.colours.ink, zorder=6)
        for name in names
    ]  # fmt: skip
    axes.get_figure(root=True).draw_without_rendering()  # determines the position of the axes and the width of names
    boxes = [text.get_window_extent() for text in texts]
    frame = axes.get_window_extent()
    to_pixels, to_map = axes.transData, axes.transData.inverted()
    pixels_a_unit = float(np.hypot(*(to_pixels.transform((1, 0)) - to_pixels.transform((0, 0)))))
    in_pixels: list[Spot | None] = []
    for spot in spots:
        if spot is None:
            in_pixels.append(None)
            continue
        x, y = to_pixels.transform((spot.x, spot.y)).tolist()
        in_pixels.append(Spot(x, y, spot.radius * pixels_a_unit, spot.is_scattered))
    places = place_names(
        to_pixels.transform(canvas.positions), codes, in_pixels, [(box.width, box.height) for box in boxes],
        (frame.x0, frame.y0, frame.x1, frame.y1), _GAP * dpi / 72,
        np.sqrt(canvas.size) / 2 * dpi / 72,
    )  # fmt: skip
    limits = axes.axis()
    for text, place in zip(texts, places, strict=True):
        if place is None:
            text.remove()
            continue
        text.set_position(to_map.transform((place.x, place.y)))
        text.set_in_layout(False)
        if place.line:
            axes.plot(*to_map.transform(place.line).T, color=canvas.colours.ink, linewidth=_LINE, alpha=0.7, zorder=5)
    axes.axis(limits)
    return any(places)


def _general(canvas: _Canvas, unknown: Mask, none: str) -> list[Any]:
    """Legend entries for models without a group, and for shapes."""
    ink, handles = canvas.colours.ink, []
    if unknown.any():
        text = f"{none} ({unknown.sum():,})"
        handles.append(canvas.handle(FULL, ink, text, fillstyle="none", markeredgewidth=_RING))
    adapters = int(canvas.is_adapter.sum())
    if adapters:
        full_models = len(canvas.is_adapter) - adapters
        handles.append(canvas.handle("", ink, ""))  # a line between colours and shapes
        if full_models:
            handles.append(canvas.handle(FULL, ink, f"whole model ({full_models:,})"))
        handles.append(canvas.handle(ADAPTER, ink, f"adapter ({adapters:,})"))
    return handles


def _draw_scale(canvas: _Canvas, scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.dates import AutoDateLocator, DateFormatter

    theme = canvas.colours
    is_time = scale.kind == "time"
    unit = _SECONDS_A_DAY if is_time else 1.0  # matplotlib counts dates in days
    values = np.array([np.nan if value is None else value for value in scale.values], dtype=float)
    unknown = np.isnan(values)
    canvas.rings(unknown)
    if not unknown.all():
        low, high = scale.low / unit, scale.high / unit
        if scale.kind == "log":
            norm: Any = LogNorm(low, high, clip=True)
        else:
            norm = Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)
        colours = ScalarMappable(norm, LinearSegmentedColormap.from_list("scale", theme.scale))
        canvas.dots(~unknown, colours.to_rgba(np.where(unknown, norm.vmin, values / unit)))
        has_zeros = scale.kind == "log" and 0.0 in scale.values
        bar = canvas.figure.colorbar(colours, ax=canvas.axes, shrink=0.6, aspect=28, pad=0.02, anchor=(0, 1),
                                     extend="min" if has_zeros else "neither")  # fmt: skip
        bar.set_label(label(scale.column) + (" (0 below)" if has_zeros else ""), color=theme.ink, fontsize=8)
        bar.ax.tick_params(colors=theme.ink, labelsize=7.5)
        bar.outline.set_visible(False)
        if is_time:
            bar.ax.yaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=6))
            bar.ax.yaxis.set_major_formatter(DateFormatter("%Y-%m-%d"))
    handles = _general(canvas, unknown, scale.none)
    if handles:
        canvas.legend(handles, "", "outside lower left")
