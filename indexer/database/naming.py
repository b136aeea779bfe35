"""What a person's name for a model or a base means in an open atlas."""

from __future__ import annotations

from indexer.database.connection import Connection
from indexer.errors import AtlasError
from indexer.names import LOCAL, nearest, without_address

_NAMED = 3  # models that an error names, where a name is that of many


def model_ending_in(connection: Connection, name: str) -> str | None:
    """The only listed id that is ``name`` behind its owner; None where there is none, or ``name`` has an owner.

    Raises AtlasError where several are.
    """
    if "/" in name or ":" in name:
        return None
    rows = connection.rows(
        "SELECT DISTINCT model FROM fine_tunes WHERE lower(model) IN (lower($1), lower($2)) "
        "OR ends_with(lower(model), '/' || lower($1)) ORDER BY model",
        [name, LOCAL + name],
    )
    if len(rows) > 1:
        found = ", ".join(row["model"] for row in rows[:_NAMED]) + (" …" if len(rows) > _NAMED else "")
        raise AtlasError(f"{len(rows)} models are called {name}: {found}.", "Give the owner, too: OWNER/NAME.")
    return str(rows[0]["model"]) if rows else None


def base_named(connection: Connection, name: str) -> str:
    """The canonical id of a base by any of its ids, its address, or what only its id has behind its owner.

    Raises AtlasError where there is none.
    """
    rows = connection.rows("SELECT base, aliases FROM bases ORDER BY base")
    typed = without_address(name).partition("@")[0].lower()
    for row in rows:
        if typed in {other.lower() for other in (row["base"], *row["aliases"])}:
            return str(row["base"])
    ending = [str(row["base"]) for row in rows if row["base"].lower().endswith(f"/{typed}")]
    if len(ending) == 1:
        return ending[0]
    known = ", ".join(row["base"] for row in rows) or "none"
    near = nearest(typed, [row["base"] for row in rows])
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Add it: `build({name!r})`"
    raise AtlasError(f"{name!r} is not a base of this atlas; its bases: {known}.", hint)
