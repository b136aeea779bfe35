"""Reads a report as another program would: by html.parser, without any of our code."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "source"}


@dataclass
class Table:
    caption: str = ""
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    section: str = ""
    scopes: list[str] = field(default_factory=list)  # of its th

    def column(self, title: str) -> list[str]:
        return [row[self.head.index(title)] for row in self.rows]

    def by_first(self) -> dict[str, dict[str, str]]:
        return {row[0]: dict(zip(self.head, row, strict=True)) for row in self.rows}


class Page(HTMLParser):
    """Everything on the page; raises AssertionError where elements are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: list[Table] = []
        self.headings: list[tuple[str, str]] = []
        self.paragraphs: list[tuple[str, str, str]] = []  # section, class, text
        self.key_numbers: dict[str, str] = {}  # meaning -> value
        self.figures: list[tuple[str, str, str]] = []  # section, meaning, value
        self.codes: list[str] = []
        self.text = ""
        self.section = ""
        self._open: list[str] = []
        self._buffers: dict[str, str] = {}
        self._meaning = ""
        self._class = ""
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        assert len(values) == len(attributes), f"an attribute twice in {tag}: {attributes}"
        self.elements.append((tag, values))
        if tag in VOID:
            return
        self._open.append(tag)
        self._buffers[tag] = ""
        if tag == "section":
            self.section = values.get("aria-labelledby", "")
        if tag == "p":
            self._class = values.get("class", "")
        if tag == "table":
            self.tables.append(Table(section=self.section))
        if tag == "tr":
            self._row: list[str] = []
        if tag == "th":
            self.tables[-1].scopes.append(values.get("scope", ""))

    def handle_endtag(self, tag):
        assert tag not in VOID
        assert self._open[-1:] == [tag], f"</{tag}> inside {self._open}"
        self._open.pop()
        # Line breaks in the source are spaces, as in a browser.
        text = self._buffers[tag] if "pre" in self._open else re.sub(r"[ \n]+", " ", self._buffers[tag]).strip(" \n")
        if tag == "caption":
            self.tables[-1].caption = text
        elif tag in ("th", "td"):
            self._row.append(text)
        elif tag == "tr":
            if "thead" in self._open:
                self.tables[-1].head = self._row
            else:
                self.tables[-1].rows.append(self._row)
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((tag, text))
        elif tag == "p":
            self.paragraphs.append((self.section, self._class, text))
        elif tag == "dt":
            self._meaning = text
        elif tag == "dd":
            self.figures.append((self.section, self._meaning, text))
            if self.section == "key-numbers":
                self.key_numbers[self._meaning] = text
        elif tag == "code":
            self.codes.append(text)

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data
        for tag in set(self._open):
            self._buffers[tag] += data

    def table(self, caption: str) -> Table:
        """The one table whose caption begins with ``caption``."""
        (match,) = [table for table in self.tables if table.caption.startswith(caption)]
        return match

    def section_text(self, section: str) -> str:
        return "\n".join(text for paragraph_section, _, text in self.paragraphs if paragraph_section == section)

    def missing(self, section: str) -> list[str]:
        return [
            text
            for paragraph_section, kind, text in self.paragraphs
            if (paragraph_section, kind) == (section, "missing")
        ]

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def pictures(self) -> list[tuple[str, bytes]]:
        """Kind and content of every picture, in either theme."""
        addresses = [values["src"] for values in self.attributes("img")] + [
            values["srcset"] for values in self.attributes("source")
        ]
        matches = [re.fullmatch(r"data:(image/[a-z+]+);base64,([A-Za-z0-9+/=]+)", address) for address in addresses]
        assert all(matches), "a picture that is not in the page itself"
        return [(match[1], base64.b64decode(match[2])) for match in matches if match]
