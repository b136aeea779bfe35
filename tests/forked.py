"""Commands run by a process that has loaded the large libraries once: each is a fork of it, and starts at once.

A command has a process, an environment, a folder and streams of its own as if it had been started afresh; only what
Python loads before its first line is there already. huggingface_hub reads the environment while it is loaded: what it
found there is read again for each command (``renew_hub_constants`` of tests/fork_server.py, which is that process).

One such process serves all processes of a test run: a client that connects gets a fork of it, which forks its commands.
Where the run has several processes, these are forks too, of one that has loaded what tests need besides
(``worker_python``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import popen_spawn_posix, util
from pathlib import Path
from typing import IO, Any

# What Python itself asks of its environment when it starts, and huggingface_hub for the defaults of its functions.
_ASKED_AT_START = ("PYTHON", "LC_", "LANG", "OMP_", "HF_HUB_ETAG", "HF_HUB_DOWNLOAD", "HF_HUB_VERBOSITY")
_ROOT = Path(__file__).resolve().parent.parent
_ADDRESS = "ATLAS_TESTS_FORKER"
OF_TESTS = ".tests"  # what the address ends with where forks have loaded what tests need
MOST_REQUEST = 1 << 20


class Forker:
    """The process, begun at the first command or before (``begin``); ``close`` ends it.

    ``kind``: of its forks, "" for commands and ``OF_TESTS`` for processes that run tests, or work for one that does.
    """

    def __init__(self, kind: str = "") -> None:
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._idle: list[socket.socket] = []

    def begin(self) -> None:
        """Start loading, for this process and all that it will start."""
        address = str(Path(tempfile.mkdtemp()) / "forker")
        until, self._lifeline = os.pipe()  # closed with this process, however it ends: the other then knows
        with contextlib.ExitStack() as stack:
            passed = [until]
            for end in ("", OF_TESTS):
                listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                listening.bind(address + end)
                listening.listen(64)
                passed.append(listening.fileno())
            words = [sys.executable, "-m", "tests.fork_server", *map(str, passed)]
            self._process = subprocess.Popen(words, pass_fds=passed)
        os.close(until)
        os.environ[_ADDRESS] = address

    def connection(self) -> socket.socket:
        """A fork of the process, which forks one command after the other: one that is idle, or a new one."""
        if self._idle:
            return self._idle.pop()
        if _ADDRESS not in os.environ:
            self.begin()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(os.environ[_ADDRESS] + self._kind)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_REQUEST)
        return connection

    def give_back(self, connection: socket.socket) -> None:
        """Its command has ended."""
        self._idle.append(connection)

    def close(self) -> None:
        """End the process, if it was this one that began it; a command that is running goes on."""
        while self._idle:
            self._idle.pop().close()
        if self._process is not None and self._lifeline is not None:
            os.close(self._lifeline)
            self._process.wait()
            os.environ.pop(_ADDRESS, None)
            self._process = self._lifeline = None


class Started:
    """A command that runs meanwhile, as ``subprocess.Popen`` gives it in text mode; it leads a group of its own."""

    def __init__(
        self,
        forker: Forker,
        words: Sequence[Any],
        *,
        cwd: Any = None,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        group: int = 0,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """``group``: of processes, which it joins; 0 for one of its own. ``pass_fds``: it has them by the same numbers."""
        self.returncode: int | None = None
        streams = [_stream(number, asked) for number, asked in enumerate((stdin, stdout, stderr))]
        self.stdin, self.stdout, self.stderr = (ours for _, ours in streams)
        self._forker, self._connection, self._lock = forker, forker.connection(), threading.Lock()
        theirs = [descriptor for descriptor, _ in streams]
        request = {
            "words": [str(word) for word in words], "cwd": str(cwd or os.getcwd()), "environment": {**(env or os.environ)},
            "group": group, "descriptors": [0, 1, 2, *pass_fds],
        }  # fmt: skip
        socket.send_fds(self._connection, [json.dumps(request).encode()], [*theirs, *pass_fds])
        self._connection.settimeout(None)  # how long the libraries take is nobody's fault
        self.pid = int(self._connection.recv(100))
        for descriptor in theirs:
            os.close(descriptor)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired. Several threads may wait."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = deadline - time.monotonic()
            select.select([self._connection], [], [], max(0.0, min(left, 0.05)))
            with self._lock:
                if self.returncode is None:
                    with contextlib.suppress(BlockingIOError):
                        self.returncode = int(self._connection.recv(100, socket.MSG_DONTWAIT))
                        self._forker.give_back(self._connection)
            if self.returncode is None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """What is left of its stdout and stderr, until both are closed and it has ended."""
        said: dict[int, str] = {}
        readers = []
        for number, stream in ((1, self.stdout), (2, self.stderr)):
            if stream is not None:
                reader = threading.Thread(target=lambda n=number, s=stream: said.update({n: s.read()}), daemon=True)
                reader.start()
                readers.append(reader)
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(timeout)
        self._close()
        return said.get(1), said.get(2)

    def send_signal(self, number: int) -> None:
        """To the process alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()


