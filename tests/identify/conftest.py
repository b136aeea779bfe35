"""An atlas with three bases, two of them of the same shapes, and models made from them."""

from __future__ import annotations

from contextlib import closing

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import store_base
from indexer.sources.registry import ModelRef
from tests import checkpoints
from tests.atlas_builder import BASE, Model, insert_base, write_atlas

KIND, OTHER_KIND = checkpoints.roberta(4, 32, 64), checkpoints.gpt2(4, 32)
TWIN, GPT2 = "org/twin", "org/gpt2-base"
BASES = {BASE: (KIND, 1), TWIN: (KIND, 2), GPT2: (OTHER_KIND, 3)}


@pytest.fixture(scope="session")
def weights():
    """Of each base, by its id."""
    return {name: kind.random(seed) for name, (kind, seed) in BASES.items()}


@pytest.fixture(scope="session")
def atlas(tmp_path_factory, weights):
    folder = tmp_path_factory.mktemp("identify")
    path = write_atlas(folder / "atlas", [Model("ann/one", np.eye(8)[0]), Model("bob/two", np.eye(8)[1])])
    with duckdb.connect(str(path / "atlas.duckdb")) as connection:
        for name in (TWIN, GPT2):
            insert_base(connection, name, aliases=[f"old-{name[4:]}"])
    for name, (kind, _) in BASES.items():
        saved = checkpoints.save(folder / name, kind, weights[name])
        with closing(open_checkpoint(ModelRef(str(saved), folder=saved))) as checkpoint:
            store_base(checkpoint, name, "c" * 40, AtlasFolder(path).base(name, "c" * 40))
    return path


def tuned(kind, weights, size=0.002, seed=5):
    """A fine-tune: a change of low rank of every matrix."""
    rng = np.random.default_rng(seed)
    return kind.changed(weights, lambda name, shape: checkpoints.low_rank(rng, shape, [size * 30, size * 10]))
