"""The page: what a section is written from, the blocks it is made of, and the template that they are put into."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexer.console.advice import for_command_line
from indexer.console.messages import clean
from indexer.errors import AtlasError
from query.figures import THEMES, draw
from query.wording import NOTHING, count, day, literal, sql

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from query.reader import AtlasReader, CrawlSource
    from query.results import ThemeName

_LONGEST = 300  # characters of one string from the Hub
_NAMES = 3  # of a list in a cell
_MANY_MARKS = 1500  # in a picture; with more, a PNG is smaller than an SVG
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}

# Text is escaped by the template; Markup comes only from the functions below, which escape what they are given.
Part = Markup | str | None
# Of a table: an integer has thousands separators, a time is a day, and of a list the first items are shown.
Cell = Part | int | datetime | list[str]


def code(text: str) -> Markup:
    """Something to be typed, or an exact spelling."""
    return Markup("<code>{}</code>").format(clean(text, keep_lines=True))


def model_link(name: str, address: str | None) -> Markup:
    """A model's name, linked to its page if it has one."""
    if address is None:
        return Markup('<span class="id">{}</span>').format(clean(shorten(name)))
    return Markup('<a class="id" href="{}" rel="noopener nofollow">{}</a>').format(clean(address), clean(name))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """A string from the Hub, cut if it is too long for a page."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def enumerated(names: Sequence[str]) -> str:
    """The first names, separated by commas, and how many more there are."""
    rest = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(shorten(name, 80) for name in names[:_NAMES]) + rest


@dataclass(frozen=True)
class Source:
    """What every section is written from."""

    atlas: AtlasReader
    base: str
    seed: int

    @cached_property
    def crawled(self) -> CrawlSource:
        """Which Hub was crawled, and how."""
        return self.atlas.crawl_of(self.base)

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """Rows of a statement whose only ``?`` is the base."""
        return self.atlas.rows(statement, [self.base])

    def number(self, statement: str) -> int:
        """The single number of such a statement; 0 for NULL."""
        (row,) = self.rows(statement)
        return int(next(iter(row.values())) or 0)

    def query(self, statement: str) -> str:
        """The command that prints the rows of such a statement."""
        return sql(statement.replace("?", literal(self.base)))

    def model(self, name: str) -> Markup:
        """A model's name, linked to its page on the Hub that was crawled."""
        return model_link(name, self.crawled.page_of(name))

    def command(self, name: str, options: str = "") -> str:
        """A command about this base, ready to be pasted into a shell."""
        return " ".join(filter(None, ("query", name, "--base", shlex.quote(self.base), options)))


@dataclass
class Section:
    """One section, written block by block.

    ``key_numbers``: (value, meaning) for the top of the page. ``missing``: what this atlas or installation cannot show,
    and why.
    """

    anchor: str
    title: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    key_numbers: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def key_number(self, value: str, meaning: str) -> None:
        """Add a number for the top of the page."""
        self.key_numbers.append((value, meaning))

    def add(self, kind: str, **content: Any) -> None:
        """Add a block of one of the template's kinds."""
        self.blocks.append({"kind": kind, **content})

    def paragraph(self, *parts: Part, style: str = "") -> None:
        """Add a paragraph; ``style`` is its class in the style sheet."""
        self.add("paragraph", parts=parts, style=style)

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.add("heading", text=text)

    def unavailable(self, reason: AtlasError | str) -> None:
        """Add a line that says what is missing here, and why."""
        sentence = for_command_line(str(reason))
        self.missing.append(sentence)
        self.paragraph(sentence, style="missing")

    def notes(self, sentences: Iterable[str]) -> None:
        """Add what a study says about its own limits."""
        for sentence in sentences:
            self.paragraph("Note: ", for_command_line(sentence), style="note")

    def table(
        self,
        caption: str,
        columns: Mapping[str, str],
        rows: Sequence[Sequence[Cell]],
        most: int = 0,
        everything: str = "",
        total: int | None = None,
    ) -> None:
        """Add a table whose first column names the rows; ``most`` limits its rows, and ``everything`` prints all.

        ``columns``: title → kind: number (aligned right), fixed (one line), name (from the Hub; breaks anywhere), prose
        (sentences) or text. ``total``: how many rows there are, if more than ``rows``.
        """
        shown = rows[:most] if most else rows
        kinds = list(columns.values())
        cells = [list(zip(kinds, map(_cell, row), strict=True)) for row in shown]
        self.add("table", caption=caption, columns=list(columns.items()), rows=cells)
        if more := (len(rows) if total is None else total) - len(shown):
            self.paragraph(f"… and {more:,} more. All: ", code(everything), style="rest")

    def picture(
        self, figure: Callable[[ThemeName], Figure], alternative: str, caption: Iterable[Part], marks: int = 0
    ) -> None:
        """Add ``figure(theme)`` in both themes; without matplotlib, the error that asks for it.

        ``alternative``: what the picture shows, for screen readers; ``marks``: how many things are drawn.
        """
        suffix = ".png" if marks > _MANY_MARKS else ".svg"
        try:
            light, dark = (
                f"data:{_PICTURES[suffix]};base64,{base64.b64encode(draw(figure(theme), suffix)).decode()}"
                for theme in ("light", "dark")
            )
        except AtlasError as error:
            self.unavailable(error)
            return
        self.add("picture", light=light, dark=dark, alternative=alternative, caption=list(caption))


def _cell(value: Cell) -> Part:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, int):
        return count(value)
    if isinstance(value, datetime):
        return day(value)
    return enumerated(value) or NOTHING if isinstance(value, list) else value


def page(source: Source, opening: Sequence[Part], sections: Sequence[Section]) -> str:
    """The whole page; ``opening`` is its first paragraph."""
    (atlas,) = source.atlas.rows("SELECT published FROM atlas_info")
    # Everything printed is made printable and escaped, unless it is Markup already.
    environment = Environment(
        loader=PackageLoader("query.report", "pages"),
        autoescape=True,
        finalize=lambda part: clean(part, keep_lines=True) if type(part) is str else part,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    written: str = environment.get_template("report.html").render(
        base=source.base, published=day(atlas["published"]), opening=opening, sections=sections, themes=THEMES
    )
    return written
