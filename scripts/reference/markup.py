"""What the pages share: text of the code as Markdown."""

from __future__ import annotations

import re

_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_CODE = re.compile(r"(`[^`]*`)")


def prose(text: str) -> str:
    """Text of a docstring or of a help as Markdown: roles and double backticks as code, other signs as they are."""
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([<*])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def cell(text: str) -> str:
    """The same for a cell of a table."""
    return " ".join(prose(text).split()).replace("|", "\\|")
