"""A small store, and the loopback Hub over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.loopback_hub.store import TOKENS, make_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


@pytest.fixture
def hub(root: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(root, page_size=3, tokens=TOKENS) as running:
        yield running