def _stream(number: int, asked: int | None) -> tuple[int, IO[str] | None]:
    """The end that the command is given, and ours."""
    if asked == subprocess.PIPE:
        reading, writing = os.pipe()
        if number == 0:
            return reading, os.fdopen(writing, "w", encoding="utf-8")
        return writing, os.fdopen(reading, encoding="utf-8", errors="replace")
    if asked == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    assert asked is None
    return os.dup(number), None


def can_fork(environment: dict[str, str]) -> bool:
    """Whether a command may be a fork: whatever Python asks at its start is as it is here."""
    here = {**os.environ, "PYTHONPATH": environment.get("PYTHONPATH", "")}
    names = {name for name in {*environment, *here} if name.startswith(_ASKED_AT_START)}
    is_ours = here["PYTHONPATH"] in ("", str(_ROOT), os.environ.get("PYTHONPATH"))
    return is_ours and all(environment.get(name, "") == here.get(name, "") for name in names)


_SPAWNED: dict[int, Started] = {}


def spawn_by_fork(forker: Forker) -> None:
    """From now on processes that multiprocessing spawns for this one are forks of the forker's, too.

    They differ from others in what they have loaded, and in that the kernel calls another process their parent.
    """
    really, poll = util.spawnv_passfds, popen_spawn_posix.Popen.poll

    def spawn(path: Any, arguments: Sequence[Any], pass_fds: Sequence[int]) -> int:
        words = [os.fsdecode(one) for one in arguments]
        if "--multiprocessing-fork" not in words or not can_fork({**os.environ}):
            return really(path, arguments, pass_fds)
        started = Started(forker, words[words.index("-c") :], group=os.getpgid(0), pass_fds=pass_fds)
        _SPAWNED[started.pid] = started
        return started.pid

    def poll_fork(self: Any, flag: int = os.WNOHANG) -> int | None:
        if self.pid not in _SPAWNED:
            return poll(self, flag)
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.returncode = _SPAWNED[self.pid].wait(0 if flag else None)
        return self.returncode

    util.spawnv_passfds, popen_spawn_posix.Popen.poll = spawn, poll_fork


def forking_python(kind: str = "") -> str | None:
    """The words that start Python as a fork of that kind, behind a process that waits for it; None without a forker."""
    if _ADDRESS not in os.environ:
        return None
    code = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.forked import _stand_for; _stand_for({kind!r})"
    return shlex.join([sys.executable, "-S", "-c", code])


def worker_python() -> str | None:
    """The words that start Python for a process of this run, as a fork; None if there is nothing to fork."""
    return forking_python(OF_TESTS)


def _stand_for(kind: str) -> None:
    """Stand for a fork that runs the words after ``-u``, until it has ended."""
    sys.exit(Started(Forker(kind), [word for word in sys.argv[1:] if word != "-u"]).wait())
