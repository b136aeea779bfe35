"""Child processes that buffer as a person's do, and find the code under test."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def _as_a_person_has_it(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # buffers are what this is about
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path or os.getcwd() for path in sys.path))
