"""What a build has to do: whether each selected model is done, has failed for good, or is due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from indexer.listing.claims import BY_FOLDER
from indexer.listing.listing import ListedModel
from indexer.listing.parents import Parents, named_base, names_another
from indexer.names import ModelRef
from indexer.network.rows import commit_of, listed_filenames
from indexer.publish.rows import Entry
from indexer.quantities import duration_in_words, size_in_words
from indexer.records.identity import FORMAT_VERSION, SPECTRA_FORM, SVD_METHODS, Identity, Unit
from indexer.records.store import FailureRecord, RecordHeader, RecordStore, current_record

# Reasons for a skip that can end without a new commit: access may be granted, or a repository enabled again.
RECHECKED = frozenset({"gated", "disabled"})


@dataclass(frozen=True)
class Planned:
    """One model of the listing: ``unit`` is what to do, or None where there is nothing to do.

    ``lacks_spectra``: they are wanted, and its record, which stays until there is a better one, has none. ``missed``:
    how the last attempt at the current commit failed, where the record is that of an earlier commit.
    """

    entry: Entry
    unit: Unit | None
    lacks_spectra: bool = False
    missed: FailureRecord | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether there is a record of this commit already."""
        has_record = self.unit is None and self.entry.record_key is not None
        return has_record and self.entry.commit == commit_of(self.entry.listed.row)

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt at this commit failed."""
        outcome = self.missed or self.entry.outcome
        return outcome is not None and outcome.status == "failed"


def plan(
    models: Iterable[ListedModel],
    selected: Sequence[ListedModel],
    store: RecordStore,
    template: Unit,
    retry_failed: bool,
    parents: Parents | None = None,
    folders: Mapping[str, Path] | None = None,
) -> list[Planned]:
    """Look at every listed model; only those in ``selected`` get a unit. ``parents`` looks up the bases of adapters.

    ``folders``: the folders of local models, by id. The atlas does not store them, so other local models are not read
    again. ``template`` holds what all units share. A model outside the selection keeps its record, and a model at a new
    commit keeps the record of an earlier one until the new one is read.
    """
    chosen = {model.id for model in selected}
    places = folders or {}
    planned = [_planned(model, model.id in chosen, store, template, retry_failed, parents, places) for model in models]
    present = {one.entry.record_key for one in planned if one.entry.record_key is not None}
    if len(present) == len(planned):
        return planned
    earlier = _earlier_records(store, template, present)
    return [_with_earlier(one, earlier.get(one.entry.listed.id, ())) for one in planned]


def _earlier_records(store: RecordStore, template: Unit, present: Collection[str]) -> dict[str, list[RecordHeader]]:
    """By model the records that could be published besides ``present``, from their headers alone."""
    found: dict[str, list[RecordHeader]] = {}
    wanted = (template.base, template.base_commit, template.spec.rank)
    for kept in store.headers(excluded=present):
        identity = kept.identity
        is_readable = identity.spec.format <= FORMAT_VERSION
        if is_readable and (identity.base, identity.base_commit, identity.spec.rank) == wanted:
            found.setdefault(identity.model, []).append(kept)
    return found


def _with_earlier(planned: Planned, records: Sequence[RecordHeader]) -> Planned:
    """A model without a record of its current commit keeps that of an earlier one, where there is one."""
    entry = planned.entry
    kept = current_record(records, entry.commit) if entry.record_key is None else None
    if kept is None:
        return planned
    earlier = replace(entry, commit=kept.identity.commit, record_key=kept.digest, outcome=None)
    unit = planned.unit
    if unit is not None and unit.parent is None and not unit.is_on_base and _is_enough(kept.identity, unit):
        unit = None  # its base was known as well or better when the record was made
    return replace(planned, entry=earlier, missed=entry.outcome, unit=unit)


def _is_enough(found: Identity, unit: Unit) -> bool:
    """Whether a record is of the unit's commit, and has the spectra that are wanted."""
    return found.commit == unit.commit and (not unit.spec.spectra or found.spec.spectra == unit.spec.spectra)


