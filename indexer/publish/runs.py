"""Checkpoints of one training run: which models of a base belong together, and in which order.

Four facts identify a run: the folder or file that the source reports, the repository's name without its number, the id
that a tool gave the run, and the start of its log, which all checkpoints of a run share.
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
class RunCheckpoint:
    """The facts that identify a model's run and its position in the run.

    ``key``: of its folder or file; ``number``: that in its name; ``run_id``: given by a tool; ``log``: its first
    entries.
    """

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
        RunCheckpoint(*(*row[:7], _log_of(row[7])))
        for row in tables.rows(
            "SELECT model_id, author, run_key, checkpoint_number, step, epoch, training->>'run_id', training->>'log' "
            "FROM fine_tunes JOIN records USING (model_id) WHERE base = ? AND status = 'indexed' ORDER BY model_id",
            [base],
        )
    ]
    changes = []
    for run in runs_of(models):
        is_alone = len(run) == 1
        for position, model in enumerate(run, 1):
            changes.append({
                "model_id": model.model_id,
                "run_group": None if is_alone else min(checkpoint.model_id for checkpoint in run),
                "run_place": None if is_alone else position,
                "is_earlier_checkpoint": position < len(run),
            })  # fmt: skip
    columns = {"run_group": "INTEGER", "run_place": "INTEGER", "is_earlier_checkpoint": "BOOLEAN"}
    tables.update("records", columns, changes)


def runs_of(models: Sequence[RunCheckpoint]) -> list[list[RunCheckpoint]]:
    """The runs of models, each from its first checkpoint to its last; a model without others is a run of one."""
    groups = UnionFind([Upload(model.model_id, None, ()) for model in models])
    for first, second in _pairs(models):
        groups.join(first.model_id, second.model_id)
    members: dict[int, list[RunCheckpoint]] = {}
    for model in models:
        members.setdefault(groups.find(model.model_id), []).append(model)
    return [_in_order(run) for run in members.values()]


def _log_of(text: str | None) -> Sequence[Any]:
    """The start of a log, from untrusted JSON; () if it is malformed."""
    try:
        log = json.loads(text or "[]")
    except ValueError:
        return ()
    is_log = isinstance(log, list) and all(isinstance(entry, list) and len(entry) == 3 for entry in log)
    return log if is_log and all(isinstance(number, int | float | None) for entry in log for number in entry) else ()


def _pairs(models: Sequence[RunCheckpoint]) -> Iterator[tuple[RunCheckpoint, RunCheckpoint]]:
    """Pairs of models of one author and one run; each model is in a few pairs only."""
    first_of: dict[tuple[str, str, Any], RunCheckpoint] = {}
    by_start: dict[tuple[str, Any], list[RunCheckpoint]] = {}
    for model in models:
        for kind, value in (("key", model.key), ("id", model.run_id)):
            if value:
                first = first_of.setdefault((model.author, kind, value), model)
                if first is not model:
                    yield first, model
        if model.log:
            same_start = by_start.setdefault((model.author, tuple(model.log[0])), [])
            yield from ((earlier, model) for earlier in same_start if _is_same_log(earlier.log, model.log))
            same_start.append(model)


def _is_same_log(log: Sequence[Any], other_log: Sequence[Any]) -> bool:
    common = min(len(log), len(other_log))
    has_gradient = log[0][2] is not None and other_log[0][2] is not None
    return list(log[:common]) == list(other_log[:common]) and (common >= _FEWEST_ENTRIES or has_gradient)


def _in_order(run: Sequence[RunCheckpoint]) -> list[RunCheckpoint]:
    """The checkpoints from the first to the last: by their steps, if all are known, else by the numbers in names."""
    if all(model.step is not None for model in run):
        return sorted(run, key=lambda model: (model.step or 0, model.number is None, model.number or 0, model.model_id))
    if any(model.number is not None for model in run) or not all(model.epoch is not None for model in run):
        return sorted(run, key=lambda model: (math.inf if model.number is None else model.number, model.model_id))
    return sorted(run, key=lambda model: (model.epoch or 0.0, model.model_id))
