"""Runs units of work in this process, in a pool of processes, or on a Dask cluster.

Each way takes the same units and gives one result for each. A result is written to disk by whichever process did the
work, by rename; only a summary travels back.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process

from indexer.builds.report import Result, U, Worker
from indexer.child_processes import end_when_closed
from indexer.console.messages import say_over_the_bar, verbosity
from indexer.errors import Failed
from indexer.network.session import install_session

# A unit whose process dies this often is given up.
_DEATHS_ALLOWED = 2


def run_units(units: Sequence[U], worker: Worker[U], workers: int) -> Generator[Result[U]]:
    """Yield one result for each unit, computed in this process if there is one worker, else in a pool."""
    if workers > 1:
        return in_processes(units, worker, workers)
    return (worker(unit) for unit in units)


def in_processes(units: Sequence[U], worker: Worker[U], workers: int) -> Generator[Result[U]]:
    """Run units in a pool of processes on this machine, and yield one result for each, in any order.

    A unit whose process dies is tried again alone; one that kills its process each time is given up.
    """
    waiting = list(reversed(units))
    while waiting:
        suspects = yield from _until_broken(waiting, worker, workers, 2 * workers)
        # It is unknown which of the units in flight killed the process: each is tried again alone.
        yield from one_by_one(suspects, worker)


def one_by_one(suspects: list[U], worker: Worker[U]) -> Generator[Result[U]]:
    """Run units with one in flight, so that a death has one cause."""
    deaths: Counter[str] = Counter()
    while suspects:
        for unit in (yield from _until_broken(suspects, worker, 1, 1)):
            deaths[unit.identity.digest] += 1
            if deaths[unit.identity.digest] < _DEATHS_ALLOWED:
                suspects.append(unit)
            else:
                error = Failed("worker_died", "the process that read it died each time (out of memory?)")
                yield worker.give_up(unit, error)


def _until_broken(waiting: list[U], worker: Worker[U], workers: int, most: int) -> Generator[Result[U], None, list[U]]:
    """Run from the end of ``waiting`` until done or a process dies; returns the units that were then in flight."""
    running: dict[Future[Result[U]], U] = {}
    with _pool(workers) as pool, suppress(BrokenProcessPool):
        while waiting or running:
            while waiting and len(running) < most:
                # Popped last: a death in the meantime is noticed here, and this unit has not begun.
                with _ctrl_c_blocked():
                    running[pool.submit(worker, waiting[-1])] = waiting[-1]
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
    """A pool that ends with the block, at once after an exception. Started by spawn: a fork after OpenMP hangs."""
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_initialise, initargs=(verbosity.quiet,)
    )
    try:
        yield pool
    except BaseException:
        # What runs is abandoned, what is done is on disk. Futures are not cancelled: the pool notifies all of them
        # that its processes are gone, and fails on a cancelled one.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True)


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Processes started in this block never receive Ctrl-C, not even before they can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(is_quiet: bool) -> None:
    if (parent := parent_process()) is not None:
        end_when_closed(parent.sentinel)
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    verbosity.quiet = is_quiet
    install_session(say=say_over_the_bar)  # when several workers wait for the Hub, only the first reports it
