"""Pages of one file each, which fetch and run nothing: their templates, their style sheet, and how text is escaped."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexer.console.messages import clean
from indexer.console.themes import THEMES

_LONGEST = 300  # characters of one string from the Hub or from a file


def code(text: str) -> Markup:
    """Text to type, or an exact spelling, as HTML."""
    return Markup("<code>{}</code>").format(clean(text, keep_lines=True))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """A string from the Hub, cut if it is too long for a page."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def page_environment(package: str) -> Environment:
    """The templates in the folder ``pages`` of a package, and those that all pages share.

    All text is made printable and escaped, unless it is Markup, which comes only from functions that escape their
    arguments. A page extends ``sheet.html``.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "pages"), PackageLoader(__package__, "pages")]),
        autoescape=True,
        finalize=lambda part: clean(part, keep_lines=True) if type(part) is str else part,
        undefined=StrictUndefined,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"code": code, "shorten": shorten, "themes": THEMES}
    return environment
