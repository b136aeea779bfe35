"""Whether a published centre is what the vectors were centred with, and what its members' records make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.database.connection import Connection
from indexer.errors import AtlasError
from indexer.publish.verification import Disagreement
from indexer.records.representation import REPRESENTATIONS, representation_named
from indexer.records.store import RecordStore
from indexer.vectors.centre import ADAPTER, GROUPS, Centre, GroupCentre, centre_of
from indexer.vectors.published import Published

# A centre that moved was made from vectors kept in 16 bits.
TOLERANCE = 1e-3


def check_centre(
    folder: AtlasFolder, connection: Connection, published: Published, centre: Centre | None
) -> Iterator[Disagreement]:
    """Every group's centre against the mean of its members, as far as their records are still here."""
    if centre is None or published.representation not in REPRESENTATIONS:
        return
    what = f"{published.base}, {published.representation}"
    for group, said in centre.groups.items():
        members = connection.rows(
            "SELECT record_key, vote FROM internal.centre_members WHERE base = ? AND representation = ? "
            "AND vector_group = ? ORDER BY model_id",
            (published.base, published.representation, group),
        )
        if len(members) != said.models:
            told = f"the centre of group {group} was made of {said.models} models, and {len(members)} are named"
            yield Disagreement("centre", what, told)
            continue
        made = _made_of(folder, published, members, None if group in GROUPS else centre.groups[ADAPTER])
        if made is None:
            continue
        is_same = made.blocks.shape == said.blocks.shape and np.allclose(made.blocks, said.blocks, atol=TOLERANCE)
        if not is_same or not np.array_equal(made.votes, said.votes):
            told = f"the centre of group {group} is not the mean of the models it was made of"
            yield Disagreement("centre", what, told)


def _made_of(
    folder: AtlasFolder, published: Published, members: list[dict[str, Any]], above: GroupCentre | None
) -> GroupCentre | None:
    """The centre of these models; None where a record is gone, or holds no factors of its commit then.

    ``above``: the adapters' centre, where these are of one initialisation.
    """
    blocks = published.masks.blocks
    if not members:
        return GroupCentre.nothing(blocks, published.length // blocks)
    store = RecordStore(folder)
    representation = representation_named(published.representation, published.choice.budget)
    vectors = []
    for member in members:
        try:
            vectors.append(representation.vector(store.read(member["record_key"])).astype(np.float32))
        except (AtlasError, TypeError):
            return None
    if any(len(vector) != published.length for vector in vectors):
        return None
    return centre_of(np.stack(vectors), [one["vote"] for one in members], blocks, above)
