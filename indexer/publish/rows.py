"""Rows of the database, made from what the Hub said and what the weights said. Pure functions."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from indexer.cards.head import bounded_count
from indexer.cards.local import facts_of
from indexer.cards.modelcard import MalformedRow, ModelFacts
from indexer.listing.listing import ListedModel
from indexer.names import author_of
from indexer.records.energy import RANK_THRESHOLDS
from indexer.records.record import DeltaRecord, FusedMatrixRecord, Record
from indexer.records.row_space import as_text, row_space_of
from indexer.records.store import Outcome

Row = dict[str, Any]

_CHANGE_RANKS = [f"rank_{percent}" for percent in RANK_THRESHOLDS]
_WEIGHT_RANKS = [f"weight_rank_{percent}" for percent in RANK_THRESHOLDS]


@dataclass(frozen=True)
class Entry:
    """One (model, base) pair and what has become of it: a record, an outcome, or neither yet."""

    listed: ListedModel
    base: str
    commit: str | None
    record_key: str | None = None
    outcome: Outcome | None = None

    @property
    def status(self) -> str:
        """indexed, skipped, failed or listed."""
        if self.record_key:
            return "indexed"
        return self.outcome.status if self.outcome else "listed"

    @property
    def fingerprint(self) -> str:
        """Digest of all that its rows are made from."""
        listed = self.listed
        parts = [
            listed.row,
            [listed.relation, listed.claimed_by, listed.parent, listed.gone, str(listed.first_seen)],
            [self.base, self.commit, self.record_key],
            asdict(self.outcome) if self.outcome else None,
        ]
        # NaN and the like are welcome here: what a hostile row holds must not stop a publish.
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class ListingRows:
    """The rows of one entry in the tables that the listing fills."""

    fine_tune: Row
    tags: list[Row]
    datasets: list[Row]
    evaluations: list[Row]


def listing_rows(model_id: int, entry: Entry) -> ListingRows:
    """Rows of fine_tunes, tags, model_datasets and evaluations."""
    facts = _facts(entry.listed)
    return ListingRows(
        fine_tune=_fine_tune_row(model_id, entry, facts),
        tags=[{"model_id": model_id, "tag": tag} for tag in facts.tags],
        datasets=[
            {
                "model_id": model_id,
                "dataset": claim.dataset,
                "parent": claim.parent,
                "raw": claim.raw,
                "source": claim.source,
            }
            for claim in facts.datasets
        ],
        evaluations=[
            {
                "model_id": model_id,
                "task": result.task,
                "dataset": result.dataset,
                "dataset_raw": result.dataset_raw,
                "config": result.config,
                "split": result.split,
                "metric": result.metric,
                "value": result.value,
                "verified": result.verified,
            }
            for result in facts.evaluations
        ],
    )


def _facts(listed: ListedModel) -> ModelFacts:
    try:
        return facts_of(listed.row)
    except MalformedRow:
        # The listing keeps only rows with a usable id; what else is odd about this one is in rejected_listing_rows.
        return facts_of({"id": listed.id})


def _fine_tune_row(model_id: int, entry: Entry, facts: ModelFacts) -> Row:
    listed, outcome = entry.listed, entry.outcome
    return {
        "model_id": model_id,
        "model": listed.id,
        "base": entry.base,
        "author": author_of(listed.id),
        "commit": entry.commit,
        "subfolder": "",
        "status": entry.status,
        "reason": outcome.reason if outcome and not entry.record_key else None,
        "detail": outcome.detail if outcome and not entry.record_key else None,
        "attempts": outcome.attempts if outcome else None,
        "tried": _moment(outcome.when) if outcome else None,
        "relation": listed.relation,
        "claimed_by": listed.claimed_by,
        "parent": listed.parent,
        "created": facts.created,
        "modified": facts.modified,
        "downloads": facts.downloads,
        "likes": facts.likes,
        "gated": facts.gated,
        "private": facts.private,
        "licence": facts.license,
        "languages": list(facts.languages),
        "pipeline_tag": facts.pipeline_tag,
        "library": facts.library,
        "record_key": entry.record_key,
        "first_seen": listed.first_seen,
        "last_seen": listed.last_seen,
        "deleted_at_hub": listed.gone,
        "oddities": list(facts.oddities),
        "fingerprint": entry.fingerprint,
    }


def record_row(model_id: int, record: Record, record_key: str) -> Row:
    """The row of the records table; flags that need thresholds or other models are set by the publisher."""
    base_norm = float(np.sqrt(sum(delta.base_norm**2 for delta in record.deltas)))
    delta_norm = float(np.sqrt(sum(delta.norm**2 for delta in record.deltas)))
    zeros = [delta.norm == 0.0 for delta in record.deltas]
    names = record.head.get("label_names")
    space = row_space_of(record)
    return {
        "model_id": model_id,
        "record_key": record_key,
        "base_cosine": record.base_cosine,
        "is_copy": record.is_copy,
        "is_unrelated": False,
        "is_partly_frozen": not record.is_adapter and any(zeros) and not all(zeros),
        "vector_group": record.vector_group,
        "row_space": None if space is None else as_text(space),
        "has_spectra": record.has_spectra,
        "delta_norm": delta_norm,
        "relative_norm": delta_norm / base_norm if base_norm else None,
        "model_type": record.head.get("model_type"),
        "head_class": record.head.get("architecture_class"),
        "label_count": bounded_count(record.head.get("label_count")),
        "label_names": list(names) if names else None,
        "problem_type": record.head.get("problem_type"),
        "dtype": record.dtype,
        "weight_files": [asdict(stored) for stored in record.files],
        "bytes_read": record.bytes_read,
        "block_bytes": record.block_bytes,
        "seconds": record.seconds,
        "device": record.device,
        "made": _moment(record.created),
    }


def _moment(text: Any) -> datetime | None:
    """A time of ours, UTC; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def delta_rows(model_id: int, record: Record) -> list[Row]:
    """Rows of the deltas table."""
    return [
        {
            "model_id": model_id,
            "stack": delta.key.stack,
            "layer": delta.key.layer,
            "family": delta.key.family,
            "out_features": delta.shape[0],
            "in_features": delta.shape[1],
            "norm": delta.norm,
            "relative_norm": delta.relative_norm,
            "energy": delta.energy,
            "singular_values": delta.s.tolist(),
        }
        | _rank_columns(delta)
        for delta in record.deltas
    ]


