"""Reads a conversion from where it lies, and finds its source among the models of an atlas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.deltas.base import BaseMatrices
from indexer.deltas.conversions.rows import ConversionRows
from indexer.deltas.conversions.source import Candidate, find_source, opened_once
from indexer.deltas.identification.names import stated_names
from indexer.errors import AtlasError
from indexer.network.hub_errors import model_errors
from indexer.network.session import install_session
from indexer.records.conversion import ConversionSource
from indexer.records.record import Record
from indexer.records.store import RecordStore
from indexer.sources.claims import hub_id_in, hub_spelling
from indexer.sources.gguf_header import stated_bases, stated_sources
from indexer.sources.registry import ModelRef

# Candidates whose records are compared; with more only the first of them, and those that the card names.
MOST_CANDIDATES = 2000


@dataclass(frozen=True)
class IndexedCandidate:
    """A model of the base that the atlas holds, and the key of its record; ``reference``: where it lies, if known."""

    model: str
    commit: str | None
    relation: str
    record_key: str
    reference: ModelRef | None = None


def find_conversion(
    folder: AtlasFolder,
    reference: ModelRef,
    base: BaseMatrices,
    models: Sequence[IndexedCandidate],
    *,
    claimed: Sequence[str] = (),
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
) -> ConversionSource | None:
    """The source of a conversion among ``models`` of a base and the base itself; None if it is no conversion.

    ``claimed``: ids that its card names; those in its files are added. Raises Skipped("shape_mismatch") if it is not
    made from this base, and ModelError or AtlasError if it cannot be read.
    """
    install_session()
    torch.set_num_threads(1)
    with model_errors():
        opened = open_checkpoint(
            reference, commit=commit, filenames=filenames, relation="quantized", needs_config=False
        )
        with closing(opened) as checkpoint, closing(base):
            if not checkpoint.conversion:
                return None
            conversion = ConversionRows(checkpoint, base)
            names = {model.model.lower(): model.model for model in models} | {base.base.lower(): base.base}
            stated = [names.get(name.lower(), name) for name in (*claimed, *_stated(checkpoint))]
            stated = [name for name in dict.fromkeys(stated) if name != reference.id]
            if reference.folder is not None or (reference.place is not None and not reference.place.is_cached):
                # Names of this machine are in no card, so that one of a fine-tune's file can only name the base.
                stated = [name for name in stated if name != base.base]
            first = {*stated, *_ids(stated_bases(checkpoint.metadata))}
            ordered = [model for model in models if model.model in first]
            ordered += [model for model in models if model.model not in first][:MOST_CANDIDATES]
            candidates = [candidate_of(folder, model) for model in ordered if model.model != reference.id]
            return find_source(conversion, base.base, candidates, stated)


def candidate_of(folder: AtlasFolder, model: IndexedCandidate) -> Candidate:
    """A model of the atlas as a candidate."""
    reference = model.reference or ModelRef.of_atlas(model.model)
    opened = partial(
        open_checkpoint, reference, commit=model.commit, relation=model.relation, needs_adapter_config=False,
        conversion=lambda: reference.source.conversion(reference),
    )  # fmt: skip

    def record() -> Record | None:
        try:
            return RecordStore(folder).read(model.record_key)
        except AtlasError:  # it is missing, or damaged, which is for `index verify`
            return None

    return Candidate(model.model, partial(opened_once, opened), record)


def _stated(checkpoint: Checkpoint) -> list[str]:
    """The ids that the files of a conversion name as what was converted."""
    return _ids([*(stated.text for stated in stated_names(checkpoint)), *stated_sources(checkpoint.metadata)])


def _ids(texts: Sequence[str]) -> list[str]:
    ids = [hub_id_in(hub_spelling(text)) for text in texts]
    return [name for name in ids if name is not None]


def answer_line(model: str, commit: str, found: ConversionSource) -> dict[str, Any]:
    """A stored answer of one conversion (``indexer.publish.stored_answers.CONVERSIONS``)."""
    facts: Mapping[str, Any] = asdict(found)
    line = {name: value for name, value in facts.items() if name not in ("base", "rows")}
    lists = {name: list(facts[name]) for name in ("claimed", "differing", "also", "notes")}
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    return {
        **line, **lists, "model": model, "commit": commit, "rows_compared": found.rows, "answered_at": now,
    }  # fmt: skip
