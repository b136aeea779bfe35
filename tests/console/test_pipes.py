"""Pipes whose reader leaves, disks that are full, and Ctrl-C, for real."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

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
    time.sleep(600)
@main.command()
@click.argument("path")
def look(path):
    import os, subprocess
    say("a remark")
    emit([{"read": sys.stdin.read()}], "table")
    with open(path, "w") as file:
        os.write(1, b"one")
        os.write(2, b"two")
        child = "import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))"
        file.write(f"{file.fileno() > 2} {subprocess.run([sys.executable, '-c', child]).returncode}")
main(sys.argv[1:], prog_name="tool")
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    path = tmp_path_factory.mktemp("tool") / "tool.py"
    path.write_text("from indexer.console.terminal import *\nimport click\n" + GROUP)
    return f"{sys.executable} {path}"


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
def test_what_was_not_flushed_is_not_a_traceback_at_exit(tool, words):
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
    assert done.stderr == "Error: The disk is full. Free some space and run it again; finished work is kept.\n"


def test_ctrl_c_leaves_no_traceback(tool):
    process = subprocess.Popen([*tool.split(), "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert (out, err) == ("", "Stopped. Finished work is kept; run it again to continue.\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_as_good_as_the_null_device(tool, tmp_path, closed):
    done = bash(f"{tool} look {tmp_path / 'found'} </dev/null {closed}")
    assert (tmp_path / "found").read_text() == "True 0", "a file must not take its place, and a child must have it too"
    assert done.returncode == 0
    assert ("one" in done.stdout, "a remark" in done.stderr) == (" >&-" not in f" {closed}", "2>&-" not in closed)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("rows 3 --format table", 0), ("nosuch", 2), ("--help", 0)])
def test_no_command_minds_a_stream_that_is_closed(tool, words, code, closed):
    done = bash(f"{tool} {words} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def bash(command):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
