"""The colours of pages and pictures, in a light and a dark theme.

The first seven colours are Okabe and Ito's (2008), slightly adjusted. Three more were found by search, so that any two
are at least 19 apart in CIELAB for normal vision, protanopia, deuteranopia and tritanopia (Machado et al., 2009). None
is close to black or white, the colours of text. Numbers are coloured by viridis, without the end that is too close to
the background.
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


_ON_LIGHT = "#0069B2 #F39C00 #12A168 #B96EA5 #C65809 #40C3FF #772A0E #6F0075 #0000AF #B300FF"
_ON_DARK = "#2995D6 #E99A00 #43D59F #CA91B8 #E36E34 #9DDC81 #FFE000 #A45AFD #5F00FF #7535A0"

THEMES = {
    "light": Theme(
        background="#FFFFFF",
        ink="#222222",
        faint="#DDDDDD",
        rest="#B0B0B0",
        palette=tuple(_ON_LIGHT.split()),
        scale=("#440154", "#472E7C", "#39558C", "#2A768E", "#1F968B", "#32B67A", "#73D056", "#CAE11F"),
    ),
    "dark": Theme(
        background="#14171A",
        ink="#E8E8E8",
        faint="#3A3F44",
        rest="#6C6C6C",
        palette=tuple(_ON_DARK.split()),
        scale=("#414487", "#33638D", "#277F8E", "#1F9A8A", "#32B67A", "#69CD5B", "#B2DD2D", "#FDE725"),
    ),
}
