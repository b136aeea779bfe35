"""Processes that this program starts. Each ends with the process that started it, however that one ends.

A killed process cannot end its children. So a child has the reading end of a pipe whose other end is held by its
parent, which never writes to it. When the parent ends, the kernel closes that end and signals the child (SIGIO), which
ends whatever code is running in it: a thread that waits for the pipe would have to wait for Python's lock, too. The
thread is there as well, for systems that do not signal.

Where the parent's other children were forked, they hold the same end, and live on. On Linux a child is therefore also
signalled by the end of its parent itself (PR_SET_PDEATHSIG). That signal comes when the thread ends that started the
child, so it is asked for only by children of the main thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

# Tells a child of its parent: the descriptor of the pipe, the parent's id, and whether its main thread started it.
_VARIABLE = "VECTORS_IN_THE_WILD_PARENT"
_PR_SET_PDEATHSIG = 1


def start_child(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that calls ``end_with_parent`` first. ``env``: its environment, by default that of this process.

    Ctrl-C in a terminal reaches this process only, which then ends the child. A process that leads its own session,
    like those that answer agents, gets no Ctrl-C: its children stay in its group, so that one signal kills all.
    """
    reading, writing = os.pipe()
    is_of_main_thread = threading.current_thread() is threading.main_thread()
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={**(os.environ if env is None else env), _VARIABLE: f"{reading} {os.getpid()} {is_of_main_thread:d}"},
            pass_fds=(reading,),
            start_new_session=os.getsid(0) != os.getpid(),
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    weakref.finalize(process, os.close, writing)
    return process


def bare_environment() -> dict[str, str]:
    """What Python needs to start and to find the same packages; without tokens or the home folder."""
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "PATH", "LANG")
    bare = {name: os.environ[name] for name in names if name in os.environ}
    return bare | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


def end_with_parent() -> None:
    """Called first by a program that ``start_child`` starts: from now on its process ends with its parent.

    Does nothing where the program was started in another way.
    """
    values = os.environ.pop(_VARIABLE, "").split()  # not for this process's own children
    if len(values) != 3:
        return
    descriptor, parent, is_of_main_thread = map(int, values)
    end_when_closed(descriptor)
    if sys.platform == "linux" and is_of_main_thread:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def end_when_closed(descriptor: int) -> None:
    """End this process, at once and whatever it does, when the other end of the pipe ``descriptor`` is closed.

    Called in the main thread. For a process of multiprocessing the pipe is ``parent_process().sentinel``.
    """
    threading.Thread(target=_exit_when_closed, args=(descriptor,), name="exit-with-parent", daemon=True).start()
    with suppress(OSError, AttributeError, ImportError, ValueError):  # then only the thread ends it
        import fcntl

        _end_by_signal(signal.SIGIO, by_default=sys.platform == "linux")
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _exit_when_closed(descriptor: int) -> None:
    with suppress(OSError):
        while os.read(descriptor, 1):
            pass
        os._exit(1)


def _end_by_signal(number: int, *, by_default: bool) -> None:
    """Let a signal end this process without running Python code, which may have to wait.

    ``by_default``: the signal does so unless it is handled. Otherwise (macOS drops SIGIO) its handler is libc's _exit.
    """
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    if not by_default:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.signal(number, ctypes.cast(libc._exit, ctypes.c_void_p))


def lower_limits(**limits: int) -> None:
    """Set system limits of this process that cannot be raised again: ``AS`` is RLIMIT_AS, and so on.

    A limit that is lower already, as a batch system may have set it, stays.
    """
    import resource

    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))


def kill_after(seconds: float) -> None:
    """Let the kernel kill this process after ``seconds`` of wall time, or of processor time, from now on.

    Each call replaces the one before; 0: no longer by wall time. The signal is SIGALRM or SIGXCPU.
    """
    import resource

    signal.setitimer(signal.ITIMER_REAL, seconds)
    if not seconds:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
