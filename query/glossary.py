"""The meanings of words and columns, from ``glossary.toml``, and of columns of the database, from schema.sql."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from indexer.names import nearest
from query.schema import columns_named


@cache
def _glossary() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))


def words() -> dict[str, str]:
    """Definitions by term, in reading order."""
    return _glossary()["words"]


def definition(column: str, command: str) -> str:
    """The meaning of a column, or key, of a command's answer; "" if there is none."""
    columns = _glossary()["columns"]
    return str(columns.get(f"{command}.{column}", columns.get(column, "")))


def columns_of(command: str) -> list[tuple[str, str]]:
    """The columns of a command's answer, with their definitions."""
    return [(name, definition(name, command)) for name in _glossary()["commands"].get(command, ())]


def explained(word: str) -> list[dict[str, str]]:
    """Every meaning of ``word``: {word, where, meaning}. ``where``: the commands, or the tables, that use it so.

    Raises AtlasError if it has none, naming similar words.
    """
    asked = word.lower()
    found = [
        {"word": term, "where": "", "meaning": meaning}
        for term, meaning in words().items()
        if asked in (part.strip().lower() for part in [term, *term.replace("(", ",").replace(")", "").split(",")])
    ]
    meanings: dict[str, list[str]] = {}
    for command, names in _glossary()["commands"].items():
        for name in names:
            if name.lower() == asked:
                meanings.setdefault(definition(name, command), []).append(command)
    found += [
        {"word": word, "where": ", ".join(f"query {command}" for command in commands), "meaning": meaning}
        for meaning, commands in meanings.items()
    ]
    if not found:
        for column in columns_named(word):
            meanings.setdefault(column["comment"], []).append(column["table"])
        found = [{"word": word, "where": ", ".join(tables), "meaning": meaning} for meaning, tables in meanings.items()]
    if not found:
        columns = [name for names in _glossary()["commands"].values() for name in names]
        near = nearest(asked, dict.fromkeys([*words(), *columns]))
        raise AtlasError(
            f"{word!r} is not explained here.",
            f"Did you mean {' or '.join(near)}?" if near else "All words: query help",
        )
    return found