def adapter_base_rows(model_id: int, record: Record) -> list[Row]:
    """The row of the adapter_bases table, for an adapter that names its base."""
    said = record.stands_on
    if said is None:
        return []
    columns = {"named": said.named, "verdict": said.verdict, "resolved_base": said.parent, "why": said.why}
    return [{"model_id": model_id, **columns}]


def fused_matrix_rows(model_id: int, record: Record) -> list[Row]:
    """Rows of the fused_matrices table."""
    norms = {delta.key: delta.norm for delta in record.deltas}
    return [
        {
            "model_id": model_id,
            "stack": whole.parts[0].stack,
            "layer": whole.parts[0].layer,
            "family": whole.family,
            "families": [part.family for part in whole.parts],
            "out_features": whole.shape[0],
            "in_features": whole.shape[1],
            "norm": math.hypot(*(norms[part] for part in whole.parts)),
        }
        | _rank_columns(whole)
        for whole in record.fused_matrices
    ]


def _rank_columns(measured: DeltaRecord | FusedMatrixRecord) -> Row:
    """Ranks of δW and of W at every share of the energy that has a column."""
    shares = [percent / 100 for percent in RANK_THRESHOLDS]
    changes = dict(zip(_CHANGE_RANKS, measured.change_ranks(shares), strict=True))
    return changes | dict(zip(_WEIGHT_RANKS, measured.weight_ranks(shares), strict=True))
