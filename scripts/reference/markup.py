"""What the pages share: text of the code as Markdown."""

from __future__ import annotations

import html
import re

_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_CODE = re.compile(r"(`[^`]*`)")


def prose(text: str) -> str:
    """Text of a docstring or of a help as Markdown: roles and double backticks as code, other signs as they are."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    parts = _CODE.split(text)
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "".join(parts)


def cell(text: str) -> str:
    """The same for a cell of a table."""
    parts = _CODE.split(" ".join(prose(text).split()))
    parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
    parts[1::2] = [code(part[1:-1]) for part in parts[1::2]]
    return "".join(parts)


def code(text: str) -> str:
    """Code for a cell of a table. Of a line in code, not all readers of Markdown take the backslash away."""
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"
