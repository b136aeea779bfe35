"""The processes that answer calls: one per call, killed if the call is cancelled or the client disconnects.

Threads cannot be stopped while they run DuckDB, FAISS or torch. An idle process is kept for the next call.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Self

from indexer.errors import AtlasError

MOST_AT_ONCE = 4  # calls; more wait
KEPT = 2  # idle processes


class Workers:
    """Answers calls on the atlas in ``folder``; models may be read from folders in ``models`` (None: from none)."""

    def __init__(self, folder: Path, models: Path | None) -> None:
        import anyio

        self._place = (folder.resolve(), models.resolve() if models is not None else None)
        self._turns = anyio.Semaphore(MOST_AT_ONCE)
        self._idle = [_Worker(*self._place)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        for worker in self._idle:
            worker.end()

    async def answer(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of ``tool``. Raises AtlasError, with one line, if it fails."""
        from anyio import to_thread

        async with self._turns:
            worker = self._idle.pop() if self._idle else _Worker(*self._place)
            is_done = False
            try:
                answer, error = await to_thread.run_sync(worker.ask, tool, dict(arguments), abandon_on_cancel=True)
                is_done = True
            except (EOFError, OSError) as problem:
                raise AtlasError(
                    "The process that answers was killed, perhaps for lack of memory. Try again."
                ) from problem
            finally:
                if is_done and len(self._idle) < KEPT:
                    self._idle.append(worker)
                else:
                    worker.end()
        if answer is None:
            raise AtlasError(error)
        found: dict[str, Any] = answer
        return found


class _Worker:
    """One process, which answers one call at a time."""

    def __init__(self, folder: Path, models: Path | None) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, folder, models), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, tool: str, arguments: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """The answer, or None and an error. Raises EOFError or OSError if the process has ended."""
        self._line.send((tool, arguments))
        answer: tuple[dict[str, Any] | None, str] = self._line.recv()
        return answer

    def end(self) -> None:
        """Kill it and its children. The pipe stays open: a thread that waits for it gets an EOFError."""
        with suppress(OSError, AttributeError):  # it has no group yet, or this is Windows
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _work(line: Connection, folder: Path, models: Path | None) -> None:
    """Answer calls until the server closes the pipe."""
    from indexer.names import read_folders_in
    from query.serve.tools import Tools

    if hasattr(os, "setsid"):
        os.setsid()  # its children die with its group, and Ctrl-C reaches only the server
    Thread(target=_exit_with_server, daemon=True).start()
    read_folders_in(models)
    if models is not None:
        os.chdir(models)
    tools = Tools(folder)
    while True:
        try:
            tool, arguments = line.recv()
        except EOFError:
            return
        try:
            line.send(tools.answer(tool, arguments))
        except Exception as error:
            traceback.print_exc()
            line.send((None, f"{tool} failed unexpectedly ({type(error).__name__}); the server's log has the details."))


def _exit_with_server() -> None:
    server = parent_process()
    if server is not None:
        server.join()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
