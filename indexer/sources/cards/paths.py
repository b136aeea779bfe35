"""Texts without the paths of somebody's machine."""

from __future__ import annotations

import re
from typing import Any

_PATH = re.compile(r"(?:file:/*|~|[A-Za-z]:)?[/\\].*?([^/\\]*)[/\\]*", re.DOTALL)


def without_paths(value: Any) -> Any:
    """JSON from a card or configuration with every absolute path replaced by ``./NAME``."""
    if isinstance(value, dict):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    path = _PATH.fullmatch(value) if isinstance(value, str) else None
    return f"./{path[1]}" if path else value
