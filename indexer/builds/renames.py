"""Renamed models: the Hub redirects from the old name to the new one, and the atlas lists the model under that, once.

An old name is noticed when the model is read (its files are served from another repository), or when a crawl no longer
lists it. The Hub's answer to the old name contains the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from huggingface_hub import constants

from indexer.errors import ModelError
from indexer.listing.listing import Listing
from indexer.names import is_hub_id
from indexer.network.hub import model_row
from indexer.records.store import RecordStore

# At most this many requests, even where thousands of models have left the listing at once.
MOST_ASKED = 200


def follow_renames(listing: Listing, base_ids: Collection[str], names: Sequence[str]) -> dict[str, str]:
    """Ask the Hub for the current name of each of ``names``, and list it under that; returns old name → new name.

    A name that the Hub does not know, or cannot look up now, stays as it is. One that leads to the base is unlisted.
    """
    found: dict[str, str] = {}
    for old in [] if constants.HF_HUB_OFFLINE else [name for name in names if is_hub_id(name)][:MOST_ASKED]:
        try:
            row = model_row(old)
        except ModelError:
            continue
        new = str(row["id"])
        if new != old:
            listing.rename(old, None if new in base_ids else row, new)
            found[old] = new
    return found


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
