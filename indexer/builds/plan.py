"""The plan of a build: whether each selected model is done, has failed for good, or is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from indexer.checkpoints.checkpoint_files import choose
from indexer.errors import AtlasError, Skipped
from indexer.listing.listing import ListedModel
from indexer.listing.parents import Parents, named_base, names_another
from indexer.network.rows import commit_of, listed_filenames
from indexer.publish.rows import Entry
from indexer.records.identity import Identity, Spec, Unit
from indexer.records.store import READER, RecordHeader, RecordStore, current_record
from indexer.sources.claims import BY_FOLDER
from indexer.sources.registry import ModelRef

# Reasons for a skip that can end without a new commit: access may be granted, or a repository enabled again.
_RECHECKED = frozenset({"gated", "disabled"})
# The reason why an adapter is skipped if it needs whole matrices of a base, and the atlas keeps only some rows.
NEEDS_BASE = "base_sampled"


def plan(
    models: Iterable[ListedModel],
    selected: Sequence[ListedModel],
    store: RecordStore,
    template: Unit,
    retry_failed: bool,
    parents: Parents | None = None,
    places: Mapping[str, ModelRef] | None = None,
    *,
    fetches_base: bool = False,
) -> list[Entry]:
    """Look at every listed model; only those in ``selected`` get a unit. ``parents`` looks up the bases of adapters.

    ``places``: where models of folders lie, by id. The atlas does not store that, so others are not read again.
    ``template`` holds what all units share. ``fetches_base``: models that need all of a base of which some rows are
    kept are due, because the build will fetch it. A model outside the selection keeps its record, and a model at a new
    commit keeps the record of an earlier one until the new one is read.
    """
    selected_ids = {model.id for model in selected}
    planned = [
        _planned(model, model.id in selected_ids, store, template, retry_failed, parents, places or {}, fetches_base)
        for model in models
    ]
    present = {entry.record_key for entry in planned if entry.record_key is not None}
    if len(present) == len(planned):
        return planned
    # The other records that could be published, by model, from their headers alone.
    earlier: dict[str, list[RecordHeader]] = {}
    base_and_rank = (template.base, template.base_commit, template.spec.rank)
    for header in store.headers(excluded=present):
        identity = header.identity
        if (identity.base, identity.base_commit, identity.spec.rank) == base_and_rank:
            earlier.setdefault(identity.model, []).append(header)
    return [_with_earlier(entry, earlier.get(entry.listed.id, ())) for entry in planned]


def _with_earlier(entry: Entry, records: Sequence[RecordHeader]) -> Entry:
    """A model without a record of its current commit keeps that of an earlier one, if there is one."""
    stored = current_record(records, entry.commit) if entry.record_key is None else None
    if stored is None:
        return entry
    identity, unit, lacks = stored.identity, entry.unit, entry.lacks
    if unit is not None and identity.spec.version != unit.spec.version:
        lacks = "version"
    elif unit is not None and unit.parent is None and not unit.is_on_base and identity.commit == unit.commit:
        lacks = _lacks(identity, unit.spec)
        # Its base was known as well or better when the record was made. If the model below it is no longer known, its
        # other rows cannot be read.
        if not lacks or (lacks == "rows" and identity.parent):
            unit = None
    return replace(
        entry,
        commit=identity.commit,
        record_key=stored.digest,
        outcome=None,
        unit=unit,
        lacks=lacks,
        missed=entry.outcome,
    )


def _planned(
    listed: ListedModel,
    is_selected: bool,
    store: RecordStore,
    template: Unit,
    retry_failed: bool,
    parents: Parents | None,
    places: Mapping[str, ModelRef],
    fetches_base: bool,
) -> Entry:
    commit = commit_of(listed.row)
    if commit is None:
        return Entry(listed, template.base, None)
    parent = parents.of(listed) if parents is not None and is_selected else None
    refused = parents.refused.get(listed.id.lower(), "") if parents is not None else ""
    is_known = parents is not None and is_selected and listed.id.lower() not in parents.unknown
    # Factors are small and read whole, but an adapter may have been trained on a fine-tune.
    root = parent
    while root is not None and root.relation == "adapter":
        root = root.parent
    is_whole = listed.relation == "adapter" and root is None
    unit = replace(
        template,
        spec=replace(template.spec, sample=template.spec.sample and not is_whole),
        parent=parent,
        is_on_base=is_known and parent is None,
        model=places.get(listed.id) or ModelRef(listed.id),
        commit=commit,
        relation=listed.relation,
        filenames=listed_filenames(listed.row),
        row_base=(named_base(listed.row) or "") if is_known else None,
        card=None,
        refused=refused,
        circle=parents.circles.get(listed.id.lower(), "") if parents is not None else "",
    )
    # Records under another base of the adapter are found by their headers: see _with_earlier.
    is_open = not is_known and listed.relation == "adapter" and names_another(listed.row, template.base)
    stored = None if is_open else existing_record(unit.identity, store)
    lacks = _lacks(stored, unit.spec) if stored is not None else ""
    if stored is not None and not lacks:
        return Entry(listed, template.base, commit, record_key=stored.digest)
    # The last failure, of a sample or a full read: a model that cannot be read fails both ways. One of the future was
    # written before the clock was set back, so before the others.
    failures = [
        failure for record in _that_serve(unit.identity) if (failure := store.failure(record.digest)) is not None
    ]
    outcome = max(failures, key=lambda record: (record.age >= 0, record.when), default=None)
    is_due = (
        outcome is None or outcome.reason in _RECHECKED or (outcome.status == "skipped" and outcome.reader < READER)
    )
    if outcome is not None and outcome.reason == NEEDS_BASE:
        is_due = is_due or fetches_base or not template.spec.sample  # the base is fetched whole for this build
    elif outcome is not None and outcome.status == "failed":
        is_due = is_due or retry_failed or outcome.is_due
    is_here = listed.claimed_by != BY_FOLDER or listed.id in places
    is_wanted = is_selected and is_here and not listed.deleted_at_hub and is_due
    return Entry(
        listed,
        template.base,
        commit,
        record_key=stored.digest if stored else None,
        outcome=None if stored else outcome,
        unit=unit if is_wanted else None,
        lacks=lacks,
    )


def needs_whole_base(unit: Unit) -> bool:
    """Whether, by what is listed, a model is compared with matrices of the base: an adapter of the base itself is not.

    One whose change depends on the weights all the same is noticed when it is read (NEEDS_BASE).
    """
    root = unit.parent
    while root is not None and root.relation == "adapter":
        root = root.parent
    if unit.relation != "adapter" or root is not None or unit.filenames is None:
        return True
    try:
        return choose(unit.filenames, unit.relation).kind != "adapter"
    except Skipped:
        return False


def _lacks(stored: Identity, spec: Spec) -> str:
    """Which part required by ``spec`` a record lacks: "spectra", "rows" or ""."""
    if spec.spectra and not stored.spec.spectra:
        return "spectra"
    return "rows" if stored.spec.sample and not spec.sample else ""


def existing_record(identity: Identity, store: RecordStore) -> Identity | None:
    """The existing record of this model at this commit: preferably one with spectra, else a full one."""
    return next((header for header in _that_serve(identity) if store.has(header.digest)), None)


def move_records(store: RecordStore, base: str, renamed: dict[str, str]) -> None:
    """Copy the records of renamed models to their new names, so that no weights are read again.

    A damaged one is left where it is, and its model is read again under the new name.
    """
    for header in list(store.headers()) if renamed else ():
        new = renamed.get(header.identity.model)
        if new is None or header.identity.base != base:
            continue
        identity = replace(header.identity, model=new)
        if not store.has(identity.digest):
            with suppress(AtlasError):
                store.write(replace(store.read(header.digest), identity=identity))


def _that_serve(identity: Identity) -> Iterator[Identity]:
    """The identities of records that may serve, the best first: with spectra, without, and of a sample."""
    for spectra, sample in ((True, False), (False, False), (False, True)):
        yield replace(identity, spec=replace(identity.spec, spectra=spectra, sample=sample))
