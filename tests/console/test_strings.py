"""Untrusted strings are shown and never obeyed; options for numbers refuse NaN and numbers out of range."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import indexer.cli
import query.faces.cli
from indexer.console.terminal import clean
from tests.console.speaking import printed

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "bell\x07",
    "back\x08\x08space",
    "line\nfeed",
    "carriage\rreturn",
    "tab\tstop",
    "null\x00",
    "delete\x7f",
    "next\x85line",
    "sep\u2028arator",
    "over\u202eride",
    "iso\u2066late",
    "mark\u200f",
    "zero\u200bwidth",
    "join\u200der",
    "soft\u00adhyphen",
    "bom\ufeff",
    "tag\U000e0041",
    "filler\u3164",
    "select\ufe0f",
    "private\ue000",
    "half\ud800",
]


# ---- strings ----


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_are_shown_and_not_obeyed(text):
    shown = clean(text)
    assert shown.isprintable()
    assert "\\" in shown
    assert len(shown) > len(text)


def test_of_all_characters_only_those_with_a_shape_pass():
    interesting = [*range(0x3100), *range(0xD700, 0x11000), *range(0x1BC00, 0x1D200), *range(0xE0000, 0xE0400)]
    for number in [*interesting, *range(0x11000, 0x110000, 97)]:
        character = chr(number)
        shown = clean("a" + character)
        if shown == "a" + character:
            assert unicodedata.category(character)[0] != "C" or number == 0x20
            assert unicodedata.category(character) not in ("Zl", "Zp")
        else:
            assert shown.isascii()
            assert shown.isprintable()


@pytest.mark.parametrize(
    "text", ["distilbert-base", "日本語モデル", "modèle", "e\u0301te\u0301", "Ελληνικά", "🤗 hub", "C:\\x"]
)
def test_honest_strings_stay(text):
    assert clean(text) == text


def test_a_tower_of_accents_is_cut_down():
    shown = clean("a" + "\u0301" * 50)
    assert shown.startswith("a\u0301\u0301\u0301\\u0301")


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_clean_text_is_clean_already(text):
    assert clean(clean(text)) == clean(text)
    assert "\n" in clean(text, keep_lines=True) or "\n" not in text


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_no_format_lets_an_escape_through(capsys, output):
    rows = [{text: text, "list": [text], "object": {text: text}} for text in HOSTILE]
    for result in (rows, rows[0], {"rows": rows, "object": rows[0]}):
        out = printed(capsys, result, output)
        allowed = "\n\r\t" if output == "csv" else "\n"
        for character in set(out) - set(allowed):
            assert unicodedata.category(character) not in ("Cc", "Cs"), output
        if output != "csv":
            assert not re.search("[\u200b-\u200f\u2028-\u202e\u2066\ufeff\u00ad]", out)
        if output == "table":
            assert out.isprintable() or set(out) - {"\n"} == {c for c in out if c.isprintable()}


def test_json_gives_hostile_strings_back_exactly(capsys):
    out = printed(capsys, HOSTILE and [{"text": text} for text in HOSTILE], "json")
    assert out.isascii()
    assert [row["text"] for row in json.loads(out)] == HOSTILE


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (indexer.cli.main, ["represent", "input", "--vector-length"]),
        (query.faces.cli.main, ["rank", "--threshold"]),
        (query.faces.cli.main, ["sql", "SELECT 1", "--timeout"]),
    ],
)
@pytest.mark.parametrize("number", ["nan", "NaN", "-nan", "inf", "-inf", "1e999", "-1"])
def test_a_number_out_of_range_is_a_usage_error(capsys, tmp_path, main, words, number):
    with pytest.raises(SystemExit) as caught:
        main([*words, number, "--atlas", str(tmp_path / "none")], prog_name="tool")
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert lines[0].startswith(f"Error: Invalid value for '{words[-1]}': ")
    assert len(lines) == 2


def test_a_number_in_the_range_is_taken(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        query.faces.cli.main(["rank", "--threshold", "0.9", "--atlas", str(tmp_path / "none")], prog_name="tool")
    assert caught.value.code == 1
    assert "none" in capsys.readouterr().err
