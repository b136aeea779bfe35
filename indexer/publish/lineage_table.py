"""The table ``lineage`` of one base, made from the file that `query lineage --all` left in the atlas."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.publish.fitting import Fitting
from indexer.publish.tables import Tables
from indexer.publish.told_lines import read_told

_KEPT = (
    "record_key",
    "kind",
    "method",
    "coefficient",
    "left",
    "card",
    "direction",
    "evidence",
    "same",
    "bytes_read",
    "answered_at",
    "probability",
)
_NUMBERS = ("coefficient", "left")
_NAMES = ("model", "record_key", "parent", "parent_key", "kind", "method", "card", "direction", "evidence")
_KEYS = frozenset((*_NAMES, *_NUMBERS, "same", "bytes_read", "answered_at"))


def read_lineage(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines that can be read, with ``answered_at`` as a time (UTC, naive), and what is wrong with the others."""
    return read_told(path, _checked)


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Raises one of WRONG_KINDS where it is not what this program writes."""
    if not line.keys() >= _KEYS:
        raise ValueError("it is no line of a lineage")
    if not all(line[name] is None or isinstance(line[name], str) for name in _NAMES):
        raise ValueError("a name that is none")
    answered = datetime.fromisoformat(line["answered_at"])
    if answered.tzinfo is not None:
        answered = answered.astimezone(UTC).replace(tzinfo=None)
    # Lines of version 0.1 and before have no probability.
    probability = line.get("probability")
    numbers = {name: float(line[name]) for name in _NUMBERS}
    return (
        line | numbers | {"answered_at": answered, "probability": None if probability is None else float(probability)}
    )


def renew_lineage(tables: Tables, base: str, path: Path, fitting: Fitting) -> None:
    """Make the rows of one base again: those whose models and parents still have the record that was asked.

    A line that cannot be read, or does not fit the table, is passed over: anybody may have written it.
    """
    lines, _ = read_lineage(path)
    held = {
        model: (model_id, key)
        for model, model_id, key in tables.rows(
            "SELECT model, model_id, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed'", [base]
        )
    }
    tables.run("DELETE FROM lineage WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?)", [base])
    rows = []
    for line in lines:
        child, parent = held.get(line["model"]), held.get(line["parent"])
        if child is None or child[1] != line["record_key"]:
            continue
        if line["parent_key"] is not None and (parent is None or parent[1] != line["parent_key"]):
            continue
        kept = {name: line[name] for name in _KEPT}
        rows.append(kept | {"model_id": child[0], "parent_id": parent[0] if parent and line["parent_key"] else None})
    tables.insert("lineage", fitting.those_that_fit("lineage", rows))
