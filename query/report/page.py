"""The page: what a section is written from, the blocks it is made of, and the template that they are put into."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexer.console.advice import for_command_line
from indexer.console.messages import clean
from indexer.errors import AtlasError
from query.figures import THEMES, draw
from query.wording import NOTHING, day

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from query.reader import AtlasReader, CrawlSource
    from query.results import ThemeName

_LONGEST = 300  # characters of one string from the Hub
_MANY_MARKS = 1500  # in a picture; with more, a PNG is smaller than an SVG
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}

# Text is escaped by the template; Markup comes only from the functions below, which escape what they are given.
Part = Markup | str | int | None


def code(text: str) -> Markup:
    """Something to be typed, or an exact spelling."""
    return Markup("<code>{}</code>").format(clean(text, keep_lines=True))


def model_link(name: str, address: str | None) -> Markup:
    """A model's name, linked to its page if it has one."""
    if address is None:
        return Markup('<span class="id">{}</span>').format(clean(shorten(name)))
    return Markup('<a class="id" href="{}" rel="noopener nofollow">{}</a>').format(clean(address), clean(name))


def emphasised(text: str) -> Markup:
    """Text that stands out from other values of its column."""
    return Markup("<em>{}</em>").format(clean(text))


def shorten(text: str, longest: int = _LONGEST) -> str:
    """A string from the Hub, cut if it is too long for a page."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def enumerated(names: Sequence[str], most: int = 3) -> str:
    """The first names, separated by commas, and how many more there are."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(shorten(name, 80) for name in names[:most]) + rest


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

    def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of a statement whose first ``?`` is the base."""
        return self.atlas.rows(statement, [self.base, *parameters])

    def number(self, statement: str, *parameters: Any) -> int:
        """The single number of such a statement; 0 for NULL."""
        (row,) = self.rows(statement, *parameters)
        return int(next(iter(row.values())) or 0)

    def model(self, name: str) -> Markup:
        """A model's name, linked to its page on the Hub that was crawled."""
        return model_link(name, self.crawled.page_of(name))

    def command(self, name: str, options: str = "") -> str:
        """A command about this base, ready to be pasted into a shell."""
        return " ".join(filter(None, ("query", name, "--base", shlex.quote(self.base), options)))


@dataclass(frozen=True)
class KeyNumber:
    """A number for the top of the page."""

    value: str
    meaning: str


@dataclass
class Section:
    """One section, written block by block; ``missing`` says what this atlas or installation cannot show, and why."""

    anchor: str
    title: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    key_numbers: list[KeyNumber] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def key_number(self, value: str, meaning: str) -> None:
        """Add a number for the top of the page."""
        self.key_numbers.append(KeyNumber(value, meaning))

    def paragraph(self, *parts: Part, style: str = "") -> None:
        """Add a paragraph; ``style`` is its class in the style sheet."""
        self.blocks.append({"kind": "paragraph", "parts": parts, "style": style})

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.blocks.append({"kind": "heading", "text": text})

    def points(self, points: Iterable[Part]) -> None:
        """Add a bulleted list."""
        self.blocks.append({"kind": "points", "points": list(points)})

    def terms(self, terms: Iterable[tuple[str, str]]) -> None:
        """Add a list of terms and their definitions."""
        self.blocks.append({"kind": "terms", "terms": list(terms)})

    def commands(self, lines: Iterable[str]) -> None:
        """Add lines for a shell."""
        self.blocks.append({"kind": "commands", "text": "\n".join(lines)})

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
        rows: Sequence[Sequence[Part]],
        most: int = 0,
        everything: str = "",
    ) -> None:
        """Add a table whose first column names the rows; ``most`` limits its rows, and ``everything`` prints all.

        ``columns``: title → kind: number (aligned right), fixed (one line), name (from the Hub; breaks anywhere), prose
        (sentences) or text.
        """
        shown = rows[:most] if most else rows
        kinds = list(columns.values())
        cells = [[NOTHING if cell is None or cell == "" else cell for cell in row] for row in shown]
        self.blocks.append(
            {
                "kind": "table",
                "caption": caption,
                "columns": list(columns.items()),
                "rows": [list(zip(kinds, row, strict=True)) for row in cells],
            }
        )
        self.more_rows(len(rows) - len(shown), everything)

    def more_rows(self, more: int, everything: str) -> None:
        """Add how many rows a table does not show, if any, and the command that prints all."""
        if more:
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
        self.blocks.append(
            {"kind": "picture", "light": light, "dark": dark, "alternative": alternative, "caption": list(caption)}
        )


def page(source: Source, opening: Sequence[Part], sections: Sequence[Section]) -> str:
    """The whole page; ``opening`` is its first paragraph."""
    (atlas,) = source.atlas.rows("SELECT published FROM atlas_info")
    written: str = (
        _environment()
        .get_template("report.html")
        .render(base=source.base, published=day(atlas["published"]), opening=opening, sections=sections, themes=THEMES)
    )
    return written


def _environment() -> Environment:
    """Everything printed is made printable and escaped, unless it is Markup already."""
    return Environment(
        loader=PackageLoader("query.report", "pages"),
        autoescape=True,
        finalize=lambda part: clean(part, keep_lines=True) if type(part) is str else part,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
