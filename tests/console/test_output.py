"""One result as JSON, CSV and table: whole, harmless, and the same in all three."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import decimal
import io
import json
import os
import textwrap
import uuid
from pathlib import Path

import numpy as np
import pytest

from indexer.console.terminal import (
    as_plain,
    emit,
)
from tests.console.speaking import printed


@dataclasses.dataclass(frozen=True)
class Inner:
    score: float


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    inners: tuple[Inner, ...]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (np.float32("nan"), None),
        (np.float64(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, np.nan], [2.0, np.inf]]), [[1.0, None], [2.0, None]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.datetime64("2024-01-31T12:00:00.123456789"), "2024-01-31T12:00:00.123456789"),
        (np.datetime64("NaT"), None),
        (np.array(["2024-01-31", "NaT"], dtype="M8[D]"), ["2024-01-31", None]),
        (datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC), "2024-01-31T12:00:00+00:00"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        (datetime.time(12, 30), "12:30:00"),
        (datetime.timedelta(minutes=1), 60.0),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, 10, "a", None}), [None, 2, 10, "a"]),
        ((1, 2), [1, 2]),
        ((n for n in (1, 2)), [1, 2]),
        (b"\x00\xff", "00ff"),
        (Path("a") / "b", os.path.join("a", "b")),
        (decimal.Decimal("1.50"), 1.5),
        (decimal.Decimal("7"), 7),
        (decimal.Decimal("NaN"), None),
        (uuid.UUID(int=0), "00000000-0000-0000-0000-000000000000"),
        ({1: {"x": float("-inf")}}, {"1": {"x": None}}),
        (Outer("n", Inner(float("nan")), (Inner(1.0),)), {"name": "n", "inner": {"score": None}, "inners": [{"score": 1.0}]}),
        (2**70, 2**70),
        (None, None),
    ],
)  # fmt: skip
def test_everything_becomes_jsons_own_types(value, plain):
    got = as_plain(value)
    if isinstance(plain, list) and isinstance(value, frozenset):
        assert sorted(map(str, got)) == sorted(map(str, plain))
    else:
        assert got == plain
    assert got is None or type(got) in (bool, int, float, str, list, dict)
    json.dumps(got, allow_nan=False)


def test_one_object_is_an_object_and_many_are_a_list(capsys):
    assert json.loads(printed(capsys, {"b": 1, "a": 2}, "json")) == {"b": 1, "a": 2}
    assert list(json.loads(printed(capsys, {"b": 1, "a": 2}, "json"))) == ["b", "a"]
    assert json.loads(printed(capsys, [{"a": 1}], "json")) == [{"a": 1}]
    assert json.loads(printed(capsys, Inner(1.0), "json")) == {"score": 1.0}
    assert json.loads(printed(capsys, [Inner(1.0)] * 2, "json")) == [{"score": 1.0}] * 2
    assert printed(capsys, {"a": 1}, "jsonl") == '{"a": 1}\n'
    assert printed(capsys, [{"a": 1}, {"a": [2]}], "jsonl") == '{"a": 1}\n{"a": [2]}\n'


def test_jsonl_is_printed_as_it_goes(capsys):
    def rows():
        yield {"a": 1}
        assert capsys.readouterr().out == '{"a": 1}\n'
        yield {"a": 2}

    assert printed(capsys, rows(), "jsonl") == '{"a": 2}\n'


@pytest.mark.parametrize(
    ("output", "out"), [("json", "[]\n"), ("jsonl", ""), ("table", ""), ("csv", "model,similarity\n")]
)
def test_nothing_found(capsys, output, out):
    emit([], output, columns=["model", "similarity"])
    captured = capsys.readouterr()
    assert captured.out == out
    assert captured.err == "no rows\n"


# ---- csv ----


def test_csv_is_what_a_csv_reader_reads(capsys):
    rows = [
        {"text": 'a "quoted", text', "list": ["a", "b"], "number": -1.5, "none": None, "truth": True},
        {"text": "two\r\nlines", "list": [1, 2], "number": 7, "none": None, "truth": False},
    ]
    out = printed(capsys, rows, "csv")
    assert out.endswith("\n")
    assert not out.endswith("\r\n")
    assert list(csv.reader(io.StringIO(out, newline=""))) == [
        ["text", "list", "number", "none", "truth"],
        ['a "quoted", text', "a;b", "-1.5", "", "true"],
        ["two\r\nlines", "1;2", "7", "", "false"],
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_formula_reaches_a_spreadsheet(capsys, start):
    formula = start + "HYPERLINK(1)"
    rows = [{formula: formula, "list": ["a", formula], "first": [formula, "a"], "number": -1, "object": {"x": formula}}]
    (head, row) = csv.reader(io.StringIO(printed(capsys, rows, "csv"), newline=""))
    assert head == ["'" + formula, "list", "first", "number", "object.x"]
    assert row == ["'" + formula, f"a;'{formula}", f"'{formula};a", "-1", "'" + formula]


def test_csv_flattens_objects_and_keeps_rows_whole(capsys):
    out = printed(capsys, {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [{"g": 1}]}, "csv")
    assert out == 'a,b.c,b.d.e,f\n1,2,3,"[{""g"": 1}]"\n'
    assert printed(capsys, [{"a": 1}, {"b": 2}], "csv") == "a,b\n1,\n,2\n"


# ---- tables ----


def test_a_table_for_people(capsys):
    rows = [
        {"rank": 1, "model": "a/b", "similarity": 0.98765432, "datasets": ["sst2", "mnli"], "gated": True},
        {"rank": 10, "model": "owner/name", "similarity": -0.5, "datasets": [], "gated": False},
    ]
    assert printed(capsys, rows, "table") == (
        "rank  model       similarity  datasets    gated\n"
        "   1  a/b             0.9877  sst2, mnli  yes\n"
        "  10  owner/name     -0.5000              no\n"
    )


def test_wide_characters_line_up(capsys):
    rows = [{"a": "日本", "b": "x"}, {"a": "e\u0301", "b": "x"}, {"a": "abcd", "b": "x"}, {"a": "🤗", "b": "x"}]
    lines = printed(capsys, rows, "table").splitlines()[1:]
    assert lines == ["日本  x", "e\u0301     x", "abcd  x", "🤗    x"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, "0.5000"),
        (0.0, "0.0000"),
        (12.3456, "12.35"),
        (123456.789, "123456.8"),
        (0.000999, "0.001"),
        (1.23e-9, "1.2e-09"),
        (3.2e20, "3.2e+20"),
        (1234567, "1234567"),
        (None, ""),
        ("2024-01-31T12:34:56.789Z", "2024-01-31 12:34"),
        (datetime.datetime(2024, 1, 31, 0, 0), "2024-01-31"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        ([0.5, 1], "0.5000, 1"),
        ({"a": 1, "b": [2]}, "a 1, b 2"),
        (float("nan"), ""),
    ],
)
def test_values_in_cells(capsys, value, shown):
    emit([{"value": value}], "table")
    assert capsys.readouterr().out.splitlines()[1].strip() == shown


def test_one_object_is_a_sheet(capsys):
    result = {
        "base": "roberta-base",
        "purity": 0.5,
        "cross_author": {"purity": 0.25, "by": [{"d": "a"}]},
        "rows": [{"d": "b"}],
    }
    assert printed(capsys, result, "table") == textwrap.dedent(
        """\
        base    roberta-base
        purity  0.5000

        cross_author
        purity  0.2500

        cross_author by
        d
        a

        rows
        d
        b
        """
    )


def test_piped_tables_are_whole(capsys):
    out = printed(capsys, [{"model": "m" * 500, "note": "n" * 500}], "table")
    assert out.splitlines()[1] == "m" * 500 + "  " + "n" * 500


def test_a_csv_has_no_column_for_an_object_itself(capsys):
    rows = [{"model": "a", "why": None}, {"model": "b", "why": {"layers": {"0": 0.5}, "none": None}}]
    assert printed(capsys, rows, "csv") == "model,why.layers.0,why.none\na,,\nb,0.5,\n"
    assert printed(capsys, [{"a": None, "a.b": 1}], "csv") == "a,a.b\n,1\n"  # a column that holds no object


def test_the_last_cell_of_a_line_is_whole_for_a_shell_and_line_ends_in_cells_are_kept(capsys):
    rows = [{"model": "a/b", "card": "one\rtwo"}, {"model": "c/d", "card": "x\r\ny\nz"}]
    out = printed(capsys, rows, "csv")
    assert out == 'model,card\na/b,"one\rtwo"\nc/d,"x\r\ny\nz"\n'
    assert list(csv.DictReader(io.StringIO(out, newline=""))) == rows
