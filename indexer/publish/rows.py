"""Rows of the database, from listing entries and records.

Listings, cards and records are untrusted. A model whose data cannot be converted, or does not fit the tables,
raises InvalidValue, and a publish skips it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from indexer.database.validation import InvalidValue, check_rows, plain_json, valid_rows, with_nulls
from indexer.deltas.stored_base import StoredBase
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.listing.listing import ListedModel
from indexer.names import TRAINING_COLUMNS
from indexer.network.rows import commit_of
from indexer.publish.tables import Row
from indexer.records.difference import signature_of
from indexer.records.identity import Unit
from indexer.records.kinds.label import change_of
from indexer.records.record import RANK_THRESHOLDS, DeltaRecord, FusedMatrixRecord, Record
from indexer.records.representations.registry import DEFAULT
from indexer.records.representations.representation import Representation, Vector
from indexer.records.row_space import as_text, row_space_of
from indexer.records.store import FailureRecord, RecordStore
from indexer.records.tokens import KINDS
from indexer.sources.cards.modelcard import LICENCE_COLUMNS, Licence, MalformedRow, bounded_count
from indexer.sources.cards.training_files import with_tracked
from indexer.sources.claims import BY_FOLDER
from indexer.sources.rows import facts_of
from indexer.sources.runs import TRACKED, run_of
from indexer.untrusted import printable
from indexer.vectors.centre import Centre
from indexer.vectors.files import MOST_NUMBERS

# Columns that are fields of a card's facts, dataset claims and results, and of a record.
_FACT_FIELDS = ("created", "modified", "downloads", "likes", "gated", "private", "pipeline_tag", "library")
_CLAIM_FIELDS = ("dataset", "parent", "raw", "source")
_RECORD_FIELDS = (
    "read", "base_cosine", "is_copy", "vector_group", "has_spectra", "dtype", "bytes_read", "block_bytes", "seconds",
    "device",
)  # fmt: skip
_RESULT_FIELDS = ("task", "dataset", "dataset_raw", "config", "split", "metric", "value", "verified")

_CHANGE_RANKS = [f"rank_{percent}" for percent in RANK_THRESHOLDS]
_WEIGHT_RANKS = [f"weight_rank_{percent}" for percent in RANK_THRESHOLDS]


@dataclass(frozen=True)
class Entry:
    """One (model, base) pair, its state (a record, a failure, or neither yet), and the work that a build has left.

    ``unit``: that work, None if there is none. ``lacks``: why the record must be replaced: "version" (an earlier one),
    "spectra" (it has none), "rows" (it is a sample), or "". It stays until there is a better one. ``missed``: how the
    last attempt at the current commit failed, if the record is that of an earlier commit.
    """

    listed: ListedModel
    base: str
    commit: str | None
    record_key: str | None = None
    outcome: FailureRecord | None = None
    unit: Unit | None = None
    lacks: str = ""
    missed: FailureRecord | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether there is a record of this commit already, so that nothing is to be done."""
        return self.unit is None and self.record_key is not None and self.commit == commit_of(self.listed.row)

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt at this commit failed."""
        outcome = self.missed or self.outcome
        return outcome is not None and outcome.status == "failed"

    @property
    def tracked(self) -> Any:
        """The training that a tracking server reports, from the listing row; None without a report."""
        return self.listed.row.get(TRACKED) if self.listed.claimed_by == BY_FOLDER else None

    @property
    def status(self) -> str:
        """indexed, skipped, failed or listed."""
        if self.record_key:
            return "indexed"
        return self.outcome.status if self.outcome else "listed"

    @property
    def fingerprint(self) -> str:
        """Digest of everything that its rows are made from."""
        listed = self.listed
        contents = [
            listed.row,
            [listed.relation, listed.claimed_by, listed.parent, listed.deleted_at_hub, str(listed.first_seen)],
            listed.path,
            [self.base, self.commit, self.record_key],
            asdict(self.outcome) if self.outcome else None,
        ]
        # NaN is allowed here: a hostile row must not stop a publish.
        text = json.dumps(contents, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Publication:
    """Everything to publish for one base: its listing entries and the build that produced them.

    Models without an entry here are left unchanged, as are ``rejected_rows`` and ``index`` if they are None. Models
    that are ``withdrawn`` are deleted: they were renamed or removed. ``renewed``: models whose record was written again
    under the same key. ``vector_length``: about how many numbers a vector has, and ``licence`` of the base; None leaves
    them unchanged. ``centres``: by representation, centres to subtract instead of the stored ones and new ones;
    ``with_neighbours``: also make lists of neighbours and null distributions.
    """

    base: StoredBase
    aliases: Sequence[str]
    entries: Sequence[Entry]
    rank: int
    withdrawn: Sequence[str] = ()
    renewed: Collection[str] = ()
    rejected_rows: Sequence[Row] | None = None
    build: Row | None = None
    vector_length: int | None = None
    licence: Licence | None = None
    centres: Mapping[str, Centre] = field(default_factory=dict)
    with_neighbours: bool = True


def valid_listing_rows(model_id: int, entry: Entry) -> dict[str, list[Row]]:
    """The rows of one entry, by table; values that do not fit become null or are left out, with a note in oddities.

    Raises InvalidValue if not even the name of the model fits.
    """
    listed, outcome = entry.listed, entry.outcome
    with _as_invalid("the listing row"):
        try:
            facts = facts_of(listed.row)
        except MalformedRow:
            # The listing keeps only rows with a usable id; other faults are in rejected_listing_rows.
            facts = facts_of({"id": listed.id})
        run = run_of(listed.id, listed.row)
        row = (
            {name: getattr(facts, name) for name in _FACT_FIELDS}
            | row_of_licence(facts.licence)
            | {
                "model_id": model_id,
                "model": listed.id,
                "base": entry.base,
                "author": listed.author,
                "commit": entry.commit,
                "subfolder": "",
                "status": entry.status,
                "reason": outcome.reason if outcome and not entry.record_key else None,
                "detail": outcome.detail if outcome and not entry.record_key else None,
                "attempts": outcome.attempts if outcome else None,
                "tried": moment(outcome.when) if outcome else None,
                "relation": listed.relation,
                "claimed_by": listed.claimed_by,
                "parent": listed.parent,
                "path": [{"relation": relation, "model": model} for relation, model in listed.path] or None,
                "languages": list(facts.languages),
                "trigger_words": list(facts.trigger_words) or None,
                "record_key": entry.record_key,
                "run_key": run and run[0],
                "checkpoint_number": run and run[1],
                "first_seen": listed.first_seen,
                "last_seen": listed.last_seen,
                "deleted_at_hub": listed.deleted_at_hub,
                "oddities": list(facts.oddities),
                "fingerprint": entry.fingerprint,
            }
        )
        claims = [{name: getattr(claim, name) for name in _CLAIM_FIELDS} for claim in facts.datasets]
        results = [{name: getattr(result, name) for name in _RESULT_FIELDS} for result in facts.evaluations]
    fine_tune, unfit_columns = with_nulls("fine_tunes", row)
    notes = [f"{column}: does not fit" for column in unfit_columns]
    rows = {"fine_tunes": [fine_tune]}
    of_tables: dict[str, list[Row]] = {
        "tags": [{"tag": tag} for tag in facts.tags], "model_datasets": claims, "evaluations": results
    }  # fmt: skip
    for table, stated_rows in of_tables.items():
        rows[table] = valid_rows(table, [{"model_id": model_id} | stated_row for stated_row in stated_rows])
        if len(rows[table]) < len(stated_rows):
            notes.append(f"{table}: a row does not fit")
    if notes:
        fine_tune["oddities"] = [*(fine_tune["oddities"] or ()), *notes]
    return rows


def rows_of_record(
    model_id: int, record_key: str, record: Record, base_hashes: Sequence[str | None] = ()
) -> dict[str, list[Row]]:
    """The rows of a record by table. The publisher sets flags that depend on thresholds or on other models.

    ``base_hashes``: the LFS ids of the base's weight files.
    """
    base_norm = float(np.sqrt(sum(delta.base_norm**2 for delta in record.deltas)))
    zeros = [delta.norm == 0.0 for delta in record.deltas]
    names = record.head.get("label_names")
    space = row_space_of(record)
    shares = [percent / 100 for percent in RANK_THRESHOLDS]

    def ranks(measured: DeltaRecord | FusedMatrixRecord) -> Row:
        """Ranks of δW and W at the shares of the energy that have a column."""
        of_change = dict(zip(_CHANGE_RANKS, measured.change_ranks(shares), strict=True))
        return of_change | dict(zip(_WEIGHT_RANKS, measured.weight_ranks(shares), strict=True))

    row = {
        "model_id": model_id,
        "record_key": record_key,
        "copy_evidence": record.copy_evidence(base_hashes),
        "is_unrelated": False,
        "base_grid": record.base_grid or None,
        **_change_columns(record),
        "is_partly_frozen": not record.is_adapter and any(zeros) and not all(zeros),
        "adapter_kind": record.adapter_kind or None,
        "start": record.start and record.start.as_row(),
        "passed_over": [*record.passed_over, *record.adapter_notes] or None,
        "row_space": None if space is None else as_text(space),
        "delta_norm": record.norm if record.has_norm else None,
        "delta_norm_error": record.norm_error,
        "relative_norm": record.norm / base_norm if base_norm and record.has_norm else None,
        "model_type": record.head.get("model_type"),
        "head_class": record.head.get("architecture_class"),
        "label_count": bounded_count(record.head.get("label_count")),
        "label_names": list(names) if names else None,
        "problem_type": record.head.get("problem_type"),
        "weight_files": [asdict(stored) for stored in record.files],
        "made": moment(record.created),
        "training": json.dumps(plain_json(dict(record.training)), ensure_ascii=False) if record.training else None,
    }
    row |= {column: record.training.get(name) for column, name in TRAINING_COLUMNS.items()}
    row |= {name: getattr(record, name) for name in _RECORD_FIELDS}
    tokens = record.tokens if record.tokens is not None and record.tokens.kind in KINDS else None
    row |= {
        "token_class": tokens and tokens.kind,
        "token_codes": tokens and base64.b64encode(tokens.codes.tobytes()).decode(),
        "token_is_share": tokens and tokens.is_share,
        "token_scale": tokens and tokens.scale,
        "token_rows": tokens and tokens.vocabulary,
        "base_token_rows": tokens and tokens.base_vocabulary,
        "position_rows": tokens and tokens.positions,
        "has_pairs": tokens and tokens.pairs,
    }
    deltas = [
        {
            "model_id": model_id,
            "stack": delta.key.stack,
            "layer": delta.key.layer,
            "family": delta.key.family,
            "out_features": delta.shape[0],
            "in_features": delta.shape[1],
            "rows_read": delta.lines,
            "norm": delta.norm,
            "norm_error": delta.norm_error,
            "relative_norm": delta.relative_norm,
            "energy": delta.energy,
            "singular_values": delta.s.tolist(),
        }
        | ranks(delta)
        for delta in record.deltas
    ]
    norms = {delta.key: delta.norm for delta in record.deltas}
    fused = [
        {
            "model_id": model_id,
            "stack": matrix.parts[0].stack,
            "layer": matrix.parts[0].layer,
            "family": matrix.family,
            "families": [part.family for part in matrix.parts],
            "out_features": matrix.shape[0],
            "in_features": matrix.shape[1],
            "norm": math.hypot(*(norms[part] for part in matrix.parts)),
        }
        | ranks(matrix)
        for matrix in record.fused_matrices
    ]
    adapter_bases = []
    if (adapter_base := record.adapter_base) is not None:
        verdict = {
            "named": adapter_base.named,
            "verdict": adapter_base.verdict,
            "resolved_base": adapter_base.parent,
            "why": adapter_base.why,
        }
        adapter_bases = [{"model_id": model_id} | verdict]
    claims = [
        {"model_id": model_id} | {name: getattr(claim, name) for name in _CLAIM_FIELDS}
        for claim in record.dataset_claims
    ]
    return {
        "records": [row],
        "deltas": deltas,
        "fused_matrices": fused,
        "adapter_bases": adapter_bases,
        "model_datasets": claims,
    }


def _change_columns(record: Record) -> Row:
    """The kind of change to the base's weights, as columns."""
    change = change_of(record)
    return {
        "change": change and change.kind,
        "change_probability": change and change.probability,
        "change_evidence": change and change.evidence,
    }


