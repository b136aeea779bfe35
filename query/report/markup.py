"""HTML made of parts. Text is escaped where it goes in, so that nothing from the Hub becomes markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from indexer.console.messages import clean
from query.wording import NOTHING

_VOID = ("img", "meta", "source")  # elements that have no end
_LONGEST = 300  # characters of one string from the Hub


@dataclass(frozen=True)
class Html:
    """Markup; only the functions here make it."""

    markup: str

    def __str__(self) -> str:
        return self.markup


Part = Html | str | int | None


@dataclass(frozen=True)
class Column:
    """One column of a table.

    ``kind``: number (to the right), fixed (one line), name (from the Hub: breaks anywhere), prose (sentences), or text.
    """

    title: str
    kind: str = "text"


def element(name: str, /, *parts: Part, **attributes: str | int | None) -> Html:
    """One element around ``parts``. ``class_`` is class, ``aria_label`` is aria-label; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name in _VOID else f"</{name}>"
    return Html(f"<{name}{written}>{joined(*parts)}{end}")


def joined(*parts: Part, between: str = "") -> Html:
    """``parts`` one after the other; what is not markup yet becomes text, None nothing."""
    return Html(html.escape(between).join(_escaped(part) for part in parts if part is not None))


def _escaped(part: Part) -> str:
    return part.markup if isinstance(part, Html) else html.escape(clean(str(part), keep_lines=True))


def told(text: str, longest: int = _LONGEST) -> str:
    """A string from the Hub, cut where it is too long for a page."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def model(identity: str, address: str | None) -> Html:
    """A model by name, with a link to its page where it has one."""
    if address is None:
        return element("span", told(identity), class_="id")
    return element("a", identity, class_="id", href=address, rel="noopener nofollow")


def within(text: Part, anchor: str) -> Html:
    """A link to a place on this page."""
    return element("a", text, href=f"#{anchor}")


def code(text: str) -> Html:
    """Something to be typed, or spelt as it is."""
    return element("code", text)


def strong(text: Part) -> Html:
    """What a reader who skims should see."""
    return element("strong", text)


def listed(items: Iterable[Part], kind: str = "ul") -> Html:
    """A list."""
    return element(kind, *(element("li", item) for item in items))


def enumerated(names: Sequence[str], most: int = 3) -> str:
    """Names in a row, and how many are not told."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(told(name, 80) for name in names[:most]) + rest


def table(caption: Part, columns: Sequence[Column], rows: Iterable[Sequence[Part]]) -> Html:
    """A table whose first column names the rows; it scrolls by itself where the page is narrow."""
    head = element("tr", *(element("th", column.title, scope="col", class_=column.kind) for column in columns))
    body = [element("tr", *_cells(columns, row)) for row in rows]
    written = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    # A part that scrolls must be reachable from the keyboard.
    return element("div", written, class_="scroll", tabindex=0)


def _cells(columns: Sequence[Column], row: Sequence[Part]) -> list[Html]:
    cells = [NOTHING if cell is None or cell == "" else cell for cell in row]
    return [
        element("td", cell, class_=column.kind) if place else element("th", cell, scope="row", class_=column.kind)
        for place, (column, cell) in enumerate(zip(columns, cells, strict=True))
    ]