def _planned(
    listed: ListedModel,
    is_selected: bool,
    store: RecordStore,
    template: Unit,
    retry_failed: bool,
    parents: Parents | None,
    folders: Mapping[str, Path],
) -> Planned:
    commit = commit_of(listed.row)
    if commit is None:
        return Planned(Entry(listed, template.base, None), None)
    parent = parents.of(listed) if parents is not None and is_selected else None
    is_known = parents is not None and is_selected and listed.id.lower() not in parents.unknown
    unit = replace(
        template,
        parent=parent,
        is_on_base=is_known and parent is None,
        model=ModelRef(listed.id, folder=folders.get(listed.id)),
        commit=commit,
        relation=listed.relation,
        filenames=listed_filenames(listed.row),
        row_base=(named_base(listed.row) or "") if is_known else None,
        card=None,
    )
    # Records under another base of the adapter are found by their headers: see _with_earlier.
    is_open = not is_known and listed.relation == "adapter" and names_another(listed.row, template.base)
    found = None if is_open else existing_record(unit.identity, store)
    if found is not None and (found.spec.spectra == unit.spec.spectra or not unit.spec.spectra):
        return Planned(Entry(listed, template.base, commit, record_key=found.digest), None)
    outcome = last_outcome(unit.identity, store)
    is_here = listed.claimed_by != BY_FOLDER or listed.id in folders
    is_wanted = is_selected and is_here and not listed.deleted_at_hub and is_due(outcome, retry_failed)
    entry = Entry(listed, template.base, commit, found.digest if found else None, None if found else outcome)
    return Planned(entry, unit if is_wanted else None, lacks_spectra=found is not None)


def is_due(outcome: FailureRecord | None, retry_failed: bool) -> bool:
    """Whether this build should try a model without a record."""
    if outcome is None or outcome.reason in RECHECKED:
        return True
    return outcome.status == "failed" and (retry_failed or outcome.is_due)


def existing_record(identity: Identity, store: RecordStore) -> Identity | None:
    """The existing record of this model at this commit; of several the one with the most spectra.

    Among those with the same spectra, the one of the newest SVD method.
    """
    return next((one for one in _that_serve(identity) if store.has(one.digest)), None)


def last_outcome(identity: Identity, store: RecordStore) -> FailureRecord | None:
    """The last failure, with spectra or without: a model that cannot be read cannot be read for either."""
    found = [store.failure(one.digest) for one in _that_serve(identity)]
    return max((one for one in found if one is not None), key=lambda one: one.when, default=None)


def _that_serve(identity: Identity) -> Iterator[Identity]:
    """The identity with all spectra, with those of δW alone (the first format), and with none, for each SVD method."""
    for form in (SPECTRA_FORM, True, False):
        for method in SVD_METHODS:
            yield replace(identity, spec=replace(identity.spec, spectra=form, svd=method))


@dataclass(frozen=True)
class Estimate:
    """What a build would read. ``bytes``: of the full models; those of an adapter are known once it is opened.

    ``bytes_per_second``: the rate of this atlas's builds so far, None where there are none.
    """

    models: int
    adapters: int
    bytes: int
    bytes_per_second: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it takes at that rate."""
        return self.bytes / self.bytes_per_second if self.bytes_per_second else None

    @property
    def sentence(self) -> str:
        """As in: 50 models, ≈ 17 GB, ≈ 14 min at 20 MB/s (measured so far)."""
        words = [f"{self.models:,} model{'' if self.models == 1 else 's'}"]
        words.append(f"{'at least' if self.adapters else '≈'} {size_in_words(self.bytes)}")
        if self.seconds is not None and self.bytes_per_second is not None:
            rate = size_in_words(self.bytes_per_second)
            words.append(f"≈ {duration_in_words(self.seconds)} at {rate}/s (measured so far)")
        return ", ".join(words)

    def as_row(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"seconds": self.seconds}


def estimate(
    planned: Sequence[Planned], block_bytes: int, item_bytes: int, bytes_per_second: float | None = None
) -> Estimate:
    """What a build would read: how many models, and the bytes of the full models' block matrices.

    ``block_bytes`` and ``item_bytes`` are the base's. A row may name its dtypes (``safetensors.parameters``); models
    whose rows do not are assumed to be stored like the base.
    """
    units = [one for one in planned if one.unit is not None]
    full = [one for one in units if one.unit is not None and one.unit.relation != "adapter"]
    return Estimate(
        models=len(units),
        adapters=len(units) - len(full),
        bytes=sum(block_bytes * _item_bytes(one.entry.listed.row, item_bytes) // item_bytes for one in full),
        bytes_per_second=bytes_per_second,
    )


def _item_bytes(row: dict[str, Any], otherwise: int) -> int:
    stored = row.get("safetensors")
    parameters = stored.get("parameters") if isinstance(stored, dict) else None
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    counts = {
        name: count
        for name, count in (parameters.items() if isinstance(parameters, dict) else ())
        if isinstance(count, int) and name in sizes
    }
    return sizes[max(counts, key=lambda name: counts[name])] if counts else otherwise
