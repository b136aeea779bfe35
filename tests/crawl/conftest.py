"""A small Hub's folder."""

from __future__ import annotations

import pytest

from tests.hub_ground import add_base


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root
