from __future__ import annotations

import numpy as np
import pytest

from tests.atlas_builder import Model, write_atlas


@pytest.fixture(scope="session")
def small_atlas(tmp_path_factory):
    """Five models without a checkpoint; two of them are called "twin"."""
    directions = np.random.default_rng(0).normal(size=(5, 8))
    names = ("ann/one", "bob/two-fine-tune", "cyd/twin", "dan/twin", "eve/three")
    models = [
        Model(name, vector, ("sst2",) if name != "eve/three" else ())
        for name, vector in zip(names, directions, strict=True)
    ]
    return write_atlas(tmp_path_factory.mktemp("small_atlas") / "atlas", models)
