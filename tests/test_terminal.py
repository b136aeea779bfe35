"""Output, errors and progress as a person, a pipe and a spreadsheet meet them; strings as a stranger sends them."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import decimal
import errno
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
import unicodedata
import uuid
from pathlib import Path

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.console import terminal
from indexer.console.terminal import (
    AtlasGroup,
    Progress,
    as_plain,
    atlas_option,
    clean,
    emit,
    explain,
    output_options,
    say,
)
from indexer.errors import AtlasError, Failed, Skipped

ESCAPE = "\x1b"
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


def printed(capsys, result, output, **options):
    emit(result, output, **options)
    return capsys.readouterr().out


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


# ---- json ----


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
    ("output", "out"), [("json", "[]\n"), ("jsonl", ""), ("table", ""), ("csv", "model,similarity\r\n")]
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
    assert out.endswith("\r\n")
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
    assert out == 'a,b.c,b.d.e,f\r\n1,2,3,"[{""g"": 1}]"\r\n'
    assert printed(capsys, [{"a": 1}, {"b": 2}], "csv") == "a,b\r\n1,\r\n,2\r\n"


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


# ---- at a terminal ----


def at_terminal(code, columns=80, environment=None, stderr_too=True):
    """What ``code`` writes to a real (pseudo) terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from indexer.console.terminal import *\n" + textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if stderr_too else subprocess.PIPE,
        env=env | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | (environment or {}),
    )
    os.close(theirs)
    parts = []
    while select.select([ours], [], [], 20)[0]:
        try:
            parts.append(os.read(ours, 65536))
        except OSError:
            break
        if not parts[-1]:
            break
    os.close(ours)
    process.wait(20)
    return b"".join(parts).decode().replace("\r\n", "\n")


ROWS = 'rows = [{"rank": i, "model": "some-owner/a-rather-long-model-name-%d" % i, "similarity": i / 7, "datasets": ["sst2", "mnli", "qqp"], "author": "some-owner"} for i in range(3)]\n'


def plain_lines(out):
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in out.splitlines()]


@pytest.mark.parametrize("columns", [200, 100, 80, 70])
def test_a_table_fits_the_terminal(columns):
    lines = plain_lines(at_terminal(ROWS + 'emit(rows, "table")', columns))
    assert len(lines) == 4
    assert all(len(line) <= columns for line in lines)
    assert "0.1429" in lines[2]  # numbers are never cut
    assert any("…" in line for line in lines) == (columns < 90)


def test_a_narrow_terminal_gets_a_line_for_each_value():
    lines = plain_lines(at_terminal(ROWS + 'emit(rows, "table")', 40))
    assert lines[:6] == [
        "rank: 0",
        "model: some-owner/a-rather-long-model-name-0",
        "similarity: 0.0000",
        "datasets: sst2, mnli, qqp",
        "author: some-owner",
        "",
    ]


def test_wide_characters_are_cut_where_they_stand():
    for line in plain_lines(at_terminal('emit([{"a": "日本語" * 30, "b": "x" * 20}], "table")', 50)):
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


def test_piped_tables_are_whole(capsys):
    out = printed(capsys, [{"model": "m" * 500, "note": "n" * 500}], "table")
    assert out.splitlines()[1] == "m" * 500 + "  " + "n" * 500


def run(code, environment=None, **options):
    """A process with pipes."""
    return subprocess.run(
        [sys.executable, "-c", "from indexer.console.terminal import *\nimport click\n" + textwrap.dedent(code)],
        capture_output=True,
        text=options.pop("text", True),
        env=os.environ | (environment or {}),
        check=False,
        timeout=60,
        **options,
    )


