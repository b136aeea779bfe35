"""Which adapters began with random numbers that are not known, and what to do about it."""

from __future__ import annotations

from indexer.database.connection import Connection
from indexer.errors import Call, Text
from indexer.records.adapter_start import DRAWN_KINDS

# SQL on the view models: adapters of the base itself whose factors were drawn, and it is not known from what.
UNKNOWN = "start IS NULL AND vector_group = 'adapter by output' AND adapter_kind IN ({})".format(
    ", ".join(f"'{kind}'" for kind in DRAWN_KINDS)
)


def unknown_starts(connection: Connection, base: str) -> str:
    """A sentence with the number of these adapters; "" if there is none."""
    counts = connection.rows(
        f"SELECT count(*) FILTER ({UNKNOWN}) AS unknown, count(*) AS adapters FROM models "
        "WHERE base = ? AND relation = 'adapter'",
        [base],
    )[0]
    if not counts["unknown"]:
        return ""
    return Text(
        f"{counts['unknown']:,} of {counts['adapters']:,} adapters began with random numbers that are not known: "
        "they are compared by their output sides. ",
        Call("find_starts", base=base),
        " searches further",
    )
