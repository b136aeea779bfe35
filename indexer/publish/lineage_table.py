"""The table ``lineage`` of one base, made from the file that `query lineage --all` left in the atlas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from indexer.publish.tables import Row, Tables

# Of one line of the file, by type; a line that is otherwise is passed over: anybody may have written it.
_TEXTS = ("model", "record_key", "kind", "card", "direction")
_TEXTS_OR_NONE = ("parent", "parent_key", "method", "because")
_MOST_BYTES = 256 << 20


def renew_lineage(tables: Tables, base: str, path: Path) -> None:
    """Make the rows of one base again: those whose models and parents still have the record that was asked."""
    held = {
        model: (model_id, key)
        for model, model_id, key in tables.rows(
            "SELECT model, model_id, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed'", [base]
        )
    }
    tables.run("DELETE FROM lineage WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE base = ?)", [base])
    rows = []
    for line in _lines(path):
        child, parent = held.get(line["model"]), held.get(line["parent"])
        if child is None or child[1] != line["record_key"]:
            continue
        if line["parent_key"] is not None and (parent is None or parent[1] != line["parent_key"]):
            continue
        kept = {name: line[name] for name in _KEPT}
        rows.append(kept | {"model_id": child[0], "parent_id": parent[0] if parent and line["parent_key"] else None})
    tables.insert("lineage", rows)


_KEPT = (
    "record_key",
    "kind",
    "method",
    "coefficient",
    "left",
    "card",
    "direction",
    "because",
    "same",
    "bytes_read",
    "told",
)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for raw in text.splitlines():
        try:
            line = json.loads(raw)
            told = datetime.fromisoformat(line["told"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if _is_sound(line):
            yield line | {"told": told}


def _is_sound(line: Row) -> bool:
    numbers = [line.get(name) for name in ("coefficient", "left")]
    same, spent = line.get("same"), line.get("bytes_read")
    return (
        all(isinstance(line.get(name), str) for name in _TEXTS)
        and all(line.get(name, 0) is None or isinstance(line.get(name), str) for name in _TEXTS_OR_NONE)
        and all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in numbers)
        and isinstance(same, list)
        and all(isinstance(one, str) for one in same)
        and isinstance(spent, int)
        and 0 <= spent < 2**62
    )
