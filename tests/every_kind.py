"""An atlas with every kind of file: segments, a failure, profiles, lineage."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.errors import Failed
from indexer.listing.listing import Listing
from indexer.profiles.store import Profile, ProfileIdentity, ProfileStore
from indexer.publish.stored_answers import LINEAGE, write_answers
from indexer.records.identity import Identity, Spec
from indexer.records.store import RecordStore
from indexer.upkeep.maintenance import represent
from tests.tiny_hub import BASE, indexed, make_store

LAYERS = 3


def make_every_kind(folder: Path) -> None:
    """A Hub's store and an atlas of its six models, in ``folder``."""
    with indexed(make_store(folder / "store", per_dataset=2)):
        pass
    atlas = AtlasFolder(folder / "atlas")
    (base,) = atlas.bases.iterdir()
    commit = base.stem.rpartition("@")[2]
    model = Listing(atlas.listing(BASE)).models()[0]
    identity = Identity(model.id, "0" * 40, BASE, commit, "finetune", Spec(rank=5))
    RecordStore(atlas).write_failure(identity, Failed("network", "it went away"))
    with Reading(atlas.database) as connection:
        models = connection.rows('SELECT model, "commit", record_key FROM fine_tunes ORDER BY model')
    _profile(atlas, ProfileIdentity("base", BASE, commit, BASE, commit), 0)
    for number, row in enumerate(models, start=1):
        _profile(atlas, ProfileIdentity("fine_tune", row["model"], row["commit"], BASE, commit), number)
    parent = models[0]
    write_answers(
        LINEAGE,
        atlas,
        BASE,
        [
            {
                "model": row["model"], "record_key": row["record_key"], "parent": parent["model"],
                "parent_key": parent["record_key"], "kind": "continued", "method": None, "coefficient": 1.0,
                "left": 0.25, "card": "not declared", "direction": "known", "evidence": None, "same": [],
                "bytes_read": 1000, "answered_at": "2026-01-01T00:00:00", "probability": 0.9,
            }
            for row in models[1:]
        ],
    )  # fmt: skip
    represent(atlas, "spectrum")


def _profile(atlas: AtlasFolder, identity: ProfileIdentity, seed: int) -> None:
    draws = np.random.default_rng(seed)
    names = ("tolerance", "readable", "reach", "cka", "drift")
    ProfileStore(atlas).write(
        Profile(
            identity=identity,
            layers=np.arange(1, LAYERS + 1),
            is_constant=np.zeros(LAYERS, dtype=bool),
            values={name: draws.uniform(0.1, 1, LAYERS).astype(np.float32) for name in names},
            errors={},
            probe_sha256="p",
            made="2026-01-01T00:00:00+00:00",
        )
    )
