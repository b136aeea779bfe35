"""Tables and colours at a real (pseudo) terminal, and in any encoding."""

from __future__ import annotations

import unicodedata

import pytest

from tests.console.speaking import ESCAPE, at_terminal, plain_lines, run

ROWS = 'rows = [{"rank": i, "model": "some-owner/a-rather-long-model-name-%d" % i, "similarity": i / 7, "datasets": ["sst2", "mnli", "qqp"], "author": "some-owner"} for i in range(3)]\n'


@pytest.mark.parametrize("columns", [200, 100, 80, 77])
def test_a_table_fits_the_terminal(columns):
    lines = plain_lines(at_terminal(ROWS + 'emit(rows, "table")', columns))
    assert len(lines) == 4
    assert all(len(line) <= columns for line in lines)
    assert "0.1429" in lines[2]  # numbers are never cut
    assert "some-owner/a-rather-long-model-name-1 " in lines[2]  # nor is the id, which is there to be copied
    assert any("…" in line for line in lines) == (columns < 90)


@pytest.mark.parametrize("columns", [70, 40])
def test_a_narrow_terminal_gets_a_line_for_each_value(columns):
    lines = plain_lines(at_terminal(ROWS + 'emit(rows, "table")', columns))
    assert lines[:6] == [
        "rank: 0",
        "model: some-owner/a-rather-long-model-name-0",
        "similarity: 0.0000",
        "datasets: sst2, mnli, qqp",
        "author: some-owner",
        "",
    ]


def test_ids_are_whole_wherever_they_stand():
    code = """
        rows = [{"reason": "no_weights", "example": "It holds no weights at all. " * 4, "example_model": "an-owner/a-long-model-name"}]
        emit(rows, "table")
        """
    wide, narrow = plain_lines(at_terminal(code, 60)), plain_lines(at_terminal(code, 45))
    assert wide[1].startswith("no_weights  It holds")
    assert wide[1].endswith("…  an-owner/a-long-model-name")
    assert "example_model: an-owner/a-long-model-name" in narrow


def test_wide_characters_are_cut_where_they_stand():
    for line in plain_lines(at_terminal('emit([{"a": "x" * 20, "b": "日本語" * 30}], "table")', 50)):
        width = sum(2 if unicodedata.east_asian_width(c) == "W" else 1 for c in line)
        assert width <= 50


def test_colour_only_where_it_is_wanted():
    code = 'emit([{"a": 1}], "table")'
    assert "\x1b[1m" in at_terminal(code)
    assert ESCAPE not in at_terminal(code, environment={"NO_COLOR": "1"})
    assert ESCAPE not in at_terminal(code, environment={"TERM": "dumb"})
    assert "\x1b[1m" in at_terminal(code, environment={"NO_COLOR": ""})


def test_csv_on_a_terminal_is_clean_too():
    out = at_terminal('emit([{"a": "over\\u202eride\\x1b[31m\\nb"}], "csv")')
    assert out.replace("\r", "") == "a\nover\\u202eride\\x1b[31m\\nb\n"


@pytest.mark.parametrize("output", ["table", "csv", "json"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_will_do(output, encoding):
    code = f'emit([{{"a": "modèle 日本 \\udc80", "b": "…"}}], "{output}")'
    done = run(code, {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, text=False)
    assert done.stderr == b""
    assert done.returncode == 0
    text = done.stdout.decode(encoding)
    assert ("modèle" in text) == (encoding != "ascii" and output != "json")


def test_a_table_of_numbers_cuts_the_names_of_columns_before_it_turns_into_records():
    row = {"layer": 0, "query": 0.0554, "key": 0.0519, "value": 0.0541, "output": 0.0606, "feedforward1": 0.0498,
           "feedforward2": 0.0476}  # fmt: skip
    heads, numbers = plain_lines(at_terminal(f"emit([{row!r}], 'table')", 60))
    assert heads.split()[-2:] == ["feed…ard1", "feed…ard2"]
    assert numbers.split() == ["0", "0.0554", "0.0519", "0.0541", "0.0606", "0.0498", "0.0476"]


def test_records_leave_nothing_out():
    """A line for each value has room for the columns that a narrow table would leave out."""
    row = {"rank": 1, "model": "some-author/a-model-with-a-long-name-of-sixty-columns-or-so", "similarity": 0.5,
           "author": "some-author", "datasets": ["glue"]}  # fmt: skip
    lines = plain_lines(at_terminal(f"emit([{row!r}], 'table', optional_columns=('author', 'rank', 'datasets'))", 60))
    assert [line.partition(":")[0] for line in lines if line] == list(row)
