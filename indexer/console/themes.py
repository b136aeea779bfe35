"""The colours of pages and pictures, in a light and a dark theme.

A group has the same colour in both themes. The ten colours were found by search under two conditions. Their contrast to
either background is at least 3 : 1 (WCAG 2.2, 1.4.11). Any two, the grey of all other groups and the colours of text
among them, are at least 19 apart in CIELAB for normal vision, protanopia, deuteranopia and tritanopia (Machado et al.,
2009). Numbers are coloured by plasma in even steps of lightness, without the end that is too close to the background.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """The colours of a picture.

    ``palette`` for groups, ``rest`` for all other groups; ``scale``: evenly spaced stops for numbers.
    """

    background: str
    ink: str
    faint: str
    rest: str
    palette: tuple[str, ...]
    scale: tuple[str, ...]


_GROUPS = ("#348DFF", "#D38101", "#0FA969", "#C476CA", "#B8420B", "#036C8E", "#CE003D", "#9007FA", "#A423BC", "#FD00F9")
_REST = "#7F7F7F"

THEMES = {
    "light": Theme(
        background="#FFFFFF",
        ink="#222222",
        faint="#DDDDDD",
        rest=_REST,
        palette=_GROUPS,
        scale=("#0D0887", "#3E049C", "#6400A7", "#8B0AA5", "#AB2494", "#C43E7F", "#D7566C", "#E76F5A"),
    ),
    "dark": Theme(
        background="#14171A",
        ink="#E8E8E8",
        faint="#3A3F44",
        rest=_REST,
        palette=_GROUPS,
        scale=("#B12A90", "#CB4679", "#DF6263", "#F07F4F", "#FA9B3D", "#FEBA2C", "#FAD824", "#F0F921"),
    ),
}
