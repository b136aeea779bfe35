"""What is known beforehand of the model whose datasets are asked for: its head, its vector if that says anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from indexer.records.difference import difference_of, norms_fit, relative_difference
from indexer.records.representation import DEFAULT, representation_named
from indexer.records.signature import ALIKE, signature_of, signatures_from
from indexer.records.store import RecordStore
from query.lookup import ResolvedModel, resolve_model, thresholds, with_vector
from query.predict.head_evidence import Head, head_of
from query.predict.sweeps import Floats

if TYPE_CHECKING:
    from indexer.names import ModelRef
    from indexer.records.record import Record
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Repeat:
    """A model of the atlas with the same weights, and the datasets it names."""

    model: str
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """The model asked about. ``vector`` is None where its delta says nothing; ``notes`` then say why.

    ``declared``: the datasets it names itself. ``model_id``: its own id in the atlas, whose datasets are not to vote.
    """

    name: str
    base: str
    author: str
    model_id: int | None
    vector: Floats | None
    head: Head
    declared: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    notes: tuple[str, ...]


def read_subject(atlas: AtlasReader, model: str | ModelRef, base: str | None, representation: str) -> Subject:
    """Find or read ``model``; a copy of the base or an unrelated model is left with its head alone.

    Raises AtlasError where the model is unknown or unreadable, or where neither delta nor head says anything.
    """
    return subject_of(atlas, resolve_model(atlas, model, base, representation), representation)


def subject_of(atlas: AtlasReader, asked: ResolvedModel, representation: str) -> Subject:
    """The same of a model that was looked up before."""
    atlas.published(asked.base, representation)
    facts = _read_facts(asked) if asked.record else _stored_facts(atlas, asked)
    silence = _why_silent(asked)
    if not silence:
        asked = with_vector(atlas, asked, representation)
    elif facts["label_count"] is None:
        raise AtlasError(f"{silence}, and its config.json names no labels: there is nothing to go by.", "")
    return Subject(
        name=asked.name,
        base=asked.base,
        author=asked.author,
        model_id=asked.model_id,
        vector=None if silence else asked.vector,
        head=head_of(facts["head_class"], facts["label_count"], facts["label_names"], facts["problem_type"]),
        declared=tuple(facts["datasets"]),
        repeats=() if silence else _repeats(atlas, asked, facts),
        notes=(f"{silence}: only its head speaks.",) if silence else (),
    )


def _stored_facts(atlas: AtlasReader, asked: ResolvedModel) -> dict[str, Any]:
    return atlas.rows(
        "SELECT head_class, label_count, label_names, problem_type, datasets, delta_norm, "
        "duplicate_group FROM models WHERE model_id = ?",
        [asked.model_id],
    )[0]


def _read_facts(asked: ResolvedModel) -> dict[str, Any]:
    """The same of a model that was read just now."""
    record = asked.record
    assert record is not None
    return {
        "head_class": record.head.get("architecture_class"),
        "label_count": record.head.get("label_count"),
        "label_names": record.head.get("label_names"),
        "problem_type": record.head.get("problem_type"),
        "datasets": record.card.get("datasets", ()),
        "delta_norm": float(np.sqrt(sum(delta.norm**2 for delta in record.deltas))),
        "duplicate_group": None,
    }


def _why_silent(asked: ResolvedModel) -> str:
    """Why its delta says nothing of its data; empty where it does."""
    if asked.is_copy:
        return f"{asked.name} is a copy of {asked.base} (its delta is zero)"
    return asked.unrelated


def _repeats(atlas: AtlasReader, asked: ResolvedModel, facts: Mapping[str, Any]) -> tuple[Repeat, ...]:
    """Documented models with the same weights: by the atlas's flags, or by its record where it was read now."""
    if asked.record is None:
        rows = atlas.rows(
            "SELECT model, datasets FROM models WHERE duplicate_group = ? AND model_id <> ? AND len(datasets) > 0 "
            "ORDER BY model_id",
            [facts["duplicate_group"], asked.model_id],
        )
        return tuple(Repeat(row["model"], tuple(row["datasets"])) for row in rows)
    within = thresholds(atlas, asked.base)["duplicate_within"]
    base_norm = math.hypot(*(delta.base_norm for delta in asked.record.deltas))
    rows = [
        row
        for row in atlas.rows(
            "SELECT model_id, model, datasets, models.record_key, models.delta_norm, signature FROM models "
            "JOIN records USING (model_id) WHERE base = ? AND model_id IS DISTINCT FROM ? AND len(datasets) > 0 "
            "ORDER BY model_id",
            [asked.base, asked.model_id],
        )
        if relative_difference(row["delta_norm"], facts["delta_norm"]) <= within
        or norms_fit(row["delta_norm"], facts["delta_norm"], base_norm)
    ]
    default = representation_named(DEFAULT, atlas.published(asked.base, DEFAULT).choice.budget)
    mine = signatures_from([signature_of(default.vector(asked.record))])
    alike = (signatures_from([row["signature"] for row in rows]) @ mine.T).ravel().tolist()
    return tuple(
        Repeat(row["model"], tuple(row["datasets"]))
        for row, cosine in zip(rows, alike, strict=True)
        if cosine >= ALIKE and _is_repeat(atlas, asked.record, row, cosine, within)
    )


def _is_repeat(atlas: AtlasReader, record: Record, row: Mapping[str, Any], cosine: float, within: float) -> bool:
    """As a publish tells duplicates; by norm and signature alone where the atlas came without its records."""
    try:
        return difference_of(record, RecordStore(atlas.folder).read(row["record_key"])) <= within
    except AtlasError:
        norm = math.hypot(*(delta.norm for delta in record.deltas))
        return cosine >= 1 - within and relative_difference(row["delta_norm"], norm) <= within
