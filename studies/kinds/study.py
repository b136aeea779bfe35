"""Records of planted changes and of ordinary trainings, and what the tests of kinds make of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from indexer.errors import ModelError
from indexer.records.kinds.change import Subject
from indexer.records.kinds.label import OF_SKIPPED, TESTS, change_of
from indexer.records.record import Record
from scripts.family.store import EXPECTED, RECORD, STARTED, read_json
from studies.kinds.changes import PLANTED, Planted
from studies.kinds.trainings import LORAS, RECIPES, all_trained
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
    """A row for each ordinary fine-tune, as it is and as uploads in half precision."""
    for folder in folders:
        record, weights = reader.record(folder), Weights.read(folder)
        records = {record.precision: record}
        for dtype in UPLOADS:
            if record.precision == "float32":
                records[dtype_name(dtype)] = reader.record_of(weights, dtype)
        for name, made in records.items():
            if not made.is_copy:
                row = {"kind": ORDINARY, "change": "family", "strength": folder.name, "dtype": name, "on": "base"}
                yield row | described(made)


def recipes(reader: Reader, folder: Path, base: Weights, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row for each training by ``RECIPES``, as each dtype stores it, and for each LoRA that is trained and merged.

    A change that the dtype loses is left out.
    """
    for kind, chosen in ((ORDINARY, RECIPES), ("adapter merged", LORAS)):
        for name, weights in all_trained(folder, base, chosen, seeds):
            for dtype in (torch.float32, *UPLOADS):
                record = reader.record_of(weights, dtype)
                if not record.is_copy:
                    yield {
                        "kind": kind, "change": name if kind == ORDINARY else "trained LoRA merged", "strength": name,
                        "dtype": dtype_name(dtype), "on": "base", **described(record),
                    }  # fmt: skip


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


def base_of(family: Path) -> Path:
    """The folder of a family's base."""
    described = read_json(family / RECORD) or read_json(family / STARTED)
    return family / str(described["base"])


def fine_tunes_in(family: Path) -> list[Path]:
    """The repositories of a family that hold ordinary full fine-tunes of its base."""
    base, expected = base_of(family), read_json(family / EXPECTED)
    found = []
    for path in sorted(family.glob("*/*/model.safetensors")):
        entry = expected.get(path.parent.relative_to(family).as_posix(), {})
        is_ordinary = entry.get("outcome", "indexed") == "indexed" and entry.get("flag") in (None, "duplicate")
        if path.parent != base and is_ordinary and "from-scratch" not in path.parent.name:
            found.append(path.parent)
    return found
