"""YAML from untrusted sources as plain JSON values."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import yaml

_MAX_EVENTS = 200_000
_MAX_DEPTH = 40
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str) -> Any:
    """Parse YAML into dicts, lists, texts, numbers, booleans and None.

    Returns None for what cannot be read: not YAML, with aliases, with tags of a language, too long or too deep.
    """
    depth = 0
    try:
        # A few lines of aliases expand to gigabytes, and the parser is recursive: look at the events first.
        for number, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH or number > _MAX_EVENTS:
                return None
        return _plain(yaml.load(text, Loader=_LOADER))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """A YAML value reduced to JSON: dates and keys as text, no bytes, no sets."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return [_plain(item) for item in sorted(value, key=str)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, str | bool | int | float) else None
