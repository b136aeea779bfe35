"""``scripts.child.call``: a function in a process of its own."""

from __future__ import annotations

import json
import os.path

import pytest

from scripts.child import call


def test_a_function_is_called_in_a_process_with_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = call(os.path.abspath, tmp_path.relative_to(tmp_path) / "x")  # a path arrives as text, relative to this folder
    assert ran.output == str(tmp_path / "x")
    assert ran.seconds > 0
    assert ran.peak_bytes > 1 << 20
    assert call(os.getenv, "COLOUR", environment={"COLOUR": "green"}).output == "green"
    assert call(os.getenv, "COLOUR").output is None


def test_what_a_function_raises_ends_the_call(capfd):
    with pytest.raises(RuntimeError, match=r"json:loads .* failed; its own message is above"):
        call(json.loads, "not JSON")
    assert "JSONDecodeError" in capfd.readouterr().err
