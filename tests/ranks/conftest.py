"""The planted atlas, built once, and copies of it to spoil."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from indexer.atlas import AtlasFolder
from query import Atlas
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.once import made_once
from tests.ranks.planted import build_once


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Iterator[SimpleNamespace]:
    folder = made_once(tmp_path_factory, "ranks", build_once)
    weights = pickle.loads((folder / "weights.pickle").read_bytes())
    with LoopbackHub(folder / "store") as hub:
        shell = Shell(hub.endpoint, folder, {"HF_HOME": str(folder / "hf")})
        yield SimpleNamespace(folder=folder / "atlas", weights=weights, shell=shell)


@pytest.fixture(scope="session")
def atlas(made) -> Iterator[Atlas]:
    with Atlas(made.folder) as opened:
        yield opened


@pytest.fixture
def own(made, tmp_path) -> AtlasFolder:
    """A copy of the atlas that a test may spoil."""
    shutil.copytree(made.folder, tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")
