"""The atlas of the maps, for tests that only read it."""

from __future__ import annotations

import duckdb
import pytest

from query import Atlas
from tests.atlas_builder import write_atlas
from tests.map.planted import MODELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_atlas(tmp_path_factory.mktemp("map") / "atlas", MODELS)
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        connection.execute(
            "UPDATE fine_tunes SET created = NULL WHERE created >= '2026-01-01'"
        )  # MODELS does not say when
    return folder


@pytest.fixture(scope="module")
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened
