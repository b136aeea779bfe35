"""What each step of the default vectors is worth: one thing changed at a time, on all families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.records.record import DeltaRecord
from indexer.records.row_plan import lines_of
from indexer.records.sketch import DRAW, USUAL_BUDGET, tensor_sketch
from indexer.vectors.centre import FULL
from query.shared.statistics.likeness import similarities
from scripts.tables import decimal, p_value
from studies.arena.methods import OURS, method_tables
from studies.arena.scores import Json, Table, scores
from studies.arena.subjects import Subjects, families, read_subjects
from studies.vectors import centred

Floats = NDArray[np.float32]
POWERS = {"none": 0, "σ": 1, "σ²": 2}


@dataclass(frozen=True)
class Setting:
    """How vectors are made. ``rows``: read of each matrix, or input coordinates of a transposed one; None for all."""

    rank: int = 8
    weights: str = "σ"
    unit_blocks: bool = True
    centre: str = "group"  # "none", "one" for all models, or by "group"
    length: int = USUAL_BUDGET
    rows: int | None = None
    draw: str = DRAW


DEFAULT = Setting()
SETTINGS = {
    "rank 8, weights σ, unit blocks, centre by group, 8,208 numbers, all rows": DEFAULT,
    **{f"rank {rank}": replace(DEFAULT, rank=rank) for rank in (1, 2, 4, 16)},
    **{f"weights {name}": replace(DEFAULT, weights=name) for name in ("none", "σ²")},
    "whole vector of unit norm, not its blocks": replace(DEFAULT, unit_blocks=False),
    "no centre": replace(DEFAULT, centre="none"),
    "one centre for all models": replace(DEFAULT, centre="one"),
    **{f"{length:,} numbers": replace(DEFAULT, length=length) for length in (1_026, 2_052, 4_104, 16_416, 32_832)},
    **{f"{rows} rows": replace(DEFAULT, rows=rows) for rows in (8, 16, 32, 128)},
    **{f"another draw of the hashes, {number}": replace(DEFAULT, draw=f"{number}|") for number in (1, 2, 3)},
}
PUBLISHED = "as published, from a sample"


def run(out: Path) -> Json:
    """The scores of every setting on every family."""
    return {"families": {family.name: measure(read_subjects(family)) for family in families(out)}}


def measure(subjects: Subjects) -> dict[str, Json]:
    """The scores of every setting on one family."""
    labelled = subjects.labelled
    columns = labelled.datasets, labelled.authors, subjects.groups
    print(f"{subjects.family.name}: {len(labelled.models)} labelled models", flush=True)
    name, published = next(method_tables(subjects))
    assert name == OURS
    found = {PUBLISHED: scores(published, *columns)}
    for name, setting in SETTINGS.items():
        vectors, blocks = vectors_of(subjects, setting)
        whole = vectors.astype(np.float64)
        table = similarities(whole, whole, blocks).astype(np.float64)
        table[~whole.any(axis=1)] = np.nan
        found[name] = scores(Table(table), *columns, draws=None if setting == DEFAULT else 0)
        print(f"  {name}: {decimal(found[name]['across purity'])}", flush=True)
    return found


def vectors_of(subjects: Subjects, setting: Setting) -> tuple[Floats, int]:
    """(n, d) vectors, and the number of their blocks of unit norm."""
    records = subjects.records
    matrices = len(records[0].deltas)
    length = max(1, setting.length // matrices)
    raw = np.stack([np.concatenate([block(delta, setting, length) for delta in record.deltas]) for record in records])
    blocks = matrices if setting.unit_blocks else 1
    norms = np.linalg.norm(raw.reshape(len(raw), blocks, -1), axis=2, keepdims=True)
    unit = raw.reshape(len(raw), blocks, -1) / np.where(norms > 0, norms, 1)
    vectors = unit.reshape(len(raw), -1).astype(np.float32)
    if setting.centre == "none":
        return vectors, blocks
    groups = subjects.groups if setting.centre == "group" else [FULL] * len(raw)
    return centred(vectors, groups, subjects.labelled.authors, blocks), blocks


def block(delta: DeltaRecord, setting: Setting, length: int) -> NDArray[np.float64]:
    """(length,) the sketch of Σ w(σ) v vᵀ over the top triplets of the rows that are read; zeros for a zero delta."""
    if delta.norm == 0.0:
        return np.zeros(length)
    s, v = triplets(delta, setting.rows)
    s, v = s[: setting.rank], v[:, : setting.rank]
    weights = np.where(s > 0, s ** POWERS[setting.weights], 0.0)
    return tensor_sketch(v, v, weights, f"{setting.draw}{delta.key}", length)


def triplets(delta: DeltaRecord, rows: int | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """σ (r,) and V (in, r) of the first and last rows of δW, of ``rows`` together (None: all).

    Of a transposed matrix, of its first and last input coordinates, with zeros elsewhere.
    """
    assert delta.u is not None
    assert delta.v is not None
    u, s, v = (part.astype(np.float64) for part in (delta.u, delta.s, delta.v))
    lines = delta.shape[1] if delta.transposed else delta.shape[0]
    if rows is None or rows >= lines:
        return s, v
    held = lines_of(lines, rows)
    if delta.transposed:
        _, found, right = np.linalg.svd((v[held] * s).T, full_matrices=False)
        whole = np.zeros((delta.shape[1], len(found)))
        whole[held] = right.T
        return found, whole
    _, found, right = np.linalg.svd(u[held] * s, full_matrices=False)
    return found, v @ right.T


def tables(figures: Json) -> str:
    """Markdown: by family, purity across authors / accuracy; the mean difference in purity, with its standard error."""
    return "\n".join(_lines(figures["families"]))


def _lines(found: dict[str, Json]) -> Iterator[str]:
    names = list(found)
    yield f"| vectors | {' | '.join(names)} | mean | difference to the default |"
    yield f"|{'---|' * (3 + len(names))}"

    def cell(one: dict[str, Any]) -> str:
        return f"{decimal(one['across purity'])} / {decimal(one['accuracy'])}"

    default = next(iter(SETTINGS))
    for setting in next(iter(found.values())):
        each = [one[setting] for one in found.values()]
        mean = {key: float(np.mean([one[key] for one in each])) for key in ("across purity", "accuracy")}
        gains = [
            one["across purity"] - found[name][default]["across purity"] for name, one in zip(names, each, strict=True)
        ]
        error = f" ± {float(np.std(gains, ddof=1) / np.sqrt(len(gains))):.3f}" if len(gains) > 1 else ""
        apart = "" if setting == default else f"{float(np.mean(gains)):+.3f}{error}"
        yield f"| {setting} | {' | '.join(map(cell, each))} | {cell(mean)} | {apart} |"
    effects = [one[default]["across effect"] for one in found.values()]
    bounds = [one[default]["across p_value"] for one in found.values()]
    yield f"| standard deviations above random labels | {' | '.join(f'{value:.0f}' for value in effects)} | | |"
    yield f"| p | {' | '.join(f'{p_value(value, digits=1)}' for value in bounds)} | | |"
