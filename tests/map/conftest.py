"""One planted atlas for all tests that only look."""

from __future__ import annotations

import pytest

from query import Atlas
from tests.map.planted import MODELS
from tests.planted_atlas import plant_atlas


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plant_atlas(tmp_path_factory.mktemp("map") / "atlas", MODELS)


@pytest.fixture(scope="module")
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened
