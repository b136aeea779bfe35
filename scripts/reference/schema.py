"""Tables, views and macros of the database, from schema.sql and its comments."""

from __future__ import annotations

import re

import duckdb

from indexer.atlas import SCHEMA_VERSION
from indexer.database.catalog import comment_statements, definitions
from scripts.reference.markup import cell, prose

_HEAD = f"""\
# Tables and views

Written by `python -m scripts.reference` from the comments of schema.sql, which `query schema` prints too. This is version
{SCHEMA_VERSION} of the schema. Ask with `query sql`, or open `atlas.duckdb` with any client of DuckDB.
"""
_TITLES = {"table": "Tables", "view": "Views", "macro": "Macros"}
_PARAMETERS = re.compile(r"CREATE MACRO (\w+\([^)]*\))")


def page() -> str:
    """The text of the page: what is for queries, without the schema ``internal``."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        for definition in definitions():
            connection.execute(definition.statement)
            for statement in comment_statements()[definition.name]:
                connection.execute(statement)
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() "
            "WHERE NOT internal AND schema_name = 'main' ORDER BY column_index"
        ).fetchall()
    parts = [_HEAD]
    for kind, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        for definition in definitions():
            if definition.kind == kind and "." not in definition.name:
                parts.append(f"\n### {definition.name}\n\n{prose(definition.comment)}\n")
                if match := _PARAMETERS.search(definition.statement):
                    parts.append(f"\n```sql\n{' '.join(match[1].split())}\n```\n")
                rows = [
                    f"| `{name}` | {cell(kind_of.lower())} | {cell(about or '')} |\n"
                    for table, name, kind_of, about in columns
                    if table == definition.name
                ]
                if rows:
                    parts.append("\n| column | type | |\n|---|---|---|\n" + "".join(rows))
    return "".join(parts)
