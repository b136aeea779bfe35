"""Runs a command again and again in a child that is killed at one of its moments, whose number is read from stdin; 0 for none.

A moment is a file that is opened for writing, renamed, linked, removed or made, or a request that goes out or has been
answered. Libraries are loaded once, before the first child; each answer is a line: the exit status (negative: killed)
and how many moments there were.
"""

from __future__ import annotations

import os
import signal
import sys

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


def _child(words: list[str], chosen: int, pipe: int) -> None:
    from indexer.cli import main
    from indexer.network import session

    moments = Moments(chosen)
    transport = next(value for value in vars(session).values() if hasattr(value, "handle_request"))
    send = transport.handle_request

    def counted(self, request):
        moments.pass_one()
        response = send(self, request)
        moments.pass_one()
        return response

    transport.handle_request = counted
    sys.addaudithook(moments.hear)
    code = 1
    try:
        main(words)
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

    import indexer.share.pull
    import indexer.share.push  # noqa: F401

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
