"""How a command ends: one line and an exit code, whatever went wrong."""

from __future__ import annotations

import errno
import json
import os
import re

import click
import pytest

from indexer.console import terminal
from indexer.console.terminal import (
    AtlasGroup,
    atlas_option,
    emit,
    explain,
    output_options,
    say,
)
from indexer.errors import AtlasError, Failed, Skipped
from tests.console.speaking import ESCAPE, run


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
        (
            "value",
            1,
            "Error: ValueError: something. Check the atlas: index verify --strict. Run with --debug for the traceback.",
        ),
        ("silent", 1, "Error: RuntimeError: no message. Run with --debug for the traceback."),
        ("memory", 1, "Error: There is not enough memory. Use fewer --workers, or a machine with more."),
        ("full", 1, "Error: The disk is full at /data/x. Free some space and run it again; finished work is kept."),
        ("full2", 1, "Error: The disk is full. Free some space and run it again; finished work is kept."),
        ("denied", 1, "Error: No permission at /data/x. Check who owns it, or choose another --atlas."),
        ("missing", 1, "Error: No such file or directory at /data/x. Run with --debug for the traceback."),
        ("pipe", 1, "Error: Broken pipe. Run with --debug for the traceback."),
        ("locked", 1, "Error: The database is open in another program (process 42). Close it there and try again."),
        ("interrupt", 130, "Stopped. Finished work is kept; run it again to continue."),
        ("interrupt2", 130, "Stopped: 12 of 30 models are done."),
        ("click", 1, "Error: said click"),
        (
            "recursion",
            1,
            "Error: RecursionError: maximum recursion depth exceeded. Check the atlas: index verify --strict. "
            "Run with --debug for the traceback.",
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
