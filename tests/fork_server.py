"""The process that has loaded the large libraries once and forks commands (see tests/forked.py)."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import ssl
import sys
import tempfile
import threading
import traceback
import types
import typing
import weakref
from collections.abc import Callable
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from typing import Any

from tests.forked import MOST_REQUEST, Forker, spawn_by_fork

# They cost most of the start of a command, and start no threads before they are used.
LOADED = (
    "torch", "numpy", "duckdb", "faiss", "pyarrow.parquet", "safetensors.torch", "click", "pandas", "yaml", "regex",
    "scipy.linalg", "scipy.special", "sklearn.cluster", "httpx2", "httpcore2", "h11", "filelock",
    "huggingface_hub.hf_api", "huggingface_hub.file_download",
    "encodings.idna", "pyarrow.pandas_compat", "safetensors.numpy", "jinja2",
    # What a command begins with, and what most go on with. None of these asks the environment while it is loaded, but
    # for huggingface_hub.
    "indexer.builds.commands", "indexer.builds.deepen", "indexer.builds.executor", "indexer.builds.profiling",
    "indexer.builds.view", "indexer.builds.worker", "indexer.cli", "indexer.library", "indexer.upkeep.maintenance",
    "indexer.upkeep.verification", "indexer.share.merge", "indexer.share.pull", "indexer.share.push", "query.questions.ask.ask",
    "query.faces.atlas", "query.faces.cli", "query.questions.clusters.study", "query.questions.compare", "query.faces.export", "query.questions.lineage.lineage",
    "query.questions.map.model_map", "query.questions.predict.predict", "query.questions.purity.study", "query.questions.rank.study", "query.faces.report.report",
    "query.questions.show", "query.questions.similar", "query.questions.sql",
)  # fmt: skip
# What commands work out from files of these packages, once.
_WORKED_OUT = (
    ("indexer.database.catalog", "expected"), ("indexer.database.catalog", "empty_database"),
    ("indexer.database.validation", "columns"), ("indexer.checkpoints.architectures.architecture", "_catalogue"),
    ("indexer.sources.cards.datasets", "alias_table"), ("query.contract.glossary", "words"),
)  # fmt: skip
# What most processes of a test run load before their first test.
LOADED_BY_TESTS = (
    "pytest", "transformers", "peft", "sklearn.metrics", "matplotlib.pyplot",
)  # fmt: skip


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
    import_module("indexer.environment").tidy()  # as at the import of the package
    reload(constants)
    for module, name in _copied_hub_constants(len(sys.modules)):
        setattr(module, name, getattr(constants, name))
    sys.modules["huggingface_hub.hf_api"].api.endpoint = constants.ENDPOINT  # type: ignore[attr-defined]


def _wait_less() -> None:
    """Between two tries of a request, commands wait a twentieth of what they make users wait."""
    retries = import_module("indexer.network.retries")
    retries.random = types.SimpleNamespace(uniform=lambda low, high: random.uniform(low, high) / 20)  # type: ignore[attr-defined]


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
            request, descriptors, _, _ = socket.recv_fds(connection, MOST_REQUEST, 250)
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
