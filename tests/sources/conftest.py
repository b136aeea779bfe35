"""A Hub beside the trees."""

from __future__ import annotations

import pytest

from scripts.loopback_hub import LoopbackHub
from tests.hubs import reset_session, use_endpoint


@pytest.fixture
def hub(tiny_store, tmp_path, monkeypatch):
    """This process, talking to a Hub that has the base."""
    monkeypatch.chdir(tmp_path)
    with LoopbackHub(tiny_store(2)) as running:
        use_endpoint(monkeypatch, running.endpoint)
        yield running
        reset_session()
