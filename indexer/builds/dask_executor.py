"""Units of work on a Dask distributed cluster that sees the atlas's folder.

Dask decides where a unit runs, and runs it again elsewhere when its worker dies. A unit writes its record by rename, so
one that runs twice, or whose client has gone meanwhile, does no harm: the next build finds the record.

Dask's own accounting of lost workers is not enough here: it blames every task that a lost worker held, not the one
that killed it. So units whose worker died are tried again alone.

Before any work all workers are asked for their version, their Hub and whether they see the folder; a worker that joins
later is asked before its first unit.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from indexer.atlas import AtlasFolder
from indexer.builds.report import Result
from indexer.builds.worker import RecordWorker, classify_error
from indexer.errors import AtlasError, Call, Failed, Text, require, without_user
from indexer.records.identity import Unit
from indexer.records.store import RecordStore
from indexer.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

_CONNECT_SECONDS = 20.0
# A cluster may lose its last worker and get new ones; after this long without any the build stops.
_WITHOUT_WORKERS_SECONDS = 120.0
_LOOK_SECONDS = 5.0
# Enough to keep every thread busy while the client sleeps, few enough to stop soon.
_WAITING_PER_THREAD = 3
# When this many units may have killed a worker, they are tried alone before others begin.
_MOST_SUSPECTS = 8
# A file written on another machine is visible here after NFS renews its cache, at least once a minute.
VISIBLE_SECONDS = 65.0


@dataclass(frozen=True)
class Requirements:
    """What a worker must share with the client; ``token`` is a file in the atlas's folder while the build runs."""

    version: str
    endpoint: str
    token: Path


