"""Compares the catalog of an attached file with schema.sql, without running anything in the file.

The expected catalog comes from schema.sql itself, run in memory by the same DuckDB, which prints both. Tables must be
those of schema.sql to the column; other objects of any kind are refused. Views and macros of the right name are
accepted, because versions of DuckDB store the same definition in different ways. If such a definition is printed
differently, that of schema.sql replaces it: a temporary object, which DuckDB looks up before all others. The file's own
definition is never run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import SCHEMA_VERSION, schema_sql
from indexer.database.secure_connection import NAME, attached_for_writing, use
from indexer.errors import AtlasError
from indexer.untrusted import printable

if TYPE_CHECKING:
    import duckdb

HINT = "This program did not write it in this form. To rebuild it from its records: index rebuild"

# A row takes at least a byte, except in a table of repeated values: there this many rows are accepted.
_ROWS_BELIEVED = 1_000_000

# For each kind of object its schema, name and definition as far as DuckDB prints it. Internal objects are included,
# because a file could mark its own objects as internal.
_LISTINGS = {
    "schema": "SELECT database_name, '', schema_name, '' FROM system.main.duckdb_schemas()",
    "table": "SELECT database_name, schema_name, table_name, sql FROM system.main.duckdb_tables()",
    "view": "SELECT database_name, schema_name, view_name, sql FROM system.main.duckdb_views()",
    "macro": "SELECT database_name, schema_name, function_name, function_type FROM system.main.duckdb_functions()",
    "type": "SELECT database_name, schema_name, type_name, logical_type FROM system.main.duckdb_types()",
    "sequence": "SELECT database_name, schema_name, sequence_name, '' FROM system.main.duckdb_sequences()",
    "index": "SELECT database_name, schema_name, index_name, '' FROM system.main.duckdb_indexes()",
    "trigger": "SELECT database_name, schema_name, trigger_name, '' FROM system.main.duckdb_triggers()",
}
_CREATED = re.compile(r"^CREATE (SCHEMA|TABLE|VIEW|MACRO) ((?:\w+\.)?\w+)", re.MULTILINE)
# Comments of schema.sql: above a statement, "-- text" or, of a column, "-- name: text"; behind the columns of a table;
# and how either is continued.
_ABOVE, _ABOVE_OF_COLUMN = re.compile(r"-- (?=\S)(.+)"), re.compile(r"(\w+): (.+)")
_BEHIND = re.compile(r'    "?(\w+)"? .*?  -- (.+)')
_CONTINUED = re.compile(r"(?:--   |        -- )(.+)")
_SOURCES = re.compile(r"\b(?:FROM|JOIN) ((?:\w+\.)?\w+)")


@dataclass(frozen=True)
class Definition:
    """A CREATE statement of schema.sql. Views and macros are in the schema main.

    ``kind``: schema, table, view or macro; ``comment``: of the object; ``of_columns``: of its columns, by name.
    """

    kind: str
    name: str
    statement: str
    comment: str
    of_columns: Mapping[str, str]

    def created(self, how: str) -> str:
        """The statement as CREATE TEMP or CREATE OR REPLACE."""
        kind = self.kind.upper()
        return self.statement.replace(f"CREATE {kind} ", f"CREATE {how} {kind} ", 1)


@dataclass(frozen=True)
class Differences:
    """How the catalog of a file differs from schema.sql.

    ``problems``: reasons to refuse the file. ``differing``: the views that DuckDB prints differently, and all macros,
    because DuckDB does not print their defaults.
    """

    problems: tuple[str, ...] = ()
    differing: tuple[Definition, ...] = ()

    @property
    def differing_views(self) -> list[str]:
        """Names of the views that differ from those of schema.sql."""
        return [definition.name for definition in self.differing if definition.kind == "view"]


@cache
def definitions() -> tuple[Definition, ...]:
    """The CREATE statements of schema.sql, in their order."""
    parsed = []
    for text in re.split(r"(?<=;)\n\n+", schema_sql()):
        if match := _CREATED.search(text):
            statement = text[match.start() :]
            comment, of_columns = _comments_in(text[: match.start()], statement if match[1] == "TABLE" else "")
            parsed.append(Definition(match[1].lower(), match[2], statement, comment, of_columns))
    return tuple(parsed)


def _comments_in(above: str, table: str) -> tuple[str, dict[str, str]]:
    """The comment of an object, and those of its columns by name.

    ``above``: the lines above its statement; ``table``: the statement of a table, empty for other objects.
    """
    comments: dict[str, str] = {}
    name = ""
    for line in above.splitlines():
        if match := _CONTINUED.fullmatch(line):
            comments[name] += f" {match[1]}"
        elif match := _ABOVE.fullmatch(line):
            of_column = _ABOVE_OF_COLUMN.fullmatch(match[1]) if comments else None
            name, comments[name] = of_column.groups() if of_column else ("", match[1])
    for line in table.splitlines():
        if match := _CONTINUED.fullmatch(line):
            comments[name] += f" {match[1]}"
        elif match := _BEHIND.fullmatch(line):
            name, comments[name] = match.groups()
    return comments.pop("", ""), comments


@cache
def comment_statements() -> dict[str, tuple[str, ...]]:
    """The statements that store the comments of a table, view or macro and its columns, by its name.

    A column of a view without a comment has that of the first table or view after FROM or JOIN with such a column.
    """
    import duckdb

    columns: dict[str, list[str]] = {}
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for definition in definitions():
            connection.execute(definition.statement)
        for schema, table, column in connection.execute(
            "SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal ORDER BY column_index"
        ).fetchall():
            columns.setdefault(table if schema == "main" else f"{schema}.{table}", []).append(column)
    comments_of: dict[str, dict[str, str]] = {}
    statements: dict[str, tuple[str, ...]] = {}
    for definition in definitions():
        sources = _SOURCES.findall(definition.statement) if definition.kind == "view" else []
        inherited = {name: text for source in reversed(sources) for name, text in comments_of.get(source, {}).items()}
        of_columns = inherited | dict(definition.of_columns)
        comments_of[definition.name] = {
            name: of_columns[name] for name in columns.get(definition.name, ()) if name in of_columns
        }
        kind = "MACRO TABLE" if definition.kind == "macro" else definition.kind.upper()
        texts = {f"{kind} {definition.name}": definition.comment}
        texts |= {f'COLUMN {definition.name}."{name}"': text for name, text in comments_of[definition.name].items()}
        quoted = {name: text.replace("'", "''") for name, text in texts.items() if text}
        statements[definition.name] = tuple(f"COMMENT ON {name} IS '{text}'" for name, text in quoted.items())
    return statements


def examine(connection: duckdb.DuckDBPyConnection, path: Path) -> Differences:
    """Compare the catalog of the attached file with schema.sql. Nothing in the file is run, bound or looked up.

    Raises AtlasError if it is not an atlas, or has another schema.
    """
    expected_objects = expected()
    objects = {kind: _listed(connection, statement) for kind, statement in _LISTINGS.items()}
    info = ("main", "atlas_info")
    if info not in objects["table"]:
        raise AtlasError(f"{path} is not an atlas: it has no atlas_info.", "Give another `atlas`.")
    if objects["table"][info] == expected_objects["table"][info]:  # as in every version; a different one is not queried
        row = connection.execute(f"SELECT schema_version FROM {NAME}.main.atlas_info LIMIT 1").fetchone()
        version = row[0] if row else None
        if version != SCHEMA_VERSION:
            newer = isinstance(version, int) and version > SCHEMA_VERSION
            todo = "Upgrade vectors-in-the-wild." if newer else "Run `index rebuild` to bring it up to date."
            raise AtlasError(f"{path} has schema {version}; this version reads schema {SCHEMA_VERSION}.", todo)
    problems = []
    for kind in _LISTINGS:
        for schema, name in sorted(objects[kind].keys() - expected_objects[kind].keys()):
            where = "" if schema in ("main", "") else f" in the schema {printable(schema, 60)!r}"
            problems.append(f"holds a {kind} {printable(name, 60)!r}{where}, which schema.sql does not create")
        for _, name in sorted(expected_objects[kind].keys() - objects[kind].keys()) if kind == "table" else ():
            problems.append(f"lacks the table {name!r}")
        for key in sorted(objects[kind].keys() & expected_objects[kind].keys()) if kind != "view" else ():
            if objects[kind][key] != expected_objects[kind][key]:
                problems.append(f"holds a {kind} {printable(key[1], 60)!r} that differs from schema.sql")
    problems += _too_many_rows(connection, path)
    views, expected_views = objects["view"], expected_objects["view"]
    differing = [
        definition
        for definition in definitions()
        if definition.kind == "macro"
        or (
            definition.kind == "view"
            and views.get(("main", definition.name)) != expected_views["main", definition.name]
        )
    ]
    return Differences(tuple(problems), tuple(differing))


def refuse(path: Path, differences: Differences) -> None:
    """Raises AtlasError if a file has objects that schema.sql does not make."""
    if differences.problems:
        more = len(differences.problems) - 1
        also = f" (and {more} more)" if more else ""
        raise AtlasError(f"{path} is refused: it {differences.problems[0]}{also}.", HINT)


def plain_tables(connection: duckdb.DuckDBPyConnection, path: Path) -> frozenset[tuple[str, str]]:
    """Schemas and names of the tables of a file that can be queried without running anything of the file.

    Empty if a macro could shadow a name in the query, or if a table claims too many rows.
    """
    macros = _listed(connection, _LISTINGS["macro"])
    if any(types != {"table_macro"} for types in macros.values()) or _too_many_rows(connection, path):
        return frozenset()
    tables = _listed(connection, _LISTINGS["table"])
    return frozenset(key for key, statements in tables.items() if not any("GENERATED" in sql for sql in statements))


def replace_differing(connection: duckdb.DuckDBPyConnection, differences: Differences) -> None:
    """Replace the definitions that differ by those of schema.sql, in a file that is open for writing."""
    connection.execute("BEGIN")  # one transaction, because each would wait for the disk
    for definition in differences.differing:
        connection.execute(definition.created("OR REPLACE"))
        for comment in comment_statements()[definition.name]:
            connection.execute(comment)
    connection.execute("COMMIT")


@cache
def empty_database() -> bytes:
    """A file as schema.sql makes it, without rows. Its comments take a fifth of a second, so it is made once."""
    with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
        path = Path(folder) / "atlas.duckdb"
        with attached_for_writing(path) as connection:
            use(connection)
            connection.execute("BEGIN")
            for definition in definitions():
                connection.execute(definition.statement)
                for comment in comment_statements()[definition.name]:
                    connection.execute(comment)
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")
        return path.read_bytes()


# Definitions by schema and name (macros can have several).
Listed = dict[tuple[str, str], set[str]]


@cache
def expected() -> dict[str, Listed]:
    """The expected definitions by kind, as this DuckDB prints them after running schema.sql in memory."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as connection:  # starting more takes time
        connection.execute(f"ATTACH ':memory:' AS {NAME}")
        connection.execute(f"USE {NAME}")
        connection.execute("BEGIN")
        for definition in definitions():
            connection.execute(definition.statement)
        return {kind: _listed(connection, statement) for kind, statement in _LISTINGS.items()}


