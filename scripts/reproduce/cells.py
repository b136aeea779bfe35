"""Tables in Markdown, and what stands in their cells."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from indexer.console.messages import clean

NONE = "–"
_MARKDOWN = re.compile(r"([\\`*_\[\]#!~])")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; what would end a cell or a line is made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def from_hub(text: str) -> str:
    """Text that somebody else wrote, shown as it stands: neither Markdown nor HTML, no control characters."""
    return _MARKDOWN.sub(r"\\\1", html.escape(clean(text), quote=False))


def number(value: float | None, digits: int) -> str:
    """A number, or a dash; nothing is "-0.00"."""
    return NONE if value is None else f"{round(value, digits) + 0.0:.{digits}f}"
