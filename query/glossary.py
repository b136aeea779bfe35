"""What words and columns mean: of answers, from ``glossary.toml``, and of the database, from schema.sql."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from indexer.errors import AtlasError
from indexer.names import nearest

_OBJECTS = (
    "SELECT * FROM ("
    "SELECT 'view' AS kind, view_name AS name, comment FROM duckdb_views() WHERE NOT internal UNION ALL "
    "SELECT 'table', table_name, comment FROM duckdb_tables() WHERE schema_name = 'main' UNION ALL "
    "SELECT 'macro', function_name, comment FROM duckdb_functions() "
    "WHERE NOT internal AND function_type = 'table_macro'"
    ") ORDER BY kind = 'table', kind = 'macro' DESC, name"
)
_COLUMNS = (
    'SELECT column_name AS "column", data_type AS type, comment FROM duckdb_columns() '
    "WHERE NOT internal AND schema_name = 'main' AND lower(table_name) = lower(?) ORDER BY column_index"
)


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
        columns = _ask(
            'SELECT table_name AS "table", comment FROM duckdb_columns() WHERE NOT internal AND comment IS NOT NULL '
            "AND schema_name = 'main' AND lower(column_name) = lower(?) ORDER BY table_name",
            word,
        )
        for column in columns:
            meanings.setdefault(column["comment"], []).append(column["table"])
        found = [{"word": word, "where": ", ".join(tables), "meaning": meaning} for meaning, tables in meanings.items()]
    if not found:
        named = [name for names in _glossary()["commands"].values() for name in names]
        near = nearest(asked, dict.fromkeys([*words(), *named]))
        raise AtlasError(
            f"{word!r} is not explained here.",
            f"Did you mean {' or '.join(near)}?" if near else "All words: query help",
        )
    return found


# ---- the database: every atlas has the same tables, views and macros


def schema(name: str | None = None) -> list[dict[str, Any]]:
    """All tables, views and macros ({kind, name, comment}), or the columns of one ({column, type, comment}).

    Raises AtlasError for an unknown ``name``, with the names that are spelt like it.
    """
    if name is not None and (columns := _ask(_COLUMNS, name)):
        return columns
    objects = _ask(_OBJECTS)
    if name is None:
        return objects
    macros = [one for one in objects if one["name"].lower() == name.lower()]
    if macros:
        return [{"column": "", "type": one["kind"], "comment": one["comment"]} for one in macros]
    near = nearest(name, [one["name"] for one in objects])
    hint = f"Did you mean {' or '.join(near)}?" if near else "See all: query schema"
    raise AtlasError(f"There is no table, view or macro {name!r}.", hint)


def _ask(statement: str, *parameters: str) -> list[dict[str, Any]]:
    """The rows of a statement on a database with nothing but the schema."""
    import duckdb

    from indexer.database.catalog import empty_database

    with TemporaryDirectory(prefix="atlas-") as folder:
        file = Path(folder) / "empty.duckdb"
        file.write_bytes(empty_database())
        with duckdb.connect(str(file), read_only=True) as connection:
            cursor = connection.execute(statement, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
