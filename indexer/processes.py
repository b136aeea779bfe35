"""New processes of Python that import what they run, and never the program that starts them.

``multiprocessing`` makes each new process run the main module of its parent again, before anything else. A script
without a main guard would begin anew in every process, and a program that Python reads from stdin cannot be run twice.
Nothing that the project runs in a process is defined in a main module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import popen_spawn_posix, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

_launching = threading.Lock()


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> popen_spawn_posix.Popen:  # noqa: N802 - the name that multiprocessing calls
        with _main_left_out():
            return popen_spawn_posix.Popen(process_obj)


class _Context(SpawnContext):
    Process = _Process


def spawning() -> SpawnContext:
    """The context of ``multiprocessing`` whose processes start afresh, without the main module of this one.

    They are spawned and not forked, because a fork after OpenMP hangs.
    """
    return _Context()


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Processes that this thread starts within the block do not run the main module; those of other threads do."""
    thread = threading.get_ident()
    with _launching:
        complete = spawn.get_preparation_data

        def without_main(name: str) -> dict[str, Any]:
            data = complete(name)
            if threading.get_ident() == thread:
                data.pop("init_main_from_name", None)
                data.pop("init_main_from_path", None)
            return data

        spawn.get_preparation_data = without_main
        try:
            yield
        finally:
            spawn.get_preparation_data = complete
