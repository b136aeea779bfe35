"""``python -m studies.conversions`` finds what it plants, and writes its tables."""

from __future__ import annotations

import sys

import pytest

from studies.conversions import __main__ as command


@pytest.mark.slow
def test_the_study_writes_its_tables(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- conversions -->\nold\n<!-- /conversions -->\nafter\n")
    out = tmp_path / "figures.json"
    words = [
        "--distances",
        "0.01",
        "--models",
        "4",
        "--asked",
        "2",
        "--nulls",
        "3",
        "--out",
        str(out),
        "--page",
        str(page),
    ]
    monkeypatch.setattr(sys, "argv", ["studies.conversions", *words])
    command.main()
    text = page.read_text()
    assert text.startswith("before\n<!-- conversions -->\n| format |")
    assert "| Q4_0 | .01 | 8 of 8 | 8 | 8 | 0 of 24 pairs |" in text
    assert "4 of 4 exactly | 6 of 6 unknown | 6 | 6 of 6 |" in text
    monkeypatch.setattr(command, "sources", None)  # another run goes on where the first ended
    command.main()
    assert page.read_text() == text