@pytest.mark.parametrize("output", ["table", "csv", "json"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_will_do(output, encoding):
    code = f'emit([{{"a": "modèle 日本 \\udc80", "b": "…"}}], "{output}")'
    done = run(code, {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, text=False)
    assert done.stderr == b""
    assert done.returncode == 0
    text = done.stdout.decode(encoding)
    assert ("modèle" in text) == (encoding != "ascii" and output != "json")


# ---- a group of commands ----


def group():
    @click.group(cls=AtlasGroup)
    def main():
        """A group."""

    @main.command()
    @click.argument("how", default="")
    @click.option("-k", default=1)
    @atlas_option
    @output_options
    def work(how, k, atlas, output):
        """Work."""
        if how in FAULTS:
            raise FAULTS[how]
        say("a remark")
        terminal.say_more("a further remark")
        emit({"atlas": atlas, "output": output, "k": k}, "json")

    @main.command()
    @click.pass_context
    def leave(context):
        """Leave with 3."""
        context.exit(3)

    return main


FAULTS = {
    "user": AtlasError("What is wrong.", "What to do."),
    "lines": AtlasError("Two\nlines\x1b[31m", "and a hint."),
    "skipped": Skipped("no_weights", "it has no weights"),
    "failed": Failed("timeout", "it took too long"),
    "value": ValueError("something\nodd"),
    "silent": RuntimeError(),
    "memory": MemoryError(),
    "full": OSError(errno.ENOSPC, "No space left on device", "/data/x"),
    "full2": RuntimeError("write failed: No space left on device (os error 28)"),
    "denied": PermissionError(errno.EACCES, "Permission denied", "/data/x"),
    "missing": FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/x"),
    "pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
    "locked": RuntimeError('IO Error: Could not set lock on file "x": Conflicting lock is held in python (PID 42).'),
    "interrupt": KeyboardInterrupt(),
    "interrupt2": KeyboardInterrupt("12 of 30 models are done."),
    "eof": EOFError(),
    "click": click.ClickException("said click"),
    "recursion": RecursionError("maximum recursion depth exceeded"),
}


def ended(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        group().main(list(words), prog_name="tool")
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("user", 1, "Error: What is wrong. What to do."),
        ("lines", 1, "Error: Two lines\\x1b[31m and a hint."),
        ("skipped", 1, "Error: it has no weights."),
        ("failed", 1, "Error: it took too long."),
        ("value", 1, "Error: ValueError: something. Run with --debug for the traceback."),
        ("silent", 1, "Error: RuntimeError: no message. Run with --debug for the traceback."),
        ("memory", 1, "Error: There is not enough memory. Use fewer --workers, or a machine with more."),
        ("full", 1, "Error: The disk is full at /data/x. Free space and run it again; what was done stays."),
        ("full2", 1, "Error: The disk is full. Free space and run it again; what was done stays."),
        ("denied", 1, "Error: No permission at /data/x. Check who owns it, or choose another --atlas."),
        ("missing", 1, "Error: No such file or directory at /data/x. Run with --debug for the traceback."),
        ("pipe", 1, "Error: Broken pipe. Run with --debug for the traceback."),
        ("locked", 1, "Error: The database is open in another program (process 42). Close it there and try again."),
        ("interrupt", 130, "Stopped. What was done stays; run it again to go on."),
        ("interrupt2", 130, "Stopped: 12 of 30 models are done."),
        ("click", 1, "Error: said click"),
        (
            "recursion",
            1,
            "Error: RecursionError: maximum recursion depth exceeded. Run with --debug for the traceback.",
        ),
    ],
)
def test_every_end_is_one_line_and_a_code(capsys, how, code, line):
    assert ended(capsys, "work", how) == (code, "", line + "\n")


def test_debug_shows_the_traceback_and_still_no_escapes(capsys):
    for words in (("work", "lines", "--debug"), ("--debug", "work", "lines")):
        code, _, err = ended(capsys, *words)
        assert code == 1
        assert err.startswith("Traceback (most recent call last)")
        assert err.endswith("Error: Two lines\\x1b[31m and a hint.\n")
        assert ESCAPE not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wrok"], "Error: No such command 'wrok'."),
        (["work", "--nope"], "Error: No such option"),
        (["work", "-k", "many"], "Error: Invalid value for '-k': 'many' is not a valid integer."),
        (["work", "--format", "xml"], "Error: Invalid value for '--format'"),
        (["work", "a", "b"], "Error: Got unexpected extra argument (b)"),
        (["work", "--json", "--format", "csv"], "Error: --json and --format csv contradict each other."),
        (["work", "--atlas", ""], "Error: Invalid value for '--atlas'"),
        (["work", "a\x1b[31m", "b\x1b[31m"], "Error: Got unexpected extra argument (b\\x1b[31m)"),
    ],
)
def test_usage_errors_take_two_lines_and_exit_2(capsys, words, said):
    code, out, err = ended(capsys, *words)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(said)
    assert lines[1] in ("Try: tool --help", "Try: tool work --help")
    assert ESCAPE not in err


def test_flags_may_stand_anywhere(capsys):
    assert ended(capsys, "work")[2] == "a remark\n"
    assert ended(capsys, "-q", "work")[2] == ended(capsys, "work", "-q")[2] == ""
    assert ended(capsys, "-v", "work")[2] == ended(capsys, "work", "--verbose")[2] == "a remark\na further remark\n"
    assert ended(capsys, "work")[2] == "a remark\n"  # and are forgotten by the next


def test_options(capsys, monkeypatch):
    monkeypatch.delenv("VECTORS_ATLAS", raising=False)
    got = json.loads(ended(capsys, "work")[1])
    assert got == {"atlas": "atlas", "output": "table", "k": 1}
    assert json.loads(ended(capsys, "work", "--json")[1])["output"] == "json"
    assert json.loads(ended(capsys, "work", "--json", "--format", "json")[1])["output"] == "json"
    assert json.loads(ended(capsys, "work", "--format", "csv")[1])["output"] == "csv"
    monkeypatch.setenv("VECTORS_ATLAS", "~/elsewhere")
    assert json.loads(ended(capsys, "work")[1])["atlas"] == os.path.expanduser("~/elsewhere")
    assert json.loads(ended(capsys, "work", "--atlas", "./here")[1])["atlas"] == "./here"


