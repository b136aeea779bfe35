"""Runs units of work in this process, in a pool of processes, or on a Dask cluster.

Each way takes the same units and gives one result for each. A result is written to disk by whichever process did the
work, by rename; only a summary travels back.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe, current_process, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic

from indexer.builds.report import Result, U, Worker
from indexer.child_processes import end_when_closed
from indexer.console.messages import say_over_the_bar, verbosity
from indexer.errors import AtlasError, Call, Failed, Text
from indexer.network.session import install_session
from indexer.processes import spawning

# A unit whose process dies this often is given up.
_DEATHS_ALLOWED = 2


def run_units(units: Sequence[U], worker: Worker[U], workers: int) -> Generator[Result[U]]:
    """Yield one result for each unit, computed in this process if there is one worker, else in a pool.

    A daemonic process, such as one of a ``multiprocessing.Pool``, may not start others and computes all itself.
    """
    if workers > 1 and not current_process().daemon:
        return in_processes(units, worker, workers)
    return (worker(unit) for unit in units)


@dataclass
class _Ended(Generic[U]):
    """How a pool ended: the ``units`` in flight when a process died, and whether any process ``has_begun`` before.

    ``cause``: how the processes ended that were not stopped by the pool, for a message.
    """

    units: list[U]
    has_begun: bool
    cause: str = ""


def in_processes(units: Sequence[U], worker: Worker[U], workers: int) -> Generator[Result[U]]:
    """Run units in a pool of processes on this machine, and yield one result for each, in any order.

    A unit whose process dies is tried again alone; one that kills its process each time is given up. Raises AtlasError
    if processes die while they start, whatever the unit.
    """
    waiting = list(reversed(units))
    while waiting:
        ended = yield from _until_broken(waiting, worker, workers, 2 * workers)
        # It is unknown which of the units in flight killed the process: each is tried again alone.
        yield from one_by_one(ended.units, worker)


def one_by_one(suspects: list[U], worker: Worker[U]) -> Generator[Result[U]]:
    """Run units with one in flight, so that a death has one cause. Raises AtlasError as ``in_processes`` does."""
    deaths: Counter[str] = Counter()
    failed_starts = 0
    while suspects:
        ended = yield from _until_broken(suspects, worker, 1, 1)
        failed_starts = 0 if ended.has_begun else failed_starts + 1
        if failed_starts == _DEATHS_ALLOWED:
            raise AtlasError(
                f"A new process ends before it can read a model ({ended.cause}).",
                Text(Call(workers=1), " reads in the process that is there."),
            )
        for unit in ended.units:
            deaths[unit.identity.digest] += ended.has_begun
            if deaths[unit.identity.digest] < _DEATHS_ALLOWED:
                suspects.append(unit)
            else:
                error = Failed("worker_died", "the process that read it died each time (out of memory?)")
                yield worker.give_up(unit, error)


def _until_broken(
    waiting: list[U], worker: Worker[U], workers: int, most: int
) -> Generator[Result[U], None, _Ended[U]]:
    """Run from the end of ``waiting`` until done or a process dies."""
    running: dict[Future[Result[U]], U] = {}
    with _pool(workers) as (pool, begun):
        processes: list[BaseProcess] = []
        with suppress(BrokenProcessPool):
            while waiting or running:
                while waiting and len(running) < most:
                    # Popped last: a death in the meantime is noticed here, and this unit has not begun.
                    with _ctrl_c_blocked():
                        running[pool.submit(worker, waiting[-1])] = waiting[-1]
                    waiting.pop()
                processes = list((getattr(pool, "_processes", None) or {}).values())
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    del running[future]
                    yield result
        has_begun = begun.poll()
    for future in [future for future in running if future.exception() is None]:
        result = future.result()
        del running[future]
        yield result
    return _Ended(list(running.values()), has_begun, _cause(processes))


def _cause(processes: Iterable[BaseProcess]) -> str:
    """How the first of the processes ended that the pool did not stop."""
    for process in processes:
        if process.exitcode not in (None, 0, -signal.SIGTERM):
            code = process.exitcode
            return f"signal {-code}; out of memory?" if code < 0 else f"exit status {code}"
    return "no exit status"


@contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, Connection]]:
    """A pool that ends with the block, at once after an exception; and a pipe with data once a process has begun."""
    begun, their_end = Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        workers, mp_context=spawning(), initializer=_initialise, initargs=(verbosity.quiet, their_end)
    )
    try:
        yield pool, begun
    except BaseException:
        # What runs is abandoned, what is done is on disk. Futures are not cancelled: the pool notifies all of them
        # that its processes are gone, and fails on a cancelled one.
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True)
        their_end.close()
        begun.close()


@contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Processes started in this block never receive Ctrl-C, not even before they can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(is_quiet: bool, begun: Connection) -> None:
    if (parent := parent_process()) is not None:
        end_when_closed(parent.sentinel)
    # Ctrl-C and the end of a terminal reach the whole process group; the parent decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    verbosity.quiet = is_quiet
    install_session(say=say_over_the_bar)  # when several workers wait for the Hub, only the first reports it
    begun.send_bytes(b".")
