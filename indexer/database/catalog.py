"""What an attached file has besides what schema.sql makes, read from its catalog without running anything of it.

The expectation comes from schema.sql itself, run in memory by the same DuckDB, which prints both. Tables must be those
of schema.sql to the column; other objects of any kind are refused. Views and macros of the right name are another
matter: versions of DuckDB store one definition in different ways. Where they print another, that of schema.sql stands
in for it (a temporary object, which goes before all others), and the file's own is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.atlas import SCHEMA_VERSION, schema_sql
from indexer.database.secure_connection import NAME
from indexer.errors import AtlasError
from indexer.untrusted import printable

if TYPE_CHECKING:
    import duckdb

HINT = "It is not as this program makes it. To make it again from its records: index rebuild"

# A row takes at least a byte, but for a table that holds the same again and again: so many at most are believed.
_ROWS_BELIEVED = 1_000_000

# By kind: an object's schema, its name, and its definition as far as DuckDB prints it. Nothing is left out that a file
# could mark as DuckDB's own.
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
_COMMENTED = re.compile(r"^COMMENT ON (?:VIEW|MACRO TABLE|COLUMN) (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Definition:
    """A statement of schema.sql that makes something: ``kind`` is schema, table, view or macro.

    Those of views and macros are names of the schema main.
    """

    kind: str
    name: str
    statement: str
    comments: tuple[str, ...] = ()

    @property
    def stand_in(self) -> str:
        """The statement that makes it a temporary object."""
        return self.statement.replace(f"CREATE {self.kind.upper()} ", f"CREATE TEMP {self.kind.upper()} ", 1)

    @property
    def replacement(self) -> str:
        """The statement that puts it in place of another one of its name."""
        return self.statement.replace(f"CREATE {self.kind.upper()} ", f"CREATE OR REPLACE {self.kind.upper()} ", 1)


@dataclass(frozen=True)
class Found:
    """What was found in a file: ``problems`` are why it is refused; ``others`` are definitions that differ.

    Macros are always among ``others``, as DuckDB prints no macro's defaults.
    """

    problems: tuple[str, ...] = ()
    others: tuple[Definition, ...] = ()

    @property
    def stand_ins(self) -> list[str]:
        """Statements that put temporary objects of schema.sql before those of the file that are not the same."""
        return [one.stand_in for one in self.others]

    @property
    def other_views(self) -> list[str]:
        """Names of the views that are not those of schema.sql."""
        return [one.name for one in self.others if one.kind == "view"]


@cache
def definitions() -> tuple[Definition, ...]:
    """What schema.sql makes, in its order."""
    statements = re.split(r"(?<=;)\n+", schema_sql())
    comments: dict[str, list[str]] = {}
    for statement in statements:
        if about := _COMMENTED.search(statement):
            comments.setdefault(about[1], []).append(statement)
    made = [(found, statement) for statement in statements if (found := _CREATED.search(statement))]
    return tuple(
        Definition(found[1].lower(), found[2], statement[found.start() :], tuple(comments.get(found[2], ())))
        for found, statement in made
    )


def examine(connection: duckdb.DuckDBPyConnection, path: Path) -> Found:
    """What the attached file holds, by its catalog. Nothing in it is run, bound or looked up.

    Raises AtlasError where it is no atlas, or one of another schema.
    """
    wanted = expected()
    listed = {kind: (_listed(connection, statement), wanted[kind]) for kind, statement in _LISTINGS.items()}
    check_version(connection, path, listed["table"])
    problems = [problem for kind, pair in listed.items() for problem in _problems(kind, *pair)]
    problems += _too_many_rows(connection, path)
    others = tuple(_others(*listed["view"]))
    return Found(tuple(problems), others)


def refuse(path: Path, found: Found) -> None:
    """Raises AtlasError where a file holds what schema.sql does not make."""
    if found.problems:
        more = len(found.problems) - 1
        also = f" (and {more} more)" if more else ""
        raise AtlasError(
            f"{path} is refused: it {found.problems[0]}{also}.",
            HINT,
        )


def plain_tables(connection: duckdb.DuckDBPyConnection, path: Path) -> frozenset[tuple[str, str]]:
    """Schemas and names of the tables of a file that can be asked, without functions, and nothing of the file is run.

    None (an empty set) where a macro could stand before what is asked, or a table never ends.
    """
    macros = _listed(connection, _LISTINGS["macro"])
    if any(types != {"table_macro"} for types in macros.values()) or list(_too_many_rows(connection, path)):
        return frozenset()
    tables = _listed(connection, _LISTINGS["table"])
    return frozenset(key for key, made in tables.items() if not any("GENERATED" in sql for sql in made))


def replace_others(connection: duckdb.DuckDBPyConnection, found: Found) -> None:
    """Put those of schema.sql into the file where its own are not the same; it is used already, and to be changed."""
    connection.execute("BEGIN")  # one for all: each by itself would wait for the disk
    for one in found.others:
        connection.execute(one.replacement)
        for comment in one.comments:
            connection.execute(comment)
    connection.execute("COMMIT")


# Definitions by schema and name (macros can have several).
Listed = dict[tuple[str, str], set[str]]


@cache
def expected() -> dict[str, Listed]:
    """What a file should hold, by kind: what this DuckDB makes of schema.sql in memory."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as connection:  # more have nothing to do, and take time
        connection.execute(f"ATTACH ':memory:' AS {NAME}")
        connection.execute(f"USE {NAME}")
        connection.execute("BEGIN")
        for one in definitions():
            connection.execute(one.statement)
        return {kind: _listed(connection, statement) for kind, statement in _LISTINGS.items()}


