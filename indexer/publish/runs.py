"""Checkpoints of one training run: which models of a base belong together, and in which order.

They are known by what their source says of their folder or file, by the name of a repository without its number, by the
id that a tool gave the run, and by the start of its log, which checkpoints of one run share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from indexer.publish.duplicates import UnionFind, Upload
from indexer.publish.tables import Tables

# Entries of a log that must agree, unless one has the norm of the gradient: a loss has four digits.
_FEWEST_ENTRIES = 2


@dataclass(frozen=True)
class _Model:
    model_id: int
    author: str
    key: str | None
    number: int | None
    step: int | None
    epoch: float | None
    run_id: str | None
    log: Sequence[Any]


def renew_runs(tables: Tables, base: str) -> None:
    """Rewrite the runs of a base, where they have changed."""
    models = [
        _Model(*(*row[:7], _log_of(row[7])))
        for row in tables.rows(
            "SELECT model_id, author, run_key, checkpoint_number, step, epoch, training->>'run_id', training->>'log' "
            "FROM fine_tunes JOIN records USING (model_id) WHERE base = ? AND status = 'indexed' ORDER BY model_id",
            [base],
        )
    ]
    groups = UnionFind([Upload(one.model_id, None, ()) for one in models])
    for first, second in _pairs(models):
        groups.join(first.model_id, second.model_id)
    members: dict[int, list[_Model]] = {}
    for one in models:
        members.setdefault(groups.find(one.model_id), []).append(one)
    changes = []
    for run in members.values():
        ordered = _in_order(run)
        for place, one in enumerate(ordered, 1):
            is_alone = len(run) == 1
            changes.append({
                "model_id": one.model_id,
                "run_group": None if is_alone else min(each.model_id for each in run),
                "run_place": None if is_alone else place,
                "is_earlier_checkpoint": place < len(run),
            })  # fmt: skip
    columns = {"run_group": "INTEGER", "run_place": "INTEGER", "is_earlier_checkpoint": "BOOLEAN"}
    tables.update("records", columns, changes)


def _log_of(text: str | None) -> Sequence[Any]:
    """The start of a log, as JSON that somebody may have written; () for anything else."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return ()
    is_log = isinstance(found, list) and all(isinstance(one, list) and len(one) == 3 for one in found)
    return found if is_log and all(isinstance(n, int | float | None) for one in found for n in one) else ()


def _pairs(models: Sequence[_Model]) -> Iterator[tuple[_Model, _Model]]:
    """Pairs of models of one author and one run; each model is in few."""
    first_of: dict[tuple[str, str, Any], _Model] = {}
    by_start: dict[tuple[str, Any], list[_Model]] = {}
    for one in models:
        for kind, value in (("key", one.key), ("id", one.run_id)):
            if value:
                first = first_of.setdefault((one.author, kind, value), one)
                if first is not one:
                    yield first, one
        if one.log:
            others = by_start.setdefault((one.author, tuple(one.log[0])), [])
            yield from ((other, one) for other in others if _is_one_log(other.log, one.log))
            others.append(one)


def _is_one_log(log: Sequence[Any], other: Sequence[Any]) -> bool:
    common = min(len(log), len(other))
    has_gradient = log[0][2] is not None and other[0][2] is not None
    return list(log[:common]) == list(other[:common]) and (common >= _FEWEST_ENTRIES or has_gradient)


def _in_order(run: Sequence[_Model]) -> list[_Model]:
    """The checkpoints from the first to the last: by their steps, if all are known, else by the numbers in names."""
    if all(one.step is not None for one in run):
        return sorted(run, key=lambda one: (one.step or 0, one.number is None, one.number or 0, one.model_id))
    if any(one.number is not None for one in run) or not all(one.epoch is not None for one in run):
        return sorted(run, key=lambda one: (math.inf if one.number is None else one.number, one.model_id))
    return sorted(run, key=lambda one: (one.epoch or 0.0, one.model_id))
