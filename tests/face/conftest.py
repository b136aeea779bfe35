"""An atlas small_atlas once, with names that want to be markup."""

from __future__ import annotations

import numpy as np
import pytest

from tests.atlas_builder import Model, write_atlas

HOSTILE = "<script>alert(1)</script>"
DATASETS = ("org/one", "org/two")


@pytest.fixture(scope="session")
def small_atlas(tmp_path_factory):
    """Twelve models by six authors on two datasets, one that names none; one dataset is named like markup."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2, 8))
    models = [
        Model(
            f"author{number % 6}/model-{number}",
            centres[number % 2] + 0.3 * rng.normal(size=8),
            datasets=() if number == 11 else (DATASETS[number % 2], *((HOSTILE,) if number == 0 else ())),
            author=f"author{number % 6}",
            downloads=None if number == 3 else number,
        )
        for number in range(12)
    ]
    return write_atlas(tmp_path_factory.mktemp("face") / "atlas", models)
