"""The colours of pages and pictures, in a light and a dark theme.

A group has the same colour in both themes. The ten colours were found by search under two conditions. Their contrast to
either background is at least 3 : 1 (WCAG 2.2, 1.4.11). Any two, the grey of all other groups and the colours of text
among them, are at least 19 apart in CIELAB for normal vision, protanopia, deuteranopia and tritanopia (Machado et al.,
2009). Numbers are coloured by viridis in even steps of lightness, without the end that is too close to the background.
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
        scale=("#440154", "#481D6F", "#453781", "#3C4F8A", "#31668E", "#287C8E", "#21918C", "#21A685"),
    ),
    "dark": Theme(
        background="#14171A",
        ink="#E8E8E8",
        faint="#3A3F44",
        rest=_REST,
        palette=_GROUPS,
        scale=("#306A8E", "#26818E", "#1F978B", "#27AD81", "#4AC16D", "#81D34D", "#C0DF25", "#FDE725"),
    ),
}
