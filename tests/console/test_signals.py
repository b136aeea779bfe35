"""Commands that are ended by a signal, and lists of models with a byte order mark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from indexer.console.stdin import text_of

COMMAND = """
import os, signal, time
from indexer.console.terminal import AtlasGroup, handle_sigterm
import click
@click.group(cls=AtlasGroup)
def main(): handle_sigterm()
@main.command()
def wait():
    os.kill(os.getpid(), signal.{name})
    time.sleep(30)
main(["wait"])
"""


@pytest.mark.parametrize(("name", "status"), [("SIGHUP", 129), ("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_a_command_in_one_line(name: str, status: int) -> None:
    ran = subprocess.run([sys.executable, "-c", COMMAND.format(name=name)], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (status, "Stopped. Finished work is kept; run it again to continue.\n")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_no_part_of_a_name(encoding: str) -> None:
    assert text_of("owner/näme\n".encode(encoding)) == "owner/näme\n"
