"""Executors: who runs the units of work. Each takes the same units and gives the same results.

A result is written to the records folder by whoever did the work, by rename; what travels back is small.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Protocol

from indexer.console.speech import manners, say_over_the_bar
from indexer.errors import Failed
from indexer.network.session import install_session
from indexer.running.worker import Place, Result, abandoned, work
from indexer.unit import Unit

# A unit that takes the process down twice is at fault itself.
DEATHS_ALLOWED = 2


class Executor(Protocol):
    """Runs units in any order and yields one result for each, exactly once."""

    def run(self, units: Sequence[Unit], place: Place) -> Generator[Result]:
        """Yield one result for each unit, in any order."""
        ...


class SerialExecutor:
    """Everything in this process, one unit after another."""

    def run(self, units: Sequence[Unit], place: Place) -> Generator[Result]:
        """Yield results in the order of the units."""
        for unit in units:
            yield work(unit, place)


class ProcessExecutor:
    """A pool of processes on this machine, started by spawn: a fork after OpenMP has run hangs."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, units: Sequence[Unit], place: Place) -> Generator[Result]:
        """Yield results as they come. A process that dies takes only its own unit's attempt with it."""
        waiting = list(reversed(units))
        deaths: dict[str, int] = {}
        while waiting:
            suspects = yield from self._until_broken(waiting, place)
            # Nobody can say which of the units in flight killed the process: each is tried again alone.
            for unit in suspects:
                result = self._alone(unit, place, deaths)
                yield result

    def _until_broken(self, waiting: list[Unit], place: Place) -> Generator[Result, None, list[Unit]]:
        """Run from the end of ``waiting`` until done; returns the units in flight when a process died."""
        running: dict[Future[Result], Unit] = {}
        with self._pool(self.workers) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * self.workers:
                        unit = waiting.pop()
                        running[pool.submit(work, unit, place)] = unit
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        del running[future]
                        yield result
            except BrokenProcessPool:
                return list(running.values())
            except BaseException:
                # Stopped from outside: what runs is abandoned, what is done is on disk.
                for future in running:
                    future.cancel()
                _end(pool)
                raise
        return []

    def _alone(self, unit: Unit, place: Place, deaths: dict[str, int]) -> Result:
        digest = unit.identity.digest
        while deaths.get(digest, 0) < DEATHS_ALLOWED:
            with self._pool(1) as pool:
                try:
                    return pool.submit(work, unit, place).result()
                except BrokenProcessPool:
                    deaths[digest] = deaths.get(digest, 0) + 1
        error = Failed("worker_died", "the process that read it died each time (out of memory?)")
        return abandoned(unit, place, error)

    @staticmethod
    def _pool(workers: int) -> ProcessPoolExecutor:
        context = get_context("spawn")
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_initialise, initargs=(manners.quiet,))


def executor_for(workers: int, units: int, scheduler: str | None = None) -> Executor:
    """This process for few units (a new process costs seconds to start), a pool for many; a cluster if one is named."""
    if scheduler is not None:
        from indexer.running.dask_executor import DaskExecutor

        return DaskExecutor(scheduler)
    if workers <= 1 or units < 2 * workers:
        return SerialExecutor()
    return ProcessExecutor(workers)


def default_workers() -> int:
    """One for each processor this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _initialise(is_quiet: bool) -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    manners.quiet = is_quiet
    install_session(say=say_over_the_bar)  # of all who wait for the Hub together, the first says so


def _end(pool: ProcessPoolExecutor) -> None:
    processes: Iterable[object] = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        terminate: Callable[[], None] | None = getattr(process, "terminate", None)
        if terminate is not None:
            terminate()
