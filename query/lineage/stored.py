"""Lineage that is kept: from answers to the lines that the atlas's one writer keeps, and back to edges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from query.lineage.edges import Edge

if TYPE_CHECKING:
    from query.lineage.answer import Lineage
    from query.reader import AtlasReader


def store(atlas: AtlasReader, base: str, told: Sequence[Lineage]) -> int:
    """Keep these answers in the atlas, in place of what it kept of the base; how many rows that is.

    The query layer only reads: the lines are handed to the indexer, which alone writes, behind its lock. ``atlas``
    then shows the new generation. Raises AtlasError where somebody else is writing.
    """
    from indexer.publish.told import store_lineage

    keys = {
        row["model"]: row["record_key"]
        for row in atlas.rows("SELECT model, record_key FROM models WHERE base = ?", [base])
    }
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    lines: list[dict[str, Any]] = [
        {
            "model": one.model,
            "record_key": keys[one.model],
            "parent": row.parent if row.parent_id is not None else None,
            "parent_key": keys.get(row.parent) if row.parent is not None and row.parent_id is not None else None,
            "kind": row.kind,
            "method": row.method,
            "coefficient": row.coefficient,
            "left": row.left,
            "card": row.card,
            "direction": row.direction,
            "because": row.because,
            "same": list(row.same),
            "bytes_read": one.bytes_read,
            "told": now,
        }
        for one in told
        if one.model in keys
        for row in one.rows
    ]
    store_lineage(atlas.folder, base, lines)
    atlas.refresh()
    return len(lines)


def stored_edges(atlas: AtlasReader, base: str) -> list[Edge]:
    """What is kept of a base, by names."""
    rows = atlas.rows(
        "SELECT parent.model AS parent, child.model AS child, lineage.kind, lineage.coefficient, "
        'lineage."left", lineage.card, lineage.direction FROM lineage '
        "JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = lineage.parent_id "
        "WHERE child.base = ? ORDER BY child.created, child.model, parent.model",
        [base],
    )
    return [Edge(**row) for row in rows]
