"""Meanings of words and kinds of change, of fields (from the classes of answers) and of tables (from schema.sql)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from indexer.errors import AtlasError
from indexer.names import nearest
from indexer.records.kinds.meanings import MEANINGS
from query.contract.registry import commands
from query.contract.results import Column, Doc, Result, answer_classes, columns, row_class_in

# Meanings that several fields share.
_COMMENT = Doc("Its contents.")

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
def words() -> dict[str, str]:
    """Definitions by term, in reading order."""
    text = Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8")
    terms: dict[str, str] = tomllib.loads(text)["words"]
    kinds = {kind: f"A kind of change: {meaning}." for kind, meaning in MEANINGS.items() if kind not in terms}
    return terms | kinds


def documented(answers: Iterable[type[Any]]) -> dict[str, str]:
    """The columns and keys of these classes of answers or rows, with their meanings; columns of rows come first."""
    meanings: dict[str, str] = {}
    classes_seen: set[type[Any]] = set()

    def add(names: Iterable[Column]) -> None:
        within = []
        for column in names:
            if column.doc:
                meanings.setdefault(column.key, column.doc)
            if (inner := row_class_in(column.type)) is not None and inner not in classes_seen:
                classes_seen.add(inner)
                within.append(inner)
        for inner in within:
            add(columns(inner))

    for answer in answers:
        if issubclass(answer, Result):
            add(answer.row_columns() or columns(answer))
            meanings |= {name: meaning for name, meaning in answer.TABLE_COLUMNS.items() if name not in meanings}
        add(columns(answer))
    return meanings


def answers_of(command: str) -> list[type[Result]]:
    """The answer classes of a command's questions; imports the questions."""
    return [answer_class for entry in commands().get(command, ()) for answer_class in answer_classes(entry.load())]


def explained(word: str) -> list[dict[str, str]]:
    """Every meaning of ``word``: {word, where, meaning}. ``where``: the commands, or the tables, that use it so.

    Raises AtlasError, with similar words, if it has none.
    """
    lowered = word.lower()
    explanations = [
        {"word": term, "where": "", "meaning": meaning}
        for term, meaning in words().items()
        if lowered in (part.strip().lower() for part in [term, *term.replace("(", ",").replace(")", "").split(",")])
    ]
    meanings: dict[str, list[str]] = {}
    all_keys: dict[str, None] = {}
    for command in commands():
        try:
            documented_keys = documented(answers_of(command))
        except AtlasError:  # a plugin fails; its own command reports the error
            continue
        all_keys |= dict.fromkeys(documented_keys)
        for name, meaning in documented_keys.items():
            if name.lower() == lowered:
                meanings.setdefault(meaning, []).append(command)
    explanations += [
        {"word": word, "where": ", ".join(f"query {command}" for command in commands), "meaning": meaning}
        for meaning, commands in meanings.items()
    ]
    if not explanations:
        columns = _ask(
            'SELECT table_name AS "table", comment FROM duckdb_columns() WHERE NOT internal AND comment IS NOT NULL '
            "AND schema_name = 'main' AND lower(column_name) = lower(?) ORDER BY table_name",
            word,
        )
        for column in columns:
            meanings.setdefault(column["comment"], []).append(column["table"])
        explanations = [
            {"word": word, "where": ", ".join(tables), "meaning": meaning} for meaning, tables in meanings.items()
        ]
    if not explanations:
        similar_words = nearest(lowered, dict.fromkeys([*words(), *all_keys]))
        raise AtlasError(
            f"{word!r} is not explained here.",
            f"Did you mean {' or '.join(similar_words)}?" if similar_words else "All words: query help",
        )
    return explanations


# ---- the database: every atlas has the same tables, views and macros


@dataclass(frozen=True)
class SchemaObject:
    """A table, view or macro, as ``schema`` lists it."""

    kind: Annotated[str, Doc("table, view or macro.")]
    name: Annotated[str, Doc("What to write after FROM.")]
    comment: Annotated[str, _COMMENT]


@dataclass(frozen=True)
class SchemaColumn:
    """A column of a table or view."""

    column: Annotated[str, Doc("Name of the column.")]
    type: Annotated[str, Doc("DuckDB's type of the column.")]
    comment: Annotated[str, _COMMENT]


def schema(name: str | None = None) -> list[dict[str, Any]]:
    """All tables, views and macros ({kind, name, comment}), or the columns of one ({column, type, comment}).

    Raises AtlasError for an unknown ``name``, with the names that are spelt like it.
    """
    if name is not None and (columns := _ask(_COLUMNS, name)):
        return columns
    objects = _ask(_OBJECTS)
    if name is None:
        return objects
    macros = [row for row in objects if row["name"].lower() == name.lower()]
    if macros:
        return [{"column": "", "type": macro["kind"], "comment": macro["comment"]} for macro in macros]
    similar_names = nearest(name, [row["name"] for row in objects])
    hint = f"Did you mean {' or '.join(similar_names)}?" if similar_names else "See all: query schema"
    raise AtlasError(f"There is no table, view or macro {name!r}.", hint)


def _ask(statement: str, *parameters: str) -> list[dict[str, Any]]:
    """The rows of a statement on an empty database with the schema."""
    import duckdb

    from indexer.database.catalog import empty_database

    with TemporaryDirectory(prefix="atlas-") as folder:
        file = Path(folder) / "empty.duckdb"
        file.write_bytes(empty_database())
        with duckdb.connect(str(file), read_only=True) as connection:
            cursor = connection.execute(statement, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