class DaskExecutor:
    """Runs units on the cluster whose scheduler listens at ``address`` (tcp://… or tls://…)."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, units: Sequence[Unit], worker: RecordWorker) -> Generator[Result[Unit]]:
        """Yield one result for each unit, as they come.

        Raises AtlasError if the scheduler cannot be reached or goes away, if a worker cannot work (another
        version, another Hub, a folder it does not see), or if the cluster stays without workers.
        """
        from distributed import CancelledError
        from distributed.comm import CommClosedError

        client = self.connect()
        try:
            deadline = time.monotonic() + _WITHOUT_WORKERS_SECONDS
            while not _threads(client):
                if time.monotonic() > deadline:
                    raise AtlasError(
                        f"The Dask cluster at {self.address} has no workers.",
                        f"Start some: dask worker {self.address} --nthreads 1",
                    )
                time.sleep(0.2)
            with _requirements(worker.atlas) as required:
                for name, answer in client.run(_introduce, required.token, on_error="return").items():
                    if not isinstance(answer, dict):
                        raise AtlasError(
                            f"The Dask worker {name} cannot work: {_in_a_line(answer)}.",
                            "Install vectors-in-the-wild on every worker.",
                        )
                    _check(required, answer, name)
                waiting = list(reversed(units))
                while waiting:
                    suspects = yield from self._results(client, waiting, worker, required)
                    for unit in (yield from self._results(client, suspects, worker, required, is_alone=True)):
                        error = Failed("worker_died", "the worker that read it died each time (out of memory?)")
                        yield worker.give_up(unit, error)
        except (CancelledError, CommClosedError) as error:
            raise self._lost() from error
        finally:
            client.close(timeout=5)

    def connect(self) -> Client:
        """A client. Raises AtlasError if no scheduler answers."""
        require(Text(Call(executor="dask")), "distributed")
        from distributed import Client

        for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is reported in one line of ours
        client = Client.__new__(Client)
        try:
            client.__init__(  # type: ignore[misc]
                self.address, timeout=_CONNECT_SECONDS, set_as_default=False, name="vectors-in-the-wild"
            )
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            client.status = "closed"  # otherwise it is closed at exit, which takes long and leaves a traceback
            raise AtlasError(
                f"No Dask scheduler answers at {self.address}: {_in_a_line(error)}.",
                "Check `scheduler`, and Dask's TLS configuration (docs/guide/clusters.md).",
            ) from error
        return client

    def _results(
        self, client: Client, waiting: list[Unit], worker: RecordWorker, required: Requirements, is_alone: bool = False
    ) -> Generator[Result[Unit], None, list[Unit]]:
        """Run from the end of ``waiting``; returns the units whose workers died, and stops early for many of them."""
        from distributed import wait
        from distributed.utils import TimeoutError as NothingDone

        running: dict[Future, Unit] = {}
        killed: list[Unit] = []
        most_killed = len(waiting) + 1 if is_alone else _MOST_SUSPECTS
        empty_since: float | None = None  # when the cluster was first seen without workers
        while running or (waiting and len(killed) < most_killed):
            threads = _threads(client)
            most = 1 if is_alone else _WAITING_PER_THREAD * max(1, threads)
            room = most - len(running) if len(killed) < most_killed else 0
            for _ in range(min(room, len(waiting))):
                unit = waiting.pop()
                key = f"{unit.identity.digest}-{uuid4().hex}"  # Dask never runs the same key twice
                running[client.submit(_attempt, unit, worker, required, key=key, pure=False)] = unit
            try:
                with client.as_current():
                    done = wait(list(running), timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED").done
            except NothingDone:
                done = set()
            for future in done:
                unit = running.pop(future)
                result = self._result(future, unit, worker)
                future.release()
                if result is None:
                    killed.append(unit)
                else:
                    yield result
            if client.status != "running":
                raise self._lost()
            if threads:
                empty_since = None
            elif empty_since is None:
                empty_since = time.monotonic()
            elif time.monotonic() - empty_since > _WITHOUT_WORKERS_SECONDS:
                raise AtlasError(
                    f"The Dask cluster at {self.address} has had no worker for {_WITHOUT_WORKERS_SECONDS:.0f} s.",
                    "Start workers and run it again; finished work is kept.",
                )
        return killed

    def _result(self, future: Future, unit: Unit, worker: RecordWorker) -> Result[Unit] | None:
        """The result of a future; None if Dask gave up because the workers that ran it died.

        Raises OSError if the atlas cannot be written to, AtlasError where a worker cannot work at all or the
        scheduler has gone.
        """
        from distributed import KilledWorker

        if future.status in ("cancelled", "lost"):
            raise self._lost()
        if future.status != "finished":
            error = future.exception()
            if isinstance(error, KilledWorker):
                return None
            sentence = f"the worker could not do it ({type(error).__name__}: {_in_a_line(error)})"
            return worker.give_up(unit, Failed("worker_error", sentence))
        result: Result[Unit] | Exception = future.result()
        if isinstance(result, Exception):
            raise result
        return visible_result(result, worker)

    def _lost(self) -> AtlasError:
        return AtlasError(
            f"The Dask scheduler at {self.address} went away.",
            "Start it again and run the build again; finished work is kept.",
        )


def _attempt(unit: Unit, worker: RecordWorker, required: Requirements) -> Result[Unit] | Exception:
    """Run one unit, on a worker. An error that ends the build is returned as a new one with a plain message.

    Dask's client stalls on tracebacks that it cannot unpickle.
    """
    try:
        _check_here(required)
        return worker(unit)
    except AtlasError as error:
        return AtlasError(error.message, error.hint)
    except OSError as error:
        return AtlasError(_in_a_line(error)) if error.errno is None else OSError(error.errno, _in_a_line(error))
    except Exception as error:
        return worker.give_up(unit, classify_error(error))


def visible_result(result: Result[Unit], worker: RecordWorker) -> Result[Unit]:
    """The same once its record is visible here, else a failure: a record that is not visible cannot be published."""
    store = RecordStore(AtlasFolder(worker.atlas))
    deadline = time.monotonic() + VISIBLE_SECONDS
    while result.error is None and not store.has(result.unit.identity.digest):
        if time.monotonic() > deadline:
            sentence = "its record was written on a worker but is not visible here; do both see the same folder?"
            return worker.give_up(result.unit, Failed("worker_error", sentence))
        time.sleep(0.2)
    return result


def _threads(client: Client) -> int:
    """How many units the cluster can work on at once."""
    return sum(client.nthreads().values())


@contextmanager
def _requirements(atlas: Path) -> Iterator[Requirements]:
    """The versions and the endpoint of this process, which every worker must share."""
    from huggingface_hub import constants

    for token_file in atlas.glob(".seen-*.token"):  # of a client that was killed: there is one writer at a time
        token_file.unlink(missing_ok=True)
    token = atlas / f".seen-{uuid4().hex}.token"  # not .tmp: a publish during the build removes those
    token.write_text(token.name, encoding="ascii")
    try:
        yield Requirements(__version__, without_user(constants.ENDPOINT), token)
    finally:
        token.unlink(missing_ok=True)


@lru_cache(maxsize=8)
def _check_here(required: Requirements) -> None:
    """Called on a worker. Raises AtlasError if it does not fit."""
    from distributed import get_worker

    _check(required, _introduce(required.token), get_worker().address)


def _introduce(token: Path) -> dict[str, Any]:
    """Called on each worker: its versions, its endpoint, and whether it sees the folder."""
    from huggingface_hub import constants

    return {
        "host": socket.gethostname(),
        "version": __version__,
        "endpoint": without_user(constants.ENDPOINT),
        "sees_folder": token.is_file() and os.access(token.parent, os.W_OK),
    }


def _check(required: Requirements, answer: dict[str, Any], name: str) -> None:
    for what, expected, advice in (
        ("version", required.version, "Install the same version everywhere."),
        ("endpoint", required.endpoint, "Start workers with the same HF_ENDPOINT."),
        ("sees_folder", True, f"Mount the folder {required.token.parent} there under the same path."),
    ):
        if answer[what] != expected:
            raise AtlasError(
                f"The Dask worker {name} on {answer['host']} has {what}={answer[what]!r}, not {expected!r}.", advice
            )


def _in_a_line(error: object) -> str:
    """The message of an error, on one line and cut short."""
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
