"""Options that take a number of a range take no other, and no NaN."""

from __future__ import annotations

import pytest

import indexer.cli
import query.cli


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (indexer.cli.main, ["publish", "--recall"]),
        (indexer.cli.main, ["build", "--base", "org/base", "--recall"]),
        (indexer.cli.main, ["represent", "input", "--recall"]),
        (query.cli.main, ["rank", "--threshold"]),
        (query.cli.main, ["sql", "SELECT 1", "--timeout"]),
    ],
)
@pytest.mark.parametrize("number", ["nan", "NaN", "-nan", "inf", "-inf", "1e999", "-1"])
def test_what_lies_in_no_range_is_a_usage_error(capsys, tmp_path, main, words, number):
    with pytest.raises(SystemExit) as caught:
        main([*words, number, "--atlas", str(tmp_path / "none")], prog_name="tool")
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert lines[0].startswith(f"Error: Invalid value for '{words[-1]}': ")
    assert len(lines) == 2


def test_a_number_in_the_range_is_taken(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        query.cli.main(["rank", "--threshold", "0.9", "--atlas", str(tmp_path / "none")], prog_name="tool")
    assert caught.value.code == 1
    assert "none" in capsys.readouterr().err
