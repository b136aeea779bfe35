"""Commands run by a process that has loaded the large libraries once: each is a fork of it, and starts at once.

A command has a process, an environment, a folder and streams of its own as if it had been started afresh; only what
Python loads before its first line is there already. huggingface_hub reads the environment while it is loaded: what it
found there is read again for each command (``renew_hub_constants``).

One such process serves all processes of a test run: a client that connects gets a fork of it, which forks its commands.
Where the run has several processes, these are forks too, of one that has loaded what tests need besides
(``worker_python``).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import math
import os
import random
import runpy
import select
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import typing
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module, reload
from multiprocessing import popen_spawn_posix, util
from pathlib import Path
from typing import IO, Any

# They cost most of the start of a command, and start no threads before they are used.
LOADED = (
    "torch", "numpy", "duckdb", "faiss", "pyarrow.parquet", "safetensors.torch", "click", "pandas", "yaml", "regex",
    "scipy.linalg", "scipy.special", "sklearn.cluster", "httpx2", "httpcore2", "h11", "filelock",
    "huggingface_hub.hf_api", "huggingface_hub.file_download",
    "encodings.idna", "pyarrow.pandas_compat", "safetensors.numpy", "jinja2",
    # What a command begins with, and what most go on with. None of these asks the environment while it is loaded, but
    # for huggingface_hub.
    "indexer.builds.commands", "indexer.builds.deepen", "indexer.builds.executor", "indexer.builds.profiling",
    "indexer.builds.view", "indexer.builds.worker", "indexer.cli", "indexer.library", "indexer.publish.maintenance",
    "indexer.publish.verification", "indexer.share.merge", "indexer.share.pull", "indexer.share.push", "query.ask.ask",
    "query.atlas", "query.cli", "query.clusters.study", "query.compare", "query.export", "query.lineage.lineage",
    "query.map.model_map", "query.predict.predict", "query.purity.study", "query.rank.study", "query.report.report",
    "query.show", "query.similar", "query.sql",
)  # fmt: skip
# What commands work out from files of these packages, once.
_WORKED_OUT = (
    ("indexer.database.catalog", "expected"), ("indexer.database.catalog", "empty_database"),
    ("indexer.publish.validation", "columns"), ("indexer.architectures.architecture", "_catalogue"),
    ("indexer.cards.datasets", "alias_table"), ("query.glossary", "_glossary"),
)  # fmt: skip
# What most processes of a test run load before their first test.
LOADED_BY_TESTS = (
    "pytest", "transformers", "peft", "sklearn.metrics", "matplotlib.pyplot",
)  # fmt: skip
# What Python itself asks of its environment when it starts, and huggingface_hub for the defaults of its functions.
_ASKED_AT_START = ("PYTHON", "LC_", "LANG", "OMP_", "HF_HUB_ETAG", "HF_HUB_DOWNLOAD", "HF_HUB_VERBOSITY")
_ROOT = Path(__file__).resolve().parent.parent
_ADDRESS = "ATLAS_TESTS_FORKER"
OF_TESTS = ".tests"  # what the address ends with where forks have loaded what tests need
_MOST_REQUEST = 1 << 20


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
            words = [sys.executable, "-m", "tests.forked", *map(str, passed)]
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
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_REQUEST)
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


def one_tls_context() -> None:
    """Certificates are read once for all clients of a process, and of those that are forked from it."""
    if not hasattr(ssl.create_default_context, "cache_info"):
        ssl.create_default_context = cache(ssl.create_default_context)


def remember_soon() -> None:
    """A database that was compared with schema.sql need not have lain there for three seconds, as on a file system
    that counts in seconds: after a twentieth of one it can be told from any later state of it."""
    import_module("indexer.database.reading")._SETTLED_SECONDS = 0.05  # type: ignore[attr-defined]


@cache
def _copied_hub_constants(_loaded: int) -> list[tuple[types.ModuleType, str]]:
    """Where huggingface_hub has a constant a second time, by `from constants import NAME`: the module, and the name.

    Asked for each number of modules that are loaded. A fork that looks for them copies thousands of pages of memory:
    to look at an object is to count one more reference to it.
    """
    constants = sys.modules["huggingface_hub.constants"]
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("huggingface_hub.") and module is not constants
    ]
    return [
        (module, name) for module in modules for name in vars(module).keys() & vars(constants).keys() if name.isupper()
    ]


def renew_hub_constants() -> None:
    """What huggingface_hub read from the environment when it was loaded, as it would read it now."""
    constants = sys.modules["huggingface_hub.constants"]
    reload(constants)
    for module, name in _copied_hub_constants(len(sys.modules)):
        setattr(module, name, getattr(constants, name))
    sys.modules["huggingface_hub.hf_api"].api.endpoint = constants.ENDPOINT  # type: ignore[attr-defined]


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


def _wait_less() -> None:
    """Between two tries of a request, commands wait a twentieth of what they make users wait."""
    session, hub_requests = import_module("indexer.network.session"), import_module("indexer.network.hub_requests")
    session.random = types.SimpleNamespace(uniform=lambda low, high: random.uniform(low, high) / 20)  # type: ignore[attr-defined]
    policy = hub_requests.RetryPolicy  # type: ignore[attr-defined]
    policy.wait = lambda self, attempt: time.sleep(min(self.longest_wait, self.first_wait * 2 ** (attempt - 1)) / 20)


def _serve(until: int, listening: socket.socket, workers: socket.socket) -> None:
    """Load, then fork for everyone who connects, until ``until`` is closed at its other end.

    The first who connects to ``workers`` gets that from a fork, which loads what tests need besides.
    """
    for name in LOADED:
        import_module(name)
    one_tls_context()
    import_module("httpx2").Client().close()
    remember_soon()
    for module, function in _WORKED_OUT:
        getattr(import_module(module), function)()
    import_module("duckdb").close()  # else forks have the default connection without its threads, and wait for them
    # What libraries have put aside for the end of this process is none of a fork's, which would copy 9,000 pages of
    # memory to tidy up before it leaves: as long as half of a small command takes.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    typing._cleanups.clear()  # type: ignore[attr-defined]
    _copied_hub_constants(len(sys.modules))
    gc.collect()
    gc.freeze()  # a million objects of libraries, which no fork will free: it does not go through them either
    _join_pages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those forks
    while until not in (ready := select.select([listening, workers, until], [], [])[0]):
        if listening in ready:
            _fork_for(listening, _wait_less)
            continue
        if os.fork() == 0:
            listening.close()
            for name in LOADED_BY_TESTS:
                import_module(name)
            _copied_hub_constants(len(sys.modules))
            gc.collect()
            gc.freeze()
            while until not in select.select([workers, until], [], [])[0]:
                _fork_for(workers, lambda: None)
            return
        workers.close()
        workers = listening


def _join_pages() -> None:
    """Put the memory of this process into pages of 2 MiB where it can be: a fork copies an entry for each page.

    It takes half a second, and spares each command a third of the time that it takes to fork and to end. Only a fork
    that writes to such a page has it in small ones again. Linux does it since 6.1; elsewhere nothing happens.
    """
    size, collapse = 2 << 20, 25  # MADV_COLLAPSE, which the module mmap of Python 3.11 does not know
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else ():
        place, rights, *_, name = line.split(maxsplit=5) if line.count(" ") > 5 else [*line.split(), ""]
        if "w" in rights and name.strip() in ("", "[heap]"):
            start, end = (int(word, 16) for word in place.split("-"))
            for page in range(-(-start // size) * size, end - size + 1, size):
                madvise(ctypes.c_void_p(page), ctypes.c_size_t(size), collapse)


def _fork_for(listening: socket.socket, prepare: Callable[[], None]) -> None:
    connection, _ = listening.accept()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        prepare()
        _serve_one(connection)
        os._exit(0)
    connection.close()


def _serve_one(connection: socket.socket) -> None:
    while True:
        try:
            request, descriptors, _, _ = socket.recv_fds(connection, _MOST_REQUEST, 250)
        except ConnectionResetError:  # the client was killed
            return
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
        with contextlib.suppress(BrokenPipeError):  # the client may have gone
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the command, to its end."""
    os.setpgid(0, request["group"])
    # First out of the way: one may have a number that is meant for another.
    aside = [fcntl.fcntl(one, fcntl.F_DUPFD, 300) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for number, one in zip(request["descriptors"], aside, strict=True):
        os.dup2(one, number)
        os.close(one)
    tempfile.tempdir = None  # it is found again
    os.environ.clear()
    os.environ.update(request["environment"])
    renew_hub_constants()
    spawn_by_fork(Forker())
    os.chdir(request["cwd"])
    sys.stdin, sys.stdout = os.fdopen(0, "r", encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os._exit(_ended(request["words"]))


def _ended(words: list[str]) -> int:
    code = 0
    try:
        _run(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def _run(words: list[str]) -> None:
    """As Python does it behind its own name: ``-m module``, ``-c code``, or a file."""
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *(socket.socket(fileno=int(word)) for word in sys.argv[2:]))
    os._exit(0)  # what it has loaded need not be freed
