"""Records of planted changes and of ordinary trainings, and what the tests of kinds make of them."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from indexer.errors import ModelError
from indexer.records.kinds.change import Subject
from indexer.records.kinds.label import OF_SKIPPED, TESTS, change_of
from indexer.records.record import Record
from studies.kinds.changes import PLANTED, Planted
from studies.kinds.weights import Reader, Weights

ORDINARY = "ordinary"
# Ordinary models are also read as uploads in half precision.
UPLOADS = (torch.float16, torch.bfloat16)


def dtype_name(dtype: torch.dtype) -> str:
    """float16."""
    return str(dtype).removeprefix("torch.")


def described(record: Record) -> dict[str, Any]:
    """The label of a record, its probability, its evidence, and the score of each test."""
    change = change_of(record)
    assert change is not None
    scores = {}
    if record.signs is not None:
        subject = Subject(record, record.signs)
        scores = {test.kind: round(test.score(subject), 6) for test in TESTS}
    return {
        "label": change.kind,
        "probability": round(change.probability, 4),
        "evidence": change.evidence,
        "scores": scores,
    }


def outcome_of(error: ModelError) -> dict[str, Any]:
    """The label of a model that a build skips, by the reason."""
    label = OF_SKIPPED.get(error.reason, "")
    return {"label": label, "probability": None, "evidence": error.detail, "scores": {label: 1.0} if label else {}}


def ordinary(reader: Reader, folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """A row for each ordinary fine-tune, as it is and as uploads in half precision. What is not one is left out."""
    for folder in folders:
        try:
            record = reader.record(folder)
        except ModelError:
            continue
        if record.is_adapter or record.is_copy or (record.base_cosine or 0.0) < 0.3:
            continue
        yield {"kind": ORDINARY, "change": "as it is", "model": folder.name, **described(record)}
        weights = Weights.read(folder)
        for dtype in UPLOADS:
            if record.precision not in (dtype_name(dtype), "bfloat16"):
                record_of_upload = reader.record_of(weights, dtype)
                if not record_of_upload.is_copy:
                    name = dtype_name(dtype)
                    yield {"kind": ORDINARY, "change": name, "model": folder.name, **described(record_of_upload)}


def planted(reader: Reader, base: Weights, trained: Sequence[Weights], each: int) -> Iterator[dict[str, Any]]:
    """At least ``each`` rows for each planted change: of the base, and of fine-tunes where that makes sense."""
    for name, plan in PLANTED.items():
        rounds = -(-each // len(plan.strengths))
        for turn in range(rounds):
            for strength in plan.strengths:
                yield one_planted(reader, base, trained, name, plan, strength, turn)


def one_planted(
    reader: Reader, base: Weights, trained: Sequence[Weights], name: str, plan: Planted, strength: float, turn: int
) -> dict[str, Any]:
    """One planted change: in the base at even turns, else in a fine-tune; saved in float32, float16 or bfloat16."""
    random = torch.Generator().manual_seed(zlib.crc32(f"{reader.name} {name} {strength} {turn}".encode()))
    is_on_trained = plan.on_trained and turn % 2 == 1 and bool(trained)
    origin = trained[(turn // 2) % len(trained)] if is_on_trained else base
    dtype = (torch.float32, torch.float32, torch.float16, torch.bfloat16)[turn % 4]
    changed = plan.change(origin, random, strength)
    try:
        result = described(reader.record_of(changed, dtype))
    except ModelError as error:
        result = outcome_of(error)
    return {
        "kind": plan.kind, "change": name, "strength": strength, "dtype": dtype_name(dtype),
        "on": "fine-tune" if is_on_trained else "base", **result,
    }  # fmt: skip


def checkpoints_in(folder: Path) -> list[Path]:
    """The repositories of a family that hold full checkpoints."""
    return sorted(path.parent for path in folder.glob("*/*/model.safetensors"))


def remove(folder: Path) -> None:
    """Remove a working folder."""
    shutil.rmtree(folder, ignore_errors=True)