def test_help_and_version(capsys):
    for words in (["-h"], ["--help"], ["work", "-h"], ["work", "--help"]):
        code, out, err = ended(capsys, *words)
        assert (code, err) == (0, "")
        assert "Usage: tool" in out
    assert "--format [table|json|jsonl|csv]" in out
    assert "VECTORS_ATLAS" in out
    code, out, _ = ended(capsys, "--version")
    assert code == 0
    assert re.search(r"\d+\.\d+\.\d+", out)
    code, out, err = ended(capsys)
    assert (code, out) == (2, "")
    assert "Usage: tool" in err
    assert ended(capsys, "leave")[0] == 3


# ---- pipes, disks and Ctrl-C, for real ----

GROUP = """
import time, sys
@click.group(cls=AtlasGroup)
def main(): pass
@main.command()
@click.argument("count", type=int)
@click.option("--format", "output", default="jsonl")
def rows(count, output):
    emit(({"a": "x" * 100, "b": i} for i in range(count)), output)
@main.command()
def talk():
    for i in range(10):
        print(i)
@main.command()
def wait():
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(30)
main(sys.argv[1:], prog_name="tool")
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    path = tmp_path_factory.mktemp("tool") / "tool.py"
    path.write_text("from indexer.console.terminal import *\nimport click\n" + GROUP)
    return f"{sys.executable} {path}"


@pytest.fixture(autouse=True)
def _as_a_person_has_it(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # buffers are what this is about
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path or os.getcwd() for path in sys.path))


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
@pytest.mark.parametrize("count", [1, 300, 20_000])
def test_a_reader_may_leave(tool, output, count):
    command = f"{tool} rows {count} --format {output} | head -1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_reader_that_is_gone_before_the_first_line(tool):
    done = subprocess.run(
        ["bash", "-c", f"{tool} rows 10 | true; echo ${{PIPESTATUS[0]}}; {tool} rows 10 2>&1 | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n0\n", "")


@pytest.mark.parametrize("words", ["talk", "--help", "--version"])
def test_what_was_not_flushed_is_no_traceback_at_exit(tool, words):
    command = f"{tool} {words} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
    done = subprocess.run(["bash", "-c", f"{tool} {words} > /dev/full"], capture_output=True, text=True, check=False)
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("count", [1, 20_000])
def test_a_full_disk_behind_stdout(tool, count):
    done = subprocess.run(
        ["bash", "-c", f"{tool} rows {count} > /dev/full"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "Error: The disk is full. Free space and run it again; what was done stays.\n"


def test_ctrl_c_leaves_no_traceback(tool):
    process = subprocess.Popen([*tool.split(), "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (out, err) == ("", "Stopped. What was done stays; run it again to go on.\n")


# ---- progress ----


def test_plain_progress_speaks_now_and_then(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress(1000, "reading fine-tunes") as progress:
        for _ in range(500):
            clock[0] += 0.125
            progress.update(2, "1 failed\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7
    assert lines[0] == "reading fine-tunes: 160 of 1000, about 52 s left, 1 failed\\x1b[31m"
    assert lines[-1] == "reading fine-tunes: 1000 of 1000, 1 failed\\x1b[31m"


def test_progress_without_a_total_and_without_work(capsys):
    progress = Progress(None, "pages")
    progress.update(3)
    progress.close()
    progress.close()
    Progress(10, "nothing").close()
    assert capsys.readouterr().err == "pages: 3\n"


def test_quiet_progress(capsys, monkeypatch):
    monkeypatch.setattr(terminal.manners, "quiet", True)
    with Progress(3, "x") as progress:
        progress.update(3)
    say("x")
    assert capsys.readouterr().err == ""


def test_a_bar_only_on_a_terminal():
    code = """
    with Progress(3, "reading\\x1b[31m") as progress:
        progress.update(1, "note\\x07")
        say("a remark")
        progress.update(2)
    print("data")
    """
    out = at_terminal(code)
    assert "3/3" in out
    assert re.search("[\r\n]a remark\n", out)  # on a line of its own, not behind the bar
    assert "\x1b[31m" not in out
    assert "\x07" not in out
    piped = run(code)
    assert piped.stdout == "data\n"
    assert piped.stderr == "a remark\nreading\\x1b[31m: 3 of 3\n"


# ---- small things ----


def test_explain_never_fails():
    class OddError(Exception):
        filename = 7

        def __str__(self):
            return "\n\n"

    assert explain(OddError()) == "OddError: no message. Run with --debug for the traceback."
    assert explain(OSError()) == "OSError: no message. Run with --debug for the traceback."


def test_importing_it_costs_little():
    done = run("import sys; print(sorted({'numpy', 'duckdb', 'tqdm', 'logging', 'torch'} & set(sys.modules)))")
    assert done.stdout == "[]\n"
