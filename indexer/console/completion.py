"""Shell completion of models, bases and representations, from the atlas that the command line names.

Completion must be fast and silent: nothing heavy is imported, and errors complete nothing.
"""

from __future__ import annotations

from functools import partial

import click

from indexer.atlas import AtlasFolder
from indexer.database.connection import NOT_A_FAILED_ADD
from indexer.errors import AtlasError
from indexer.sources.registry import is_model_id

_MOST = 100


def _complete(statement: str, context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from indexer.database.reading import Reading

    try:
        folder = AtlasFolder(context.params.get("atlas") or "atlas").require()
        with Reading(folder.database) as connection:
            names = [str(row["name"]) for row in connection.rows(f"{statement} LIMIT {_MOST}", [typed])]
    except (AtlasError, OSError):
        return []
    # A shell inserts them unquoted: in an atlas from elsewhere, a name could contain a command.
    return [name for name in names if is_model_id(name)]


# Ids that begin with the typed text, or whose name after the owner does.
complete_model = partial(
    _complete,
    "SELECT DISTINCT model AS name FROM fine_tunes "
    f"WHERE (starts_with(lower(model), lower($1)) AND {NOT_A_FAILED_ADD}) OR "
    "(status = 'indexed' AND contains(lower(model), '/' || lower($1))) ORDER BY model",
)
complete_base = partial(
    _complete, "SELECT base AS name FROM bases WHERE contains(lower(base), lower($1)) ORDER BY base"
)
complete_representation = partial(
    _complete,
    "SELECT DISTINCT representation AS name FROM representations WHERE starts_with(representation, $1) ORDER BY ALL",
)
