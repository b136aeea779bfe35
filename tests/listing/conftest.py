"""A small Hub's folder, and where its listing goes."""

from __future__ import annotations

import pytest

from tests.hub_ground import add_base


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root


@pytest.fixture
def path(tmp_path):
    return tmp_path / "atlas/listing/FacebookAI--roberta-base.jsonl"
