"""Lineage that is kept: from answers to the lines that the atlas's one writer keeps, and back to answers and edges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from query.lineage.answer import Lineage, Row
from query.lineage.card import against_card, declared_by
from query.lineage.edges import Edge
from query.lineage.links import UNRELATED

if TYPE_CHECKING:
    from query.reader import AtlasReader


def store(atlas: AtlasReader, base: str, told: Sequence[Lineage]) -> int:
    """Keep these answers in the atlas, in place of what it kept of their models; how many rows that is.

    An answer with a ``failure`` is passed over: what the atlas keeps of that model stays. The query layer only reads:
    the lines are handed to the indexer, which alone writes, behind its lock. ``atlas`` then shows the new generation.
    Raises AtlasError where somebody else is writing.
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
            "evidence": row.because,
            "same": list(row.same),
            "bytes_read": one.bytes_read,
            "answered_at": now,
            "probability": row.probability,
        }
        for one in told
        if one.model in keys and not one.failure
        for row in one.rows
    ]
    if lines:
        store_lineage(atlas.folder, base, {line["model"] for line in lines}, lines)
        atlas.refresh()
    return len(lines)


def stored_lineage(atlas: AtlasReader, model_id: int) -> Lineage | None:
    """The answer that the atlas keeps of a model (``query lineage --all``), with its date; no weights are read.

    None where it keeps none, or one of a version that gave no probabilities.
    """
    rows = atlas.rows(
        "SELECT child.model AS child, child.base, parent.model AS parent, lineage.* FROM lineage "
        "JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id WHERE lineage.model_id = ? "
        "ORDER BY coefficient DESC, parent_id",
        [model_id],
    )
    if not rows or any(row["probability"] is None for row in rows):
        return None
    found = tuple(
        Row(
            parent=row["parent"] or (None if row["kind"] == UNRELATED else row["base"]),
            kind=row["kind"],
            coefficient=row["coefficient"],
            left=row["left"],
            card=row["card"],
            method=row["method"],
            direction=row["direction"],
            because=row["evidence"] or "",
            same=tuple(row["same"]),
            parent_id=row["parent_id"],
            probability=row["probability"],
        )
        for row in rows
    )
    model, base, told = rows[0]["child"], rows[0]["base"], rows[0]["answered_at"]
    names = {name for row in found for name in (row.parent, *row.same) if name}
    return Lineage(
        model=model,
        base=base,
        model_id=model_id,
        rows=found,
        bytes_read=0,
        models_read=0,
        notes=(
            f"The atlas keeps this answer of {told:%Y-%m-%d}; to read the weights again: `fresh=True`.",
            *against_card(atlas, model, declared_by(atlas, model_id, base), names, base),
        ),
        told=told,
    )


def stored_edges(atlas: AtlasReader, base: str) -> list[Edge]:
    """What is kept of a base, by names."""
    rows = atlas.rows(
        "SELECT parent.model AS parent, child.model AS child, lineage.kind, lineage.coefficient, "
        'lineage."left", lineage.card, lineage.direction, lineage.probability FROM lineage '
        "JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = lineage.parent_id "
        "WHERE child.base = ? ORDER BY child.created, child.model, parent.model",
        [base],
    )
    return [Edge(**row) for row in rows]
