"""Tables, views and macros that SQL can ask, with the comments of schema.sql; every atlas has the same ones."""

from __future__ import annotations

from typing import Any

from indexer.atlas import schema_sql
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


def columns_named(name: str) -> list[dict[str, Any]]:
    """The columns called ``name`` of all tables and views: {table, comment}."""
    return _ask(
        'SELECT table_name AS "table", comment FROM duckdb_columns() WHERE NOT internal AND comment IS NOT NULL '
        "AND schema_name = 'main' AND lower(column_name) = lower(?) ORDER BY table_name",
        name,
    )


def _ask(statement: str, *parameters: str) -> list[dict[str, Any]]:
    """The rows of a statement on a database with nothing but the schema."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        connection.execute(schema_sql())
        cursor = connection.execute(statement, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