def _listed(connection: duckdb.DuckDBPyConnection, statement: str) -> Listed:
    """What the file holds of one kind."""
    import duckdb

    held: Listed = {}
    try:
        rows = connection.execute(f"{statement} WHERE database_name = '{NAME}'").fetchall()
    except duckdb.CatalogException:  # of a later DuckDB
        return held
    for _, schema, name, definition in rows:
        held.setdefault((schema, name), set()).add(_plain(definition or ""))
    return held


def _plain(definition: str) -> str:
    """One text for what versions of DuckDB print in different ways."""
    definition = re.sub(r"CAST\('([tf])' AS BOOLEAN\)", lambda it: "true" if it[1] == "t" else "false", definition)
    return re.sub(r"\bmain\.(?=list_value\()", "", definition)


def _problems(kind: str, held: Listed, expected: Listed) -> Iterator[str]:
    for schema, name in sorted(held.keys() - expected.keys()):
        where = "" if schema in ("main", "") else f" in the schema {printable(schema, 60)!r}"
        yield f"holds a {kind} {printable(name, 60)!r}{where}, which schema.sql does not make"
    for _, name in sorted(expected.keys() - held.keys()):
        if kind == "table":
            yield f"lacks the table {name!r}"
    for key in sorted(held.keys() & expected.keys()):
        if kind != "view" and held[key] != expected[key]:
            yield f"holds a {kind} {printable(key[1], 60)!r} that is not that of schema.sql"


def _others(held: Listed, expected: Listed) -> Iterator[Definition]:
    """Views that differ or are missing, and every macro."""
    for one in definitions():
        key = ("main", one.name)
        if one.kind == "macro" or (one.kind == "view" and held.get(key) != expected[key]):
            yield one


def _too_many_rows(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[str]:
    """A file of a few kilobytes can claim a billion rows, which would all be read into memory."""
    most = max(_ROWS_BELIEVED, path.stat().st_size)
    rows = connection.execute(
        f"SELECT table_name, estimated_size FROM system.main.duckdb_tables() WHERE database_name = '{NAME}'"
    ).fetchall()
    for name, count in rows:
        if count is not None and count > most:
            yield f"claims {count:,} rows in the table {printable(name, 60)!r}, more than the file could contain"


def check_version(connection: duckdb.DuckDBPyConnection, path: Path, tables: tuple[Listed, Listed]) -> None:
    """Raises AtlasError if the file is not an atlas, or has another schema.

    The table atlas_info is the same in every version; a different one is not queried.
    """
    held, expected = tables
    key = ("main", "atlas_info")
    if key not in held:
        raise AtlasError(f"{path} is not an atlas: it has no atlas_info.", "Give another `atlas`.")
    if held[key] != expected[key]:
        return
    row = connection.execute(f"SELECT schema_version FROM {NAME}.main.atlas_info LIMIT 1").fetchone()
    version = row[0] if row else None
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        todo = "Upgrade vectors-in-the-wild." if newer else "Run `index rebuild` to bring it up to date."
        raise AtlasError(f"{path} has schema {version}; this version reads schema {SCHEMA_VERSION}.", todo)
