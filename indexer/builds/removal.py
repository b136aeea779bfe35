"""`index remove`: take a model out of the atlas, so that the next build does not bring it back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.database.connection import base_named, model_ending_in, published_bases
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.names import ModelRef, nearest
from indexer.profiles.store import ProfileStore
from indexer.publish.publish import publish
from indexer.publish.rows import Publication
from indexer.publish.stored_answers import forget_answers
from indexer.records.store import RecordStore


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
        found = _bases_of(folder, model, base)
        name = next(iter(found.values()))
        profiles, records = ProfileStore(folder), 0
        for canonical in found:
            Listing(folder.listing(canonical)).remove(name)
            forget_answers(folder, canonical, name)
            for digest in list(profiles.digests()):
                with suppress(AtlasError):
                    identity = profiles.read(digest).identity
                    if (identity.subject, identity.model, identity.base) == ("fine_tune", name, canonical):
                        folder.profile(digest).unlink(missing_ok=True)
            with Reading(folder.database) as connection:
                (row,) = published_bases(connection, canonical)
            stored = StoredBase(folder.base(canonical, row["commit"]))
            publish(folder, [Publication(stored, (), (), row["rank"], withdrawn=(name,), purged=True)])
            if not keep_record:
                records += _remove_records(folder, canonical, name)
    return {"model": name, "bases": list(found), "records_removed": records, "atlas": str(folder.root)}


def _bases_of(folder: AtlasFolder, model: str, base: str | None) -> Mapping[str, str]:
    """Base → the model's name there. A model whose removal was interrupted is found in its listing."""
    typed = ModelRef.parse(model).id
    with Reading(folder.database) as connection:
        wanted = base_named(connection, base) if base is not None else None
        bases = [row["base"] for row in connection.rows("SELECT base FROM bases ORDER BY base")]
        name = model_ending_in(connection, typed) or typed
        rows = connection.rows(
            "SELECT model, base FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC, base",
            [name, name],
        )
        known = [row["model"] for row in connection.rows("SELECT DISTINCT model FROM fine_tunes ORDER BY model")]
    found = {row["base"]: str(row["model"]) for row in rows if row["model"] == rows[0]["model"]}
    found |= {one: name for one in bases if one not in found and name in Listing(folder.listing(one)).removed}
    found = {one: there for one, there in found.items() if wanted in (None, one)}
    if not found:
        near = nearest(typed, known)
        hint = f"Did you mean {' or '.join(near)}?" if near else 'List its models: query sql "SELECT model FROM models"'
        raise AtlasError(f"{model} is not in this atlas{'' if wanted is None else f' as a model of {wanted}'}.", hint)
    return found


def _remove_records(folder: AtlasFolder, base: str, model: str) -> int:
    """Remove its records and stored failures; returns the number of records."""
    store = RecordStore(folder)
    records = [kept.digest for kept in store.headers() if (kept.identity.model, kept.identity.base) == (model, base)]
    for digest in records:
        store.discard(digest)
    for digest in list(store.failure_digests()):
        outcome = store.failure(digest)
        if outcome is not None and (outcome.identity.model, outcome.identity.base) == (model, base):
            store.discard_failure(digest)
    return len(records)
