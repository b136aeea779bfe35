"""The tables of a published database, read to the last column: what cannot be read, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator

from indexer.database.connection import Connection
from indexer.errors import AtlasError
from indexer.publish.database_checksum import HINT

# Where a column names a row of another table: table, column, the condition on that row.
_REFERENCES = (
    *(
        (table, "model_id")
        for table in ("records", "tags", "model_datasets", "evaluations", "deltas", "fused_matrices", "predictions")
    ),
    ("neighbours", "model_id"),
    ("neighbours", "neighbour_id"),
)
_OF_BASES = (
    "fine_tunes",
    "representations",
    "rejected_listing_rows",
    "internal.segments",
    "internal.removed_vectors",
    "internal.compressed_indexes",
)


def problems_of_tables(connection: Connection) -> Iterator[tuple[str, str]]:
    """(table or model, what is wrong with it). Every value of every column is read on the way.

    Raises AtlasError where the catalogue itself is damaged.
    """
    tables = [
        name if schema == "main" else f"{schema}.{name}"
        for schema, name in connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = current_database() "
            "AND NOT internal ORDER BY ALL"
        ).fetchall()
    ]
    unreadable = set()
    for name in tables:
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in name.split(".", 1))
        try:
            # What is not used is not read: a hash of whole rows uses every value.
            connection.execute(f"SELECT bit_xor(hash(one)) FROM {quoted} AS one").fetchall()
        except AtlasError as error:
            unreadable.add(name)
            yield name, damaged_in_words(error)
    for model, base in connection.execute(
        "SELECT model, base FROM fine_tunes GROUP BY model, base HAVING count(*) > 1 ORDER BY ALL"
    ).fetchall():
        yield model, f"has several rows for {base}: {HINT}"
    for table, column, others, key in _checked(set(tables) - unreadable):
        ((count,),) = connection.execute(
            f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {others})"
        ).fetchall()
        if count:
            yield table, f"{count} rows name a {column} that {others} has not: {HINT}"


def _checked(tables: set[str]) -> Iterator[tuple[str, str, str, str]]:
    references = [(table, column, "fine_tunes", "model_id") for table, column in _REFERENCES]
    references += [(table, "base", "bases", "base") for table in _OF_BASES]
    return (one for one in references if {one[0], one[2]} <= tables)


def damaged_in_words(error: Exception) -> str:
    """One sentence for what DuckDB says of a damaged file, and what mends it."""
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return f"is damaged: {first[:200]}; {HINT}"
