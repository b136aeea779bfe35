"""The table ``predictions`` of one base, made from the file that `query predict --store` left in the atlas."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from indexer.publish.fitting import Fitting
from indexer.publish.tables import Tables
from indexer.publish.told_lines import read_told

_KEPT = (
    "record_key", "rank", "dataset", "probability", "votes", "agreement", "authors", "vectors", "head", "declared",
    "calibrated", "models", "representation", "k", "answered_at",
)  # fmt: skip


def renew_predictions(tables: Tables, base: str, path: Path, fitting: Fitting) -> None:
    """Make the rows of one base again: those whose models still have the record that was asked.

    A line that does not fit the table is passed over: anybody may have written it.
    """
    held = tables.indexed(base)
    tables.delete_of_base("predictions", base)
    rows = []
    for line in read_predictions(path)[0]:
        found = held.get(line["model"])
        if found is not None and found[1] == line["record_key"]:
            rows.append({name: line[name] for name in _KEPT} | {"model_id": found[0]})
    tables.insert("predictions", fitting.those_that_fit("predictions", rows))


def read_predictions(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines that can be read, with ``answered_at`` as a time, and what is wrong with the others."""
    return read_told(path, _checked)


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Raises one of WRONG_KINDS where it is not what this program writes."""
    if not line.keys() >= {"model", *_KEPT} or not isinstance(line["model"], str):
        raise ValueError("it is no line of a prediction")
    return line | {"answered_at": datetime.fromisoformat(line["answered_at"])}