def row_of_base(base: StoredBase) -> Row:
    """The row of a base, without its aliases and its licence."""
    layers: dict[str, int] = {}
    for matrix in base.layout.matrices:
        layers[matrix.key.stack] = max(layers.get(matrix.key.stack, 0), matrix.key.layer + 1)
    return {
        "base": base.base,
        "commit": base.commit,
        "model_type": str(base.config.get("model_type")),
        "architecture": base.layout.architecture,
        "layers": [{"stack": stack, "layers": count} for stack, count in layers.items()],
        "deltas": [str(matrix.key) for matrix in base.layout.matrices],
        "block_bytes": base.block_bytes,
        "config": json.dumps(plain_json(dict(base.config))),
        "words": list(base.words) or None,
    }


def row_of_licence(licence: Licence | None) -> Row:
    """The columns of a licence; nulls if there is none."""
    return asdict(licence) if licence else dict.fromkeys(LICENCE_COLUMNS)


def moment(text: Any) -> datetime | None:
    """A time in ISO 8601 as UTC; None if it cannot be parsed."""
    try:
        moment_read = datetime.fromisoformat(text)
        return moment_read.replace(tzinfo=UTC) if moment_read.tzinfo is None else moment_read.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def record_rows(
    model_id: int,
    record_key: str,
    base: StoredBase,
    store: RecordStore,
    representations: Sequence[Representation],
    tracked: Any = None,
) -> tuple[dict[str, list[Row]], dict[str, Vector]]:
    """The rows of a stored record by table, and its vectors for those of ``representations`` that it holds, by name.

    ``tracked``: the training that a tracking server reports, from the listing row.

    Raises InvalidValue if the record cannot be read, has other matrices than the base, or does not fit the tables.
    """
    try:
        record = store.read(record_key)
    except AtlasError as error:
        raise InvalidValue(str(error).rstrip(".")) from error
    with _as_invalid("the record"):
        # All comparisons rely on this: records of one base have the same matrices in the same order.
        expected = [(matrix.key, tuple(matrix.shape)) for matrix in base.layout.matrices]
        if [(delta.key, tuple(delta.shape)) for delta in record.deltas] != expected:
            raise InvalidValue(f"its matrices are not those of {base.base}")
        record = replace(record, training=with_tracked(record.training, tracked))
        rows = rows_of_record(model_id, record_key, record, base.file_hashes)
        vectors: dict[str, Vector] = {}
        for representation in representations:
            if not representation.is_held_by(record) or not representation.is_defined_for(base):
                continue
            if why := representation.mismatch(record, base):
                raise InvalidValue(why)
            vector = np.asarray(representation.vector(record), dtype=np.float32)
            length = representation.expected_length(record) or vector.size
            if vector.shape != (length,) or not length or length > MOST_NUMBERS:
                raise InvalidValue(f"its vector {representation.tag} has the shape {vector.shape}, not {(length,)}")
            if not np.isfinite(vector).all():
                raise InvalidValue(f"its vector {representation.tag} is not finite")
            vectors[representation.name] = vector
        rows["records"][0]["signature"] = signature_of(vectors[DEFAULT]) if DEFAULT in vectors else None
        for table, rows_of_table in rows.items():
            check_rows(table, rows_of_table)
    return rows, vectors


@contextmanager
def _as_invalid(subject: str) -> Iterator[None]:
    """Raise errors of values of the wrong kind as InvalidValue."""
    try:
        yield
    except InvalidValue:
        raise
    except WRONG_KINDS as error:
        reason = printable(str(error).partition("\n")[0], 200)
        raise InvalidValue(f"{subject} is malformed ({type(error).__name__}: {reason})") from error