def _listed(connection: duckdb.DuckDBPyConnection, statement: str) -> Listed:
    """The definitions of one kind in the file, in one form for all versions of DuckDB."""
    import duckdb

    definitions_by_name: Listed = {}
    try:
        rows = connection.execute(f"{statement} WHERE database_name = '{NAME}'").fetchall()
    except duckdb.CatalogException:  # this kind is of a later DuckDB
        return definitions_by_name
    for _, schema, name, printed in rows:
        text = re.sub(r"CAST\('t' AS BOOLEAN\)", "true", printed or "")
        text = re.sub(r"CAST\('f' AS BOOLEAN\)", "false", text)
        text = re.sub(r"\bmain\.(?=list_value\()", "", text)
        definitions_by_name.setdefault((schema, name), set()).add(text)
    return definitions_by_name


def _too_many_rows(connection: duckdb.DuckDBPyConnection, path: Path) -> list[str]:
    """A problem for each table that claims more rows than the file can contain.

    A file of a few kilobytes can claim a billion rows, which would all be read into memory.
    """
    most = max(_ROWS_BELIEVED, path.stat().st_size)
    rows = connection.execute(
        f"SELECT table_name, estimated_size FROM system.main.duckdb_tables() WHERE database_name = '{NAME}'"
    ).fetchall()
    return [
        f"claims {count:,} rows in the table {printable(name, 60)!r}, more than the file could contain"
        for name, count in rows
        if count is not None and count > most
    ]
