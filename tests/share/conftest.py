"""A Hub to push to, and this process as a person who may."""

from __future__ import annotations

import pytest

from tests.share.ground import person


@pytest.fixture
def ann(tmp_path, monkeypatch):
    with person(tmp_path, monkeypatch) as someone:
        yield someone
