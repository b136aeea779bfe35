"""`index remove`: take a model out of the atlas, so that the next build does not bring it back.

The listing notes first what is to be removed, and last that nothing is left. A removal that was interrupted between the
two is finished by the next command that publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.database.connection import NOT_A_FAILED_ADD, base_named, model_ending_in, published_bases
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.listing.listing_tables import Removal
from indexer.names import nearest, with_dots
from indexer.profiles.store import ProfileStore
from indexer.publish.publish import publish
from indexer.publish.rows import Publication
from indexer.publish.stored_answers import forget_answers
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef


@plain_arguments
def remove(
    model: str, base: str | None = None, atlas: str | Path = "atlas", *, keep_record: bool = False
) -> dict[str, Any]:
    """Take a model out of every base that has it, or out of ``base``: what `index remove` does.

    Its rows, vectors, profiles and records go, and the listing notes the removal, so that builds ignore the model until
    `index add` names it. ``keep_record``: its records stay on disk, so that adding it again reads nothing. Returns
    ``model``, ``bases``, ``records_removed`` and ``atlas``. Raises AtlasError if the atlas does not contain it.
    """
    folder = AtlasFolder(atlas).require()
    with folder.locked("index remove"):
        names_in_bases = _bases_of(folder, model, base)
        name = next(iter(names_in_bases.values()))
        removal = Removal(name, tuple(names_in_bases), with_records=not keep_record)
        Listing(folder.listing(removal.bases[0])).remove(removal)
        records = finish_removals(folder).get(name, 0)
    return {"model": name, "bases": list(names_in_bases), "records_removed": records, "atlas": str(folder.root)}


def finish_removals(
    folder: AtlasFolder, bases: Iterable[str] | None = None, say: Callable[[str], None] = lambda sentence: None
) -> dict[str, int]:
    """Finish interrupted removals from ``bases``, by default from all; return the number of records removed, by model.

    The caller holds the lock of the writer. Raises AtlasError if the atlas cannot be read or written.
    """
    if not folder.database.exists():
        return {}
    with Reading(folder.database) as connection:
        published = {row["base"]: row for row in published_bases(connection)}
        removals = unfinished_removals(folder, published if bases is None else bases)
        statement = "SELECT base, model FROM fine_tunes WHERE list_contains($models, model)"
        rows = connection.rows(statement, {"models": [removal.model for removal in removals]}) if removals else []
    for removal in removals:
        say(f"finishing the removal of {removal.model}")
        forget(folder, removal)
    withdrawn = {
        base: [
            removal.model
            for removal in removals
            if base in removal.bases and {"base": base, "model": removal.model} in rows
        ]
        for base in published
    }
    publications = [
        Publication(
            StoredBase(folder.base(base, published[base]["commit"])),
            (), (), published[base]["rank"], withdrawn=models,
        )
        for base, models in withdrawn.items()
        if models
    ]  # fmt: skip
    if publications:
        publish(folder, publications, say=say)
    return {removal.model: conclude(folder, removal) for removal in removals}


def unfinished_removals(folder: AtlasFolder, bases: Iterable[str]) -> list[Removal]:
    """Removals that were begun, according to the listings of ``bases``."""
    removals: dict[str, Removal] = {}
    for base in bases:
        for model, removal in sorted(Listing(folder.listing(base)).removals.items()):
            if (other := removals.get(model)) is not None:
                bases = tuple(dict.fromkeys((*other.bases, *removal.bases)))
                removal = Removal(model, bases, removal.with_records or other.with_records)
            removals[model] = removal
    return list(removals.values())


def forget(folder: AtlasFolder, removal: Removal) -> None:
    """Take a model out of the listings, stored answers and profiles."""
    profiles = ProfileStore(folder)
    for base in removal.bases:
        Listing(folder.listing(base)).remove(removal)
        forget_answers(folder, base, removal.model)
    for digest in list(profiles.digests()):
        with suppress(AtlasError):
            identity = profiles.read(digest).identity
            if (identity.subject, identity.model) == ("fine_tune", removal.model) and identity.base in removal.bases:
                folder.profile(digest).unlink(missing_ok=True)


def conclude(folder: AtlasFolder, removal: Removal) -> int:
    """Remove the records of a model that is no longer published, and note the end; returns how many there were."""
    records = 0
    for base in removal.bases:
        if removal.with_records:
            records += _remove_records(folder, base, removal.model)
        Listing(folder.listing(base)).finish_removal(removal.model)
    return records


def _bases_of(folder: AtlasFolder, model: str, base: str | None) -> Mapping[str, str]:
    """Base → the model's name there. A model whose removal was interrupted is found in its listing."""
    typed = ModelRef.parse(model).id
    with Reading(folder.database) as connection:
        wanted_base = base_named(connection, base) if base is not None else None
        bases = [row["base"] for row in connection.rows("SELECT base FROM bases ORDER BY base")]
        name, rows = typed, list[dict[str, Any]]()
        for spelled in dict.fromkeys((typed, with_dots(typed))):
            if rows:
                break
            full_name = model_ending_in(connection, spelled) or spelled
            rows = connection.rows(
                "SELECT model, base FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC, base",
                [full_name, full_name],
            )
            name = full_name if rows or spelled == typed else name
        suggested = f"SELECT DISTINCT model FROM fine_tunes WHERE {NOT_A_FAILED_ADD} ORDER BY model"
        models = [row["model"] for row in connection.rows(suggested)]
    names = {row["base"]: str(row["model"]) for row in rows if row["model"] == rows[0]["model"]}
    names |= {
        listed_base: name
        for listed_base in bases
        if listed_base not in names and name in Listing(folder.listing(listed_base)).removed
    }
    names = {
        listed_base: name_in_base for listed_base, name_in_base in names.items() if wanted_base in (None, listed_base)
    }
    if not names:
        near = nearest(typed, models)
        hint = f"Did you mean {' or '.join(near)}?" if near else 'List its models: query sql "SELECT model FROM models"'
        raise AtlasError(
            f"{model} is not in this atlas{'' if wanted_base is None else f' as a model of {wanted_base}'}.", hint
        )
    return names


def _remove_records(folder: AtlasFolder, base: str, model: str) -> int:
    """Remove its records and stored failures; returns the number of records."""
    store = RecordStore(folder)
    records = [
        header.digest for header in store.headers() if (header.identity.model, header.identity.base) == (model, base)
    ]
    for digest in records:
        store.discard(digest)
    for digest in list(store.failure_digests()):
        outcome = store.failure(digest)
        if outcome is not None and (outcome.identity.model, outcome.identity.base) == (model, base):
            store.discard_failure(digest)
    return len(records)
