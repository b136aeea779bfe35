"""What a section is, what it is made from, and how it is written part by part."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from indexer.console.advice import for_command_line
from indexer.errors import AtlasError
from query.report.markup import Column, Html, Part, code, element, joined, listed, model, table

if TYPE_CHECKING:
    from query.reader import AtlasReader, CrawlSource


@dataclass(frozen=True)
class Source:
    """What every section draws from."""

    atlas: AtlasReader
    base: str
    seed: int

    @cached_property
    def crawled(self) -> CrawlSource:
        """Which Hub was asked, and how."""
        return self.atlas.crawl_of(self.base)

    def rows(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of a statement of which the first ``?`` is the base."""
        return self.atlas.rows(statement, [self.base, *parameters])

    def model(self, identity: str) -> Html:
        """A model by name, with a link to its page on the Hub that was crawled."""
        return model(identity, self.crawled.page_of(identity))

    def command(self, name: str, options: str = "") -> str:
        """A command about this base, as it can be pasted into a shell."""
        return " ".join(filter(None, ("query", name, "--base", shlex.quote(self.base), options)))

    def number(self, statement: str, *parameters: Any) -> int:
        """The one number of such a statement; 0 where it is null."""
        (row,) = self.rows(statement, *parameters)
        return int(next(iter(row.values())) or 0)


@dataclass(frozen=True)
class KeyNumber:
    """A number that stands at the head of the page, and what it counts."""

    value: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """``missing``: what this atlas, or this installation, does not allow to say, in sentences."""

    anchor: str
    title: str
    body: Html
    key_numbers: tuple[KeyNumber, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass
class Writer:
    """Writes the body of one section, top to bottom."""

    anchor: str
    title: str
    parts: list[Html] = field(default_factory=list)
    key_numbers: list[KeyNumber] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def done(self) -> Section:
        """The section as written."""
        return Section(
            self.anchor, self.title, joined(*self.parts, between="\n"), tuple(self.key_numbers), tuple(self.missing)
        )

    def add(self, part: Html) -> None:
        """Markup as it is."""
        self.parts.append(part)

    def paragraph(self, *parts: Part) -> None:
        """A paragraph of text."""
        self.add(element("p", *parts))

    def heading(self, text: str) -> None:
        """A heading inside the section."""
        self.add(element("h3", text))

    def points(self, items: Iterable[Part]) -> None:
        """A list of sentences."""
        self.add(listed(items))

    def lack(self, reason: AtlasError | str) -> None:
        """Say in a line what is missing here, and why."""
        sentence = for_command_line(str(reason))
        self.missing.append(sentence)
        self.add(element("p", sentence, class_="missing"))

    def notes(self, sentences: Iterable[str]) -> None:
        """What a study says of its own limits."""
        for sentence in sentences:
            self.add(element("p", "Note: ", for_command_line(sentence), class_="note"))

    def table(
        self,
        caption: Part,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Part]],
        most: int = 0,
        everything: str = "",
    ) -> None:
        """A table; of many rows the first ``most``, how many more there are, and the command that gives all."""
        shown = rows[:most] if most else rows
        self.add(table(caption, columns, shown))
        self.rest(len(rows) - len(shown), everything)

    def rest(self, more: int, everything: str) -> None:
        """How many rows a table does not show, where there are any, and the command that gives all."""
        if more:
            self.add(element("p", f"… and {more:,} more. All: ", code(everything), class_="rest"))

    def key_number(self, value: str, meaning: str) -> None:
        """A number for the head of the page."""
        self.key_numbers.append(KeyNumber(value, meaning))
