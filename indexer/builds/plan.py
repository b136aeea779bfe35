"""What a build has to do: whether each selected model is done, has failed for good, or is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    # By model the other records that could be published, from their headers alone.
    earlier: dict[str, list[RecordHeader]] = {}
    wanted = (template.base, template.base_commit, template.spec.rank)
    for kept in store.headers(excluded=present):
        identity = kept.identity
        is_readable = identity.spec.format <= FORMAT_VERSION
        if is_readable and (identity.base, identity.base_commit, identity.spec.rank) == wanted:
            earlier.setdefault(identity.model, []).append(kept)
    return [_with_earlier(one, earlier.get(one.entry.listed.id, ())) for one in planned]


def _with_earlier(planned: Planned, records: Sequence[RecordHeader]) -> Planned:
    """A model without a record of its current commit keeps that of an earlier one, where there is one."""
    entry = planned.entry
    kept = current_record(records, entry.commit) if entry.record_key is None else None
    if kept is None:
        return planned
    earlier = replace(entry, commit=kept.identity.commit, record_key=kept.digest, outcome=None)
    unit = planned.unit
    if unit is not None and unit.parent is None and not unit.is_on_base and kept.identity.commit == unit.commit:
        if not unit.spec.spectra or kept.identity.spec.spectra == unit.spec.spectra:
            unit = None  # its base was known as well or better when the record was made
    return replace(planned, entry=earlier, missed=entry.outcome, unit=unit)


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
    # The last failure, with spectra or without: a model that cannot be read cannot be read for either.
    failures = [failure for one in _that_serve(unit.identity) if (failure := store.failure(one.digest)) is not None]
    outcome = max(failures, key=lambda one: one.when, default=None)
    is_due = outcome is None or outcome.reason in RECHECKED
    if outcome is not None and outcome.status == "failed":
        is_due = is_due or retry_failed or outcome.is_due
    is_here = listed.claimed_by != BY_FOLDER or listed.id in folders
    is_wanted = is_selected and is_here and not listed.deleted_at_hub and is_due
    entry = Entry(listed, template.base, commit, found.digest if found else None, None if found else outcome)
    return Planned(entry, unit if is_wanted else None, lacks_spectra=found is not None)


def existing_record(identity: Identity, store: RecordStore) -> Identity | None:
    """The existing record of this model at this commit; of several the one with the most spectra.

    Among those with the same spectra, the one of the newest SVD method.
    """
    return next((one for one in _that_serve(identity) if store.has(one.digest)), None)


def move_records(store: RecordStore, base: str, renamed: dict[str, str]) -> list[str]:
    """Copy the records of renamed models to their new names, so that no weights are read again.

    Returns the digests of the records under the old names, to be deleted once nothing published names them.
    """
    superseded = []
    for kept in list(store.headers()) if renamed else ():
        new = renamed.get(kept.identity.model)
        if new is None or kept.identity.base != base:
            continue
        identity = replace(kept.identity, model=new)
        if not store.has(identity.digest):
            store.write(replace(store.read(kept.digest), identity=identity))
        superseded.append(kept.digest)
    return superseded


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


def item_bytes(row: dict[str, Any], otherwise: int) -> int:
    """The bytes of one number in a model's files, by the dtypes that its row names (``safetensors.parameters``)."""
    stored = row.get("safetensors")
    parameters = stored.get("parameters") if isinstance(stored, dict) else None
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    counts = {
        name: count
        for name, count in (parameters.items() if isinstance(parameters, dict) else ())
        if isinstance(count, int) and name in sizes
    }
    return sizes[max(counts, key=lambda name: counts[name])] if counts else otherwise
