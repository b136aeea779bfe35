"""Units of work on a Dask distributed cluster that sees the atlas's folder.

Dask decides where a unit runs and runs it again elsewhere when its worker dies. A unit writes its record by rename,
so that one that runs twice, or whose client is gone meanwhile, does no harm: the next build finds the record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from indexer.atlas import AtlasFolder
from indexer.builds.dask_terms import Terms, check_here, check_workers, terms_of, told_in_a_line
from indexer.builds.result import Place, Result
from indexer.builds.worker import abandoned, what_it_means, work
from indexer.errors import AtlasError, Failed, require
from indexer.records.store import RecordStore
from indexer.records.unit import Unit

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_SECONDS = 20.0
# A cluster may lose its last worker and get new ones; this long nobody is told that it has none.
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 5.0
# Enough to keep every thread busy while the client sleeps, few enough to stop soon.
WAITING_PER_THREAD = 3
# So many that may have killed a worker are tried alone before others begin: where all do, that is soon known.
MOST_SUSPECTS = 8
# A file that another machine has written is seen here when NFS asks again, which it does at least once a minute.
SEEN_SECONDS = 65.0


class DaskExecutor:
    """Runs units on the cluster whose scheduler listens at ``address`` (tcp://… or tls://…)."""

    def __init__(self, address: str) -> None:
        self.address = address

    def check(self) -> None:
        """Raises AtlasError where no scheduler answers: better told before a long crawl than after it."""
        self._connected().close(timeout=5)

    def run(self, units: Sequence[Unit], place: Place) -> Generator[Result]:
        """Yield results as they come, one for each unit.

        Raises AtlasError where the scheduler cannot be reached or goes away, where a worker cannot work (another
        version, another Hub, a folder it does not see), or where the cluster stays without workers.
        """
        client = self._connected()
        try:
            _wait_for_workers(client, self.address)
            with terms_of(place.atlas) as terms:
                check_workers(client, terms)
                waiting = list(reversed(units))
                while waiting:
                    suspects = yield from self._results(client, waiting, place, terms)
                    # A worker that dies takes along those that wait for it: each is tried again, alone in flight.
                    for unit in (yield from self._results(client, suspects, place, terms, is_alone=True)):
                        error = Failed("worker_died", "the worker that read it died each time (out of memory?)")
                        yield abandoned(unit, place, error)
        except _signs_of_loss() as error:
            raise _lost(self.address) from error
        finally:
            client.close(timeout=5)

    def _connected(self) -> Client:
        require("`executor='dask'`", "distributed")
        from distributed import Client

        for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is said in a line of ours
        client = Client.__new__(Client)
        try:
            client.__init__(  # type: ignore[misc]
                self.address, timeout=CONNECT_SECONDS, set_as_default=False, name="vectors-in-the-wild"
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            client.status = "closed"  # else it is closed when the program ends, which takes long and leaves a traceback
            raise AtlasError(
                f"No Dask scheduler answers at {self.address}: {told_in_a_line(error)}.",
                "Check `scheduler`, and what Dask is told of TLS (docs/clusters.md).",
            ) from error
        return client

    def _results(
        self, client: Client, waiting: list[Unit], place: Place, terms: Terms, is_alone: bool = False
    ) -> Generator[Result, None, list[Unit]]:
        """Run from the end of ``waiting``; returns the units whose workers died, and stops early for many of them."""
        from distributed import wait
        from distributed.utils import TimeoutError as Late

        running: dict[Future, Unit] = {}
        killed: list[Unit] = []
        most_killed = len(waiting) + 1 if is_alone else MOST_SUSPECTS
        lonely_since: float | None = None
        while running or (waiting and len(killed) < most_killed):
            most = 1 if is_alone else WAITING_PER_THREAD * max(1, _threads(client))
            room = most - len(running) if len(killed) < most_killed else 0
            for _ in range(min(room, len(waiting))):
                unit = waiting.pop()
                key = f"{unit.identity.digest}-{uuid4().hex}"  # a key that Dask knows already is not run again
                running[client.submit(_attempt, unit, place, terms, key=key, pure=False)] = unit
            try:
                with client.as_current():
                    done = wait(list(running), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done
            except Late:
                done = set()
            for future in done:
                unit = running.pop(future)
                result = _result(future, unit, place, self.address)
                future.release()
                if result is None:
                    killed.append(unit)
                else:
                    yield result
            lonely_since = self._lonely_since(client, lonely_since)
        return killed

    def _lonely_since(self, client: Client, since: float | None) -> float | None:
        """When the cluster was first seen without workers; raises AtlasError when that is too long ago."""
        if client.status != "running":
            raise _lost(self.address)
        if _threads(client):
            return None
        if since is None:
            return time.monotonic()
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise AtlasError(
                f"The Dask cluster at {self.address} has had no worker for {PATIENCE_SECONDS:.0f} s.",
                "Start workers and run it again; what was done stays.",
            )
        return since


@dataclass(frozen=True)
class _Trouble:
    """An exception on a worker. It comes as text: Dask's client stalls on tracebacks that it cannot unpickle."""

    text: str
    hint: str = ""
    errno: int | None = None


def _attempt(unit: Unit, place: Place, terms: Terms) -> Result | _Trouble:
    """Run on a worker, which may have come after the others were asked."""
    try:
        check_here(terms)
        return work(unit, place)
    except AtlasError as error:
        return _Trouble(error.message, error.hint)
    except OSError as error:
        return _Trouble(told_in_a_line(error), errno=error.errno)
    except Exception as error:
        return abandoned(unit, place, what_it_means(error))


def _result(future: Future, unit: Unit, place: Place, address: str) -> Result | None:
    """What the future holds; None where Dask gave up because too many workers died that were to run it.

    Raises OSError for trouble of the place that is written to, AtlasError where a worker cannot work at all or the
    scheduler is gone.
    """
    from distributed import KilledWorker

    if future.status in ("cancelled", "lost"):
        raise _lost(address)
    if future.status != "finished":
        error = future.exception()
        if isinstance(error, KilledWorker):
            return None
        sentence = f"the worker could not do it ({type(error).__name__}: {told_in_a_line(error)})"
        return abandoned(unit, place, Failed("worker_error", sentence))
    found: Result | _Trouble = future.result()
    if isinstance(found, Result):
        return _seen(found, place)
    if found.errno is not None:
        raise OSError(found.errno, found.text)
    raise AtlasError(found.text, found.hint)


def _seen(result: Result, place: Place) -> Result:
    """The same when its record is visible here, else a failure: what nobody can read cannot be published."""
    store = RecordStore(AtlasFolder(place.atlas))
    deadline = time.monotonic() + SEEN_SECONDS
    while result.error is None and not store.has(result.unit.identity.digest):
        if time.monotonic() > deadline:
            sentence = "its record was written on a worker and is not to be seen here; do both see one folder?"
            return abandoned(result.unit, place, Failed("worker_error", sentence))
        time.sleep(0.2)
    return result


def _signs_of_loss() -> tuple[type[Exception], ...]:
    from distributed import CancelledError
    from distributed.comm import CommClosedError

    return (CancelledError, CommClosedError)


def _lost(address: str) -> AtlasError:
    return AtlasError(
        f"The Dask scheduler at {address} went away.", "Start it again and run the build again; what was done stays."
    )


def _threads(client: Client) -> int:
    """Units that the cluster can work on at once."""
    return sum(client.nthreads().values())


def _wait_for_workers(client: Client, address: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _threads(client):
        if time.monotonic() > deadline:
            raise AtlasError(
                f"The Dask cluster at {address} has no workers.", f"Start some: dask worker {address} --nthreads 1"
            )
        time.sleep(0.2)
