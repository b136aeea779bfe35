"""Executors: who runs the units of work. Each takes the same units and gives the same results.

A result is written to the records folder by whoever did the work, by rename; what travels back is small.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Protocol, TypeVar

from indexer.builds.result import Place, Result
from indexer.builds.worker import abandoned, work
from indexer.console.messages import say_over_the_bar, verbosity
from indexer.errors import Failed, ModelError
from indexer.network.session import install_session
from indexer.records.unit import Unit

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
        return in_processes(units, partial(work, place=place), partial(_given_up, place), self.workers)


def _given_up(place: Place, unit: Unit, error: ModelError) -> Result:
    return abandoned(unit, place, error)


class Named(Protocol):
    """What names a task's result."""

    @property
    def digest(self) -> str:
        """As a file's name."""
        ...


class Identified(Protocol):
    """A task that can be told from others."""

    @property
    def identity(self) -> Named:
        """What names its result."""
        ...


Task = TypeVar("Task", bound=Identified)
Outcome = TypeVar("Outcome")


def in_processes(
    tasks: Sequence[Task], do: Callable[[Task], Outcome], give_up: Callable[[Task, ModelError], Outcome], workers: int
) -> Generator[Outcome]:
    """``do`` each task in one of ``workers`` processes, yielding what comes of it in any order, once for each.

    A task whose process dies is tried again alone; ``give_up`` says what comes of one that kills its process each time.
    """
    waiting = list(reversed(tasks))
    while waiting:
        suspects = yield from _until_broken(waiting, do, workers, 2 * workers)
        # Nobody can say which of the tasks in flight killed the process: each is tried again alone.
        yield from one_by_one(suspects, do, give_up)


def one_by_one(
    suspects: list[Task], do: Callable[[Task], Outcome], give_up: Callable[[Task, ModelError], Outcome]
) -> Generator[Outcome]:
    """One in flight, so that a death has one culprit."""
    deaths: Counter[str] = Counter()
    while suspects:
        for task in (yield from _until_broken(suspects, do, 1, 1)):
            deaths[task.identity.digest] += 1
            if deaths[task.identity.digest] < DEATHS_ALLOWED:
                suspects.append(task)
            else:
                error = Failed("worker_died", "the process that read it died each time (out of memory?)")
                yield give_up(task, error)


def _until_broken(
    waiting: list[Task], do: Callable[[Task], Outcome], workers: int, most: int
) -> Generator[Outcome, None, list[Task]]:
    """Run from the end of ``waiting`` until done; returns those of the ``most`` in flight that a death cut off."""
    running: dict[Future[Outcome], Task] = {}
    with _pool(workers) as pool, suppress(BrokenProcessPool):
        while waiting or running:
            while waiting and len(running) < most:
                # Popped last: a death while nobody looked is noticed here, and the task has not begun.
                with _deaf_to_ctrl_c():
                    running[pool.submit(do, waiting[-1])] = waiting[-1]
                waiting.pop()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                del running[future]
                yield result
    for future in [future for future in running if future.exception() is None]:
        result = future.result()
        del running[future]
        yield result
    return list(running.values())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end with the block, at once where an exception leaves it."""
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_initialise, initargs=(verbosity.quiet,)
    )
    try:
        yield pool
    except BaseException:
        # Stopped from outside: what runs is abandoned, what is done is on disk. No future is cancelled: the pool
        # tells all of them that its processes are gone, and a cancelled one cannot be told.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started within never hear of Ctrl-C, not even before they can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def executor_for(workers: int, scheduler: str | None = None) -> Executor:
    """This process for one worker, a pool for more; a cluster if one is named."""
    if scheduler is not None:
        from indexer.builds.dask_executor import DaskExecutor

        return DaskExecutor(scheduler)
    if workers <= 1:
        return SerialExecutor()
    return ProcessExecutor(workers)


def _initialise(is_quiet: bool) -> None:
    Thread(target=_leave_with_the_parent, name="leave-with-the-parent", daemon=True).start()
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    verbosity.quiet = is_quiet
    install_session(say=say_over_the_bar)  # of all who wait for the Hub together, the first says so


def _leave_with_the_parent() -> None:
    """A parent that is killed cannot end its workers, and nobody would take what they go on to do."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
