"""Models under an old name: the Hub leads from there to the new one, and the atlas holds the model under that, once.

A row of an old name is met by reading it (its files are served from another repository), a model that was renamed
since the last crawl by its no longer being listed. Asked for under its old name, the Hub tells the new one.
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

# A listing that suddenly lacks thousands of models is not asked after each of them.
MOST_ASKED = 200


def follow_renames(listing: Listing, base_ids: Collection[str], names: Sequence[str]) -> dict[str, str]:
    """Ask the Hub what each of ``names`` is called now, and list it under that; old name → new one.

    What the Hub no longer knows, or does not tell just now, stays as it is. One that leads to the base is none.
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
    """Keep what is known of models under their new names; the digests of their records under the old ones.

    Those are in the way once nothing published names them any more. Weights are not read again for a name.
    """
    superseded = []
    for kept in list(store.kept()) if renamed else ():
        new = renamed.get(kept.identity.model)
        if new is None or kept.identity.base != base:
            continue
        identity = replace(kept.identity, model=new)
        if not store.has(identity.digest):
            store.write(replace(store.read(kept.digest), identity=identity))
        superseded.append(kept.digest)
    return superseded
