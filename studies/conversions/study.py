"""Planted conversions: how often the source comes first and is proved, and what is said where it is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import BaseMatrices, store_base
from indexer.deltas.conversions.rows import ConversionRows, Rows
from indexer.deltas.conversions.source import Candidate, SourceSearch, find_source, opened_once
from indexer.deltas.vectorise import vectorise
from indexer.records.conversion import CONSISTENT, DIFFERS, EXACTLY, UNKNOWN, ConversionSource
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.registry import ModelRef
from studies.conversions import families, writers
from studies.conversions.families import Weights

BASE, COMMIT = "org/base", "c" * 40
# What llama.cpp's recipe of this name gives these matrices, without an importance matrix.
Q4_K_M = {"": "Q4_K", "ffn_down": "Q6_K", "attn_v": "Q6_K", "token_embd": "Q6_K"}
FORMATS: Mapping[str, str | Mapping[str, str]] = {
    "Q8_0": "Q8_0", "Q5_0": "Q5_0", "Q4_K_M": Q4_K_M, "Q4_0": "Q4_0",
}  # fmt: skip
CALIBRATED: Mapping[str, Callable[..., Path]] = {
    "GPTQ": partial(writers.write_gptq, group=64, order=True), "AWQ": writers.write_awq,
}  # fmt: skip


@dataclass
class Family:
    """A base, fine-tunes of it at one distance in files, and their records, as an atlas would have them."""

    config: Mapping[str, Any]
    folder: Path
    weights: Weights
    base: Path
    tuned: dict[str, Weights] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)

    @classmethod
    def plant(cls, model_type: str, distance: float, count: int, folder: Path) -> Family:
        """``count`` fine-tunes at ``distance``, of which the last quarter continue the first by a tenth of it."""
        config = families.config_of(model_type)
        weights = families.base_weights(config, seed=sum(model_type.encode()))
        saved = families.save(folder / "base", config, weights)
        with closing(open_checkpoint(_reference(saved))) as checkpoint:
            path = folder / f"org--base@{COMMIT}.safetensors"
            base = store_base(checkpoint, BASE, COMMIT, path)
        family = cls(config, folder, weights, path)
        continued = count // 4
        for number in range(count):
            name, first = f"org/tuned-{number}", number - (count - continued)
            start = family.tuned[f"org/tuned-{first}"] if first >= 0 else weights
            tuned = families.fine_tune(start, distance / 10 if first >= 0 else distance, number)
            place = families.save(folder / name, config, tuned)
            unit = Unit(ModelRef(str(place), folder=place), COMMIT, BASE, COMMIT, "finetune", Spec(rank=8, sample=True))
            with closing(BaseMatrices(path, resident=False)) as base:
                record = vectorise(unit, base)
            family.tuned[name] = tuned
            opened = partial(opened_once, partial(open_checkpoint, _reference(place)))
            family.candidates[name] = Candidate(name, opened, partial(_given, record))
        return family

    def find(self, path: Path, without: Sequence[str] = (), claimed: Sequence[str] = ()) -> ConversionSource:
        """As a build finds it, among all models but some."""
        among = [candidate for name, candidate in self.candidates.items() if name not in without]
        with (
            closing(open_checkpoint(_reference(path))) as checkpoint,
            closing(BaseMatrices(self.base, resident=False)) as base,
        ):
            return find_source(ConversionRows(checkpoint, base), BASE, among, claimed)

    def search(self, path: Path) -> SourceSearch:
        """The rows of a file with those of the base."""
        with (
            closing(open_checkpoint(_reference(path))) as checkpoint,
            closing(BaseMatrices(self.base, resident=False)) as base,
        ):
            return SourceSearch(ConversionRows(checkpoint, base), BASE)


def _reference(path: Path) -> ModelRef:
    return ModelRef(str(path), folder=path)


def _given(record: Record) -> Record:
    return record


def sources(family: Family, form: str, asked: int) -> dict[str, Any]:
    """Every model as a file of one format, against every model: ranks, proofs and false proofs.

    ``asked``: of how many files the whole search is run as a build runs it.
    """
    names, kind = list(family.tuned), FORMATS[form]
    rows: dict[str, Rows] = {}
    codes: dict[str, list[np.ndarray]] = {}
    first = proved = 0
    false_proofs = pairs = 0
    of_source, of_other, by_records = [], [], 0
    found: list[ConversionSource] = []
    seconds: list[float] = []
    for name in names:
        path = writers.write_gguf(family.folder / "file.gguf", family.config, family.tuned[name], kind)
        search = family.search(path)
        if not rows:
            for other in names:
                with family.candidates[other].open() as checkpoint:
                    rows[other] = {key: value.clone() for key, value in search.conversion.rows_of(checkpoint).items()}
                codes[other] = [_codes(search, rows[other], key) for key in search.keys]
        stored = [search.conversion.stored[key].codes for key in search.keys]
        residuals = {other: _residual(search, rows[other]) for other in names}
        estimates = {other: search.estimated_residual(_record(family, other)) for other in names}
        ranked = sorted(residuals, key=residuals.__getitem__)
        first += ranked[0] == name
        by_records += min(estimates, key=lambda other: estimates[other] or np.inf) == name
        of_source.append(residuals[name])
        of_other.append(min(value for other, value in residuals.items() if other != name))
        for other in names:
            is_proved = all(np.array_equal(*pair) for pair in zip(stored, codes[other], strict=True))
            proved += is_proved and other == name
            false_proofs += is_proved and other != name
            pairs += other != name
        if len(found) < asked:
            began = time.perf_counter()
            found.append(family.find(path))
            seconds.append(time.perf_counter() - began)
    expected = names[: len(found)]
    return {
        "models": len(names), "first": first, "first_by_records": by_records, "proved": proved, "pairs": pairs,
        "false_proofs": false_proofs, "residual": float(np.median(of_source)), "other": float(np.median(of_other)),
        "asked": len(found),
        "right": sum(one.source == name and one.verdict == EXACTLY for one, name in zip(found, expected, strict=True)),
        "seconds": float(np.median(seconds)) if seconds else None,
        "bytes": int(np.median([one.bytes_read for one in found])) if found else None,
        "numbers": sum(stored.values.numel() for stored in search.conversion.stored.values()),
    }  # fmt: skip


def _codes(search: SourceSearch, rows: Rows, key: Any) -> np.ndarray:
    again = search.conversion.stored[key].quantised(rows[key].float())
    assert again is not None
    return again.codes


def _residual(search: SourceSearch, rows: Rows) -> float:
    """‖D − δ‖ / ‖D‖."""
    square = sum(
        float((search.differences[key] - (rows[key].float() - search.conversion.base_rows[key])).square().sum())
        for key in search.keys
    )
    return float(np.sqrt(square / search.total))


def _record(family: Family, name: str) -> Record:
    record = family.candidates[name].record()
    assert record is not None
    return record


def absent(family: Family, form: str, count: int) -> dict[str, Any]:
    """Files whose source is not among the candidates, and files of which the base alone is known."""
    said = {EXACTLY: 0, CONSISTENT: 0, DIFFERS: 0, UNKNOWN: 0}
    alone = 0
    for number in range(count):
        weights = families.fine_tune(family.weights, _distance(family), 10_000 + number)
        path = writers.write_gguf(family.folder / "file.gguf", family.config, weights, FORMATS[form])
        said[family.find(path).verdict] += 1
        found = family.find(path, without=list(family.candidates))
        alone += (found.base, found.source, found.verdict) == (BASE, None, UNKNOWN)
    return {"models": count, "unknown": said[UNKNOWN], "alone": alone}


def _distance(family: Family) -> float:
    name = next(name for name in family.weights if "q_proj" in name)
    tuned = next(iter(family.tuned.values()))
    return float(np.linalg.norm(tuned[name] - family.weights[name]) / np.linalg.norm(family.weights[name]))


def tampered(family: Family, form: str, count: int, seed: int = 0) -> dict[str, Any]:
    """One tensor of each file changed: taken from another fine-tune, scaled by 1 %, or with noise of 1 %."""
    rng = np.random.default_rng(seed)
    names = [name for name, weight in family.weights.items() if weight.ndim == 2]
    found_exactly = 0
    for number in range(count):
        source, other = rng.choice(list(family.tuned)[: len(family.tuned) // 2], 2, replace=False)
        tensor = str(rng.choice(names))
        weights = dict(family.tuned[str(source)])
        weight = weights[tensor]
        kinds = (
            family.tuned[str(other)][tensor], weight * np.float32(1.01),
            weight + (0.01 * np.sqrt(np.mean(weight**2)) * rng.normal(size=weight.shape)).astype(np.float32),
        )  # fmt: skip
        weights[tensor] = kinds[number % 3] if not np.array_equal(kinds[number % 3], weight) else kinds[1]
        path = writers.write_gguf(family.folder / "file.gguf", family.config, weights, FORMATS[form])
        answer = family.find(path)
        named = (tensor,) if "layers" in tensor else ("token_embd.weight",)
        found_exactly += (answer.source, answer.verdict, answer.differing) == (source, DIFFERS, named)
    return {"files": count, "named": found_exactly}


def calibrated(family: Family, form: str, count: int) -> dict[str, Any]:
    """Files whose codes cannot be made again: with their source among the candidates, and without it."""
    right = false = 0
    odds: list[float] = []
    for name in list(family.tuned)[:count]:
        path = CALIBRATED[form](family.folder / form, family.config, family.tuned[name])
        found = family.find(path)
        is_right = found.verdict == CONSISTENT and name in (found.source, *found.also)
        right += is_right
        if is_right and found.log_odds is not None:
            odds.append(found.log_odds)
        relatives = _relatives(family, name)
        false += family.find(path, without=relatives).source is not None
    return {"models": count, "right": right, "false": false, "log_odds": float(np.median(odds)) if odds else None}


def _relatives(family: Family, name: str) -> list[str]:
    """A model with what was continued from it, or what it continues."""
    count = len(family.tuned)
    continued, number = count // 4, int(name.rpartition("-")[2])
    shift = count - continued
    others = [number + shift] if number < continued else [number - shift] if number >= shift else []
    return [name, *(f"org/tuned-{other}" for other in others)]
