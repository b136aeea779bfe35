"""The model whose datasets are predicted: its head, and its vector if its change says anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError
from indexer.records.difference import (
    ALIKE,
    difference_of,
    norms_fit,
    relative_difference,
    signature_of,
    signatures_from,
)
from indexer.records.representation import DEFAULT, representation_named
from indexer.records.store import RecordStore
from query.lookup import ResolvedModel, facts_of_record, thresholds, vector_of
from query.predict.heads import Head, head_of
from query.statistics.neighbours import Floats

if TYPE_CHECKING:
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Duplicate:
    """A model of the atlas with the same weights, and the datasets it names."""

    model: str
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """The model asked about.

    Attributes:
        model_id: its id in the atlas, whose own datasets must not vote; None if it is not indexed.
        vector: None if its change says nothing; ``notes`` then say why.
        declared: the datasets it names itself.
        duplicates: labelled models with the same weights.
    """

    name: str
    base: str
    author: str
    model_id: int | None
    vector: Floats | None
    head: Head
    declared: tuple[str, ...]
    duplicates: tuple[Duplicate, ...]
    notes: tuple[str, ...]


def target_of(atlas: AtlasReader, asked: ResolvedModel, representation: str) -> Target:
    """What is known about a model. A copy of the base, or an unrelated model, has only its head.

    Raises AtlasError if neither its change nor its head says anything.
    """
    atlas.published(asked.base, representation)
    if asked.record is None:
        facts = atlas.rows(
            "SELECT head_class, label_count, label_names, problem_type, datasets, delta_norm, duplicate_group "
            "FROM models WHERE model_id = ?",
            [asked.model_id],
        )[0]
    else:
        facts = facts_of_record(asked.record)
    head = head_of(facts["head_class"], facts["label_count"], facts["label_names"], facts["problem_type"])
    declared = tuple(facts["datasets"])
    reason = f"{asked.name} is a copy of {asked.base} (its delta is zero)" if asked.is_copy else asked.unrelated
    if reason:
        if facts["label_count"] is None:
            raise AtlasError(f"{reason}, and its config.json names no labels: nothing can be predicted from it.", "")
        note = f"{reason}: the prediction uses only its head."
        return Target(asked.name, asked.base, asked.author, asked.model_id, None, head, declared, (), (note,))
    vector = vector_of(atlas, asked, representation)
    duplicates = _duplicates(atlas, asked, facts)
    return Target(asked.name, asked.base, asked.author, asked.model_id, vector, head, declared, duplicates, ())


def _duplicates(atlas: AtlasReader, asked: ResolvedModel, facts: Mapping[str, Any]) -> tuple[Duplicate, ...]:
    """Labelled models with the same weights: by the atlas's flags, or by the record if the model was just read."""
    if asked.record is None:
        rows = atlas.rows(
            "SELECT model, datasets FROM models WHERE duplicate_group = ? AND model_id <> ? AND len(datasets) > 0 "
            "ORDER BY model_id",
            [facts["duplicate_group"], asked.model_id],
        )
        return tuple(Duplicate(row["model"], tuple(row["datasets"])) for row in rows)
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
    own = signatures_from([signature_of(default.vector(asked.record))])
    cosines = (signatures_from([row["signature"] for row in rows]) @ own.T).ravel().tolist()
    store = RecordStore(atlas.folder)
    found = []
    for row, cosine in zip(rows, cosines, strict=True):
        if cosine < ALIKE:
            continue
        try:  # the test of a publish
            is_duplicate = difference_of(asked.record, store.read(row["record_key"])) <= within
        except AtlasError:  # the atlas has no records: by norm and signature alone
            is_close = relative_difference(row["delta_norm"], facts["delta_norm"]) <= within
            is_duplicate = cosine >= 1 - within and is_close
        if is_duplicate:
            found.append(Duplicate(row["model"], tuple(row["datasets"])))
    return tuple(found)
