"""Models of a listing that fulfil a condition in SQL, before any of their weights are read."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.atlas import schema_sql
from indexer.database.secure_connection import in_memory
from indexer.database.validation import InvalidValue
from indexer.errors import BadArgument
from indexer.listing.listing import ListedModel
from indexer.network.rows import commit_of
from indexer.publish.rows import Entry, valid_listing_rows
from indexer.publish.tables import Row, Tables

_MATCHING = """
SELECT model_id FROM (
    SELECT fine_tunes.*, coalesce(data.datasets, []) AS datasets, coalesce(tagged.tags, []) AS tags
    FROM fine_tunes
    LEFT JOIN (SELECT model_id, list(DISTINCT dataset) AS datasets FROM model_datasets GROUP BY model_id) AS data
        USING (model_id)
    LEFT JOIN (SELECT model_id, list(tag) AS tags FROM tags GROUP BY model_id) AS tagged USING (model_id)
) WHERE (
{condition}
)
"""


def matching(models: Sequence[ListedModel], base: str, condition: str) -> list[ListedModel]:
    """Those of ``models`` for which ``condition`` is true: SQL on the columns of ``fine_tunes`` that a listing fills.

    ``datasets`` and ``tags`` are lists. Raises BadArgument if the condition cannot be run.
    """
    import duckdb

    tables: dict[str, list[Row]] = {"fine_tunes": [], "model_datasets": [], "tags": []}
    for number, model in enumerate(models):
        try:
            rows = valid_listing_rows(number, Entry(model, base, commit_of(model.row)))
        except InvalidValue:  # a publish says so
            continue
        for name, rows_of_table in tables.items():
            rows_of_table += rows[name]
    connection = in_memory(schema_sql())
    try:
        staged = Tables(connection)
        for name, rows_of_table in tables.items():
            staged.insert(name, rows_of_table)
        numbers = {number for (number,) in staged.rows(_MATCHING.format(condition=condition))}
    except duckdb.Error as error:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = "It is SQL on the listing, for example: author = 'me' AND list_contains(datasets, 'glue')"
        raise BadArgument(f"`where` cannot be run: {text.partition(' Error: ')[2] or text}", hint) from error
    finally:
        connection.close()
    return [model for number, model in enumerate(models) if number in numbers]


def check_condition(condition: str) -> None:
    """Raise BadArgument for a condition that cannot be run, before anything is listed."""
    matching((), "", condition)
