"""Pictures inside the page: one for a light and one for a dark screen, of which the browser shows the right one."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from query.figures import draw
from query.report.markup import Html, Part, element
from query.report.section import Writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from query.results import ThemeName

_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
_MANY = 1500  # marks from which an image of dots is smaller than a list of them

# Paper is white, whatever the screen.
_DARK = "screen and (prefers-color-scheme: dark)"


def add_picture(
    writer: Writer, figure: Callable[[ThemeName], Figure], alternative: str, caption: Part, marks: int = 0
) -> None:
    """Draw ``figure(theme)`` in both themes into the section; without matplotlib, the sentence that asks for it.

    ``alternative``: what the picture shows, for who does not see it; ``marks``: how many things are drawn.
    """
    suffix = ".png" if marks > _MANY else ".svg"
    try:
        light, dark = (_address(draw(figure(theme), suffix), suffix) for theme in ("light", "dark"))
    except AtlasError as error:
        writer.lack(error)
        return
    writer.add(_figure(light, dark, alternative, caption))


def _address(picture: bytes, suffix: str) -> str:
    return f"data:{_KINDS[suffix]};base64,{base64.b64encode(picture).decode()}"


def _figure(light: str, dark: str, alternative: str, caption: Part) -> Html:
    shown = element("picture", element("source", srcset=dark, media=_DARK), element("img", src=light, alt=alternative))
    return element("figure", shown, element("figcaption", caption))
