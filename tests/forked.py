"""Commands run by a process that has loaded the large libraries once: each is a fork of it, and starts at once.

A command has a process, an environment, a folder and streams of its own as if it had been started afresh; only what
Python loads before its first line is there already. Of the libraries that ask the environment while they are loaded
(huggingface_hub and what stands on it) none is.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from importlib import import_module
from typing import Any

# They cost most of the start of a command, and start no threads before they are used.
LOADED = (
    "torch", "numpy", "duckdb", "faiss", "pyarrow.parquet", "safetensors.torch", "click", "pandas", "yaml", "regex",
    "scipy.linalg", "scipy.special", "sklearn.cluster", "httpx2", "httpcore2", "h11", "filelock",
    # What a command begins with. None of these asks the environment while it is loaded.
    "indexer.builds.report", "indexer.cli.commands", "indexer.deltas.stored_base", "indexer.listing.listing",
    "indexer.publish.publish", "query.atlas", "query.cli.questions", "query.cli.studies",
)  # fmt: skip
# What Python itself asks of its environment, when it starts.
_ASKED_AT_START = ("PYTHON", "LC_", "LANG", "OMP_")

_MOST_REQUEST = 1 << 20


class Forker:
    """The process, started at the first command; ``close`` ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def run(
        self, module: str, words: list[str], cwd: str, environment: dict[str, str], stdin: str | None, timeout: float
    ) -> tuple[int, str, str]:
        """Run ``python -m module words``: its exit code (negative: the signal that killed it), stdout and stderr."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write((stdin or "").encode())
            given.seek(0)
            request = json.dumps({"module": module, "words": words, "cwd": cwd, "environment": environment})
            code = self._ask(request.encode(), [given.fileno(), out.fileno(), err.fileno()], timeout)
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode(errors="replace").replace("\r\n", "\n"))
        return code, said[0], said[1]

    def _ask(self, request: bytes, descriptors: list[int], timeout: float) -> int:
        if self._connection is None:
            self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                words = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
                self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_REQUEST)
        socket.send_fds(self._connection, [request], descriptors)
        self._connection.settimeout(None)  # how long the libraries take is nobody's fault
        child = int(self._connection.recv(100))
        self._connection.settimeout(timeout)
        try:
            return int(self._connection.recv(100))
        except TimeoutError as error:
            os.killpg(child, signal.SIGKILL)
            self._connection.settimeout(None)
            self._connection.recv(100)
            raise subprocess.TimeoutExpired(request.decode()[:200], timeout) from error

    def close(self) -> None:
        """End the process; a command that is running goes on."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            self._process.wait()
            self._connection = None


def can_fork(more: dict[str, str]) -> bool:
    """Whether a command with these variables can be a fork: nothing that Python asks at its start is among them."""
    return not any(name.startswith(_ASKED_AT_START) for name in more)


def one_tls_context() -> None:
    """Certificates are read once for all clients of a process, and of those that are forked from it."""
    if not hasattr(ssl.create_default_context, "cache_info"):
        ssl.create_default_context = cache(ssl.create_default_context)


def _serve(connection: socket.socket) -> None:
    for name in LOADED:
        import_module(name)
    one_tls_context()
    import_module("httpx2").Client().close()
    while True:
        request, descriptors, _, _ = socket.recv_fds(connection, _MOST_REQUEST, 3)
        if not request:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            _become(json.loads(request), descriptors)
        for one in descriptors:
            os.close(one)
        connection.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the command, to its end."""
    os.setpgid(0, 0)
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
        os.close(one)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.stdin, sys.stdout = os.fdopen(0, "r", encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = [request["module"], *request["words"]]
    sys.path[0] = request["cwd"]
    os._exit(_ended(request["module"]))


def _ended(module: str) -> int:
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
