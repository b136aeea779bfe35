"""Runs a command again and again in a child that is killed at one of its moments, whose number is read from stdin; 0 for none.

A moment is a file that is opened for writing, renamed, linked, removed or made, a transaction of SQLite that begins or is
about to end, or a request that goes out or has been answered. Libraries are loaded once, before the first child; each answer is a line: the exit status (negative: killed)
and how many moments there were.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

TIMES = 10


@contextmanager
def killable(shell: Any, *words: str) -> Iterator[Callable[[int], tuple[int, int]]]:
    """A function that runs the command in ``shell``, killed at a moment: (exit status, moments there were)."""
    from tests.conftest import start_python

    process = start_python(
        "-m", "tests.killed", *words, cwd=shell.folder,
        env={"HF_ENDPOINT": shell.endpoint, **shell.environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def run(moment: int) -> tuple[int, int]:
        process.stdin.write(f"{moment}\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("moments "):
                _, code, count = line.split()
                return int(code), int(count)
        raise AssertionError("the process ended")

    with process:
        try:
            yield run
        finally:
            process.stdin.close()


def moments(total: int, most: int = TIMES) -> list[int]:
    """So many of them, spread, the first and nearly the last among them; all if there are no more."""
    if total <= most:
        return list(range(1, total + 1))
    return [1 + number * (total - 2) // (most - 1) for number in range(most)]


_EVENTS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


class Moments:
    """Counts them in this process, and ends it at the chosen one."""

    def __init__(self, chosen: int) -> None:
        self.chosen, self.count = chosen, 0

    def pass_one(self) -> None:
        self.count += 1
        if self.count == self.chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: str, arguments: tuple) -> None:
        is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in _EVENTS or is_written:
            self.pass_one()

    def hear_statement(self, statement: str) -> None:
        if statement.startswith(("BEGIN IMMEDIATE", "COMMIT")):
            self.pass_one()


def _child(words: list[str], chosen: int, pipe: int) -> None:
    from indexer.network import session
    from indexer.storage import small_database

    main = import_module({"index": "indexer.cli", "query": "query.faces.cli"}[words[0]]).main

    moments = Moments(chosen)
    transport = session.HubTransport
    send = transport.handle_request

    def counted(self, request):
        moments.pass_one()
        response = send(self, request)
        moments.pass_one()
        return response

    connect = small_database._connect

    def watched(*arguments):
        connection = connect(*arguments)
        connection.set_trace_callback(moments.hear_statement)
        return connection

    transport.handle_request = counted
    small_database._connect = watched
    sys.addaudithook(moments.hear)
    code = 1
    try:
        main(words[1:])
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        os.write(pipe, b"%d" % moments.count)
        os._exit(code)


def run() -> None:
    """Answer each line of stdin."""
    import duckdb  # noqa: F401
    import faiss  # noqa: F401
    import huggingface_hub.hf_api  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import query.faces.cli  # noqa: F401

    words = sys.argv[1:]
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _child(words, int(line), writing)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        count = os.read(reading, 100)
        os.close(reading)
        sys.stdout.write(f"moments {os.waitstatus_to_exitcode(status)} {int(count or 0)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run()
