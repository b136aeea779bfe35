"""The page: the source of its sections, their tables and pictures, and the templates with its text."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from jinja2 import Environment
from markupsafe import Markup

from indexer.console.advice import for_command_line
from indexer.console.messages import clean
from indexer.console.output import as_plain, cell_text
from indexer.console.page import code, page_environment, shorten
from indexer.errors import AtlasError, missing_extra
from query.contract.figures import draw
from query.shared import wording
from query.shared.wording import NOTHING, count, day, decimal, duration, literal, moment, percent, size, sql

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from query.contract.results import ThemeName
    from query.models.reader import AtlasReader, CrawlSource

_NAMES = 3  # of a list in a cell
_MANY_MARKS = 1500  # in a picture; with more, a PNG is smaller than an SVG
_MODELS = ("model", "central", "asked")  # columns of answers with ids of models
_NUMBER = re.compile(r"[−<>\-–\d.,±() %e]+|")
_PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}


def as_reason(error: AtlasError | ModuleNotFoundError, purpose: str) -> AtlasError:
    """The error with the extra to install; any other missing module is raised."""
    if isinstance(error, AtlasError):
        return error
    if (missing := missing_extra(error, purpose)) is None:
        raise error
    return missing


def model_link(name: str, address: str | None) -> Markup:
    """A model's name, linked to its page if it has one."""
    if address is None:
        return Markup('<span class="id">{}</span>').format(clean(shorten(name)))
    return Markup('<a class="id" href="{}" rel="noopener nofollow">{}</a>').format(clean(address), clean(name))


def enumerated(names: Sequence[str]) -> str:
    """The first names, separated by commas, and how many more there are."""
    remainder = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(shorten(name, 80) for name in names[:_NAMES]) + remainder


def _cell(value: Any) -> str:
    """A value without a format of its own."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, int):
        return count(value)
    if isinstance(value, datetime):
        return day(value)
    if isinstance(value, list):
        return enumerated(value) or NOTHING
    return value if isinstance(value, Markup) else shorten(value)


# Kind of a column → its class in the style sheet (number: aligned right; fixed: one line; name: from the Hub, breaks
# anywhere; prose: sentences), and how its values are written. The kind "model" is a name with a link.
_KINDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    **{name: (name, _cell) for name in ("text", "number", "fixed", "name", "prose")},
    "answer": ("name", lambda value: _written(value)),
    "answer number": ("number", lambda value: _written(value)),
    "code": ("text", code),
    "percent": ("number", percent),
    "one digit": ("number", partial(decimal, digits=1)),
    "two digits": ("number", decimal),
    "three digits": ("number", partial(decimal, digits=3)),
    "size": ("number", size),
    "duration": ("number", duration),
    "moment": ("fixed", moment),
}


@dataclass(frozen=True)
class Source:
    """The atlas, base and seed of every section."""

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
        return model_link(name, None if name in self._from_folders else self.crawled.page_of(name))

    @cached_property
    def _from_folders(self) -> frozenset[str]:
        return self.atlas.from_folders(self.base)

    def command(self, name: str, options: str = "") -> str:
        """A command about this base, ready to be pasted into a shell."""
        return " ".join(filter(None, ("query", name, "--base", shlex.quote(self.base), options)))

    def answer_table(
        self,
        caption: str,
        rows: Sequence[Mapping[str, Any]],
        most: int | None = None,
        everything: str = "",
        total: int | None = None,
    ) -> dict[str, Any] | None:
        """Rows of an answer's table, as its command prints them, or None without rows; see ``table``."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        kinds = {}
        for name in names:
            values = [row[name] for row in rows if row.get(name) not in (None, "")]
            is_number = all(_NUMBER.fullmatch(_written(value)) for value in values)
            kinds[name] = "model" if name in _MODELS else "answer number" if is_number else "answer"
        return self.table(caption, kinds, [[row.get(name) for name in names] for row in rows], most, everything, total)

    def table(
        self,
        caption: str,
        columns: Mapping[str, str],
        rows: Sequence[Mapping[str, Any] | Sequence[Any]],
        most: int | None = None,
        everything: str = "",
        total: int | None = None,
    ) -> dict[str, Any] | None:
        """A table for the template, or None without rows. The first column names the rows.

        Args:
            caption: the caption.
            columns: title → kind (see ``_KINDS``).
            rows: a value for each column.
            most: the number of rows to show; None for all.
            everything: the command that prints all rows.
            total: how many rows there are, if more than ``rows``.
        """
        if not rows:
            return None
        all_kinds = {**_KINDS, "model": ("name", self.model)}
        kinds = [all_kinds[kind] for kind in columns.values()]
        cells = [
            [
                (style, write(value))
                for (style, write), value in zip(kinds, row.values() if isinstance(row, Mapping) else row, strict=True)
            ]
            for row in rows[:most]
        ]
        return {
            "caption": caption,
            "columns": [(title, style) for title, (style, _) in zip(columns, kinds, strict=True)],
            "rows": cells,
            "more": (len(rows) if total is None else total) - len(cells),
            "everything": everything,
        }


def _written(value: Any) -> str:
    """A cell of an answer's table as the command prints it."""
    return shorten(cell_text(as_plain(value)).strip()) or NOTHING


@dataclass
class Section:
    """One section of the page.

    Attributes:
        anchor: the anchor of its address.
        title: its title.
        facts: the variables of its template.
        key_numbers: (value, meaning) for the top of the page.
        says: the sentences of its answers for the paragraph at the top.
        missing: a sentence for each thing that this atlas or installation cannot show, with the reason.
    """

    anchor: str
    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    key_numbers: list[tuple[str, str]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def key_number(self, value: str, meaning: str) -> None:
        """Add a number for the top of the page."""
        self.key_numbers.append((value, meaning))

    def unavailable(self, reason: AtlasError | str) -> str:
        """The sentence for the template on what is missing here, and why; also added to ``missing``."""
        self.missing.append(for_command_line(reason if isinstance(reason, str) else reason.text))
        return self.missing[-1]

    def picture(self, figure: Callable[[ThemeName], Figure], marks: int = 0) -> dict[str, str]:
        """``figure(theme)`` in both themes, for the template; without matplotlib, how to install it (``why``).

        ``marks``: how many points or lines are drawn.
        """
        suffix = ".png" if marks > _MANY_MARKS else ".svg"
        themes: tuple[ThemeName, ...] = ("light", "dark")
        try:
            drawn = {theme: base64.b64encode(draw(figure(theme), suffix)).decode() for theme in themes}
        except (AtlasError, ModuleNotFoundError) as error:
            return {"why": self.unavailable(as_reason(error, "A picture"))}
        return {theme: f"data:{_PICTURES[suffix]};base64,{payload}" for theme, payload in drawn.items()}


@cache
def _environment() -> Environment:
    """The templates and their functions (cached, because compiling the templates takes longer than filling them)."""
    environment = page_environment("query.faces.report")
    environment.globals |= {
        name: getattr(wording, name) for name in ("count", "counted", "day", "decimal", "percent", "size")
    } | {"enumerated": enumerated, "for_command_line": for_command_line}
    return environment


def page(source: Source, sections: Iterable[Section]) -> str:
    """The whole page."""
    (atlas,) = source.atlas.rows("SELECT published FROM atlas_info")
    return (
        _environment()
        .get_template("report.html")
        .render(
            source=source,
            published=day(atlas["published"]),
            listed=source.number("SELECT count(*) FROM fine_tunes WHERE base = ?"),
            indexed=source.number("SELECT count(*) FROM models WHERE base = ?"),
            sections=list(sections),
        )
    )
