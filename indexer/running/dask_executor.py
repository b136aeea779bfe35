"""Units of work on a Dask distributed cluster that sees the atlas's folder.

Dask decides where a unit runs and runs it again elsewhere when its worker dies. A unit writes its record by rename,
so that one that runs twice, or whose client is gone meanwhile, does no harm: the next build finds the record.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from indexer import __version__
from indexer.errors import AtlasError, Failed
from indexer.running.worker import Place, Result, abandoned, work
from indexer.unit import Unit

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_SECONDS = 20.0
# A cluster may lose its last worker and get new ones; this long nobody is told that it has none.
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 5.0
# Enough to keep every thread busy while the client sleeps, few enough to stop soon.
WAITING_PER_THREAD = 3


class DaskExecutor:
    """Runs units on the cluster whose scheduler listens at ``address`` (tcp://… or tls://…)."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, units: Sequence[Unit], place: Place) -> Generator[Result]:
        """Yield results as they come, one for each unit.

        Raises AtlasError where the scheduler cannot be reached or goes away, where a worker cannot work (another
        version, another Hub, a folder it does not see), or where the cluster stays without workers.
        """
        client = self._connected()
        try:
            _wait_for_workers(client, self.address)
            _check_workers(client, place)
            yield from self._results(client, list(reversed(units)), place)
        except _signs_of_loss() as error:
            raise _lost(self.address) from error
        finally:
            client.close(timeout=5)

    def _connected(self) -> Client:
        try:
            from distributed import Client
        except ImportError as error:
            raise AtlasError(
                f"--executor dask needs distributed, which cannot be imported ({error}).",
                "Install the extra: pip install 'vectors-in-the-wild[dask]'",
            ) from error
        for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is said in a line of ours
        try:
            return Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False, name="vectors-in-the-wild")
        except (OSError, ValueError, TypeError) as error:
            raise AtlasError(
                f"No Dask scheduler answers at {self.address}: {_line(error)}.", "Check --scheduler."
            ) from error

    def _results(self, client: Client, waiting: list[Unit], place: Place) -> Iterator[Result]:
        from distributed import wait
        from distributed.utils import TimeoutError as Late

        running: dict[Future, Unit] = {}
        lonely_since: float | None = None
        while waiting or running:
            room = WAITING_PER_THREAD * max(1, _threads(client)) - len(running)
            for _ in range(min(room, len(waiting))):
                unit = waiting.pop()
                key = f"{unit.identity.digest}-{uuid4().hex}"  # a key that Dask knows already is not run again
                running[client.submit(_attempt, unit, place, key=key, pure=False)] = unit
            try:
                with client.as_current():
                    done = wait(list(running), timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED").done
            except Late:
                done = set()
            for future in done:
                yield _result(future, running.pop(future), place, self.address)
                future.release()
            lonely_since = self._lonely_since(client, lonely_since)

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

    name: str
    text: str
    errno: int | None


def _attempt(unit: Unit, place: Place) -> Result | _Trouble:
    """Run on a worker."""
    try:
        return work(unit, place)
    except Exception as error:
        return _Trouble(type(error).__name__, _line(error), getattr(error, "errno", None))


def _result(future: Future, unit: Unit, place: Place, address: str) -> Result:
    """What the future holds; a unit that took too many workers down with it is a failure.

    Raises OSError for trouble of the place that is written to, AtlasError where the scheduler is gone.
    """
    if future.status in ("cancelled", "lost"):
        raise _lost(address)
    if future.status != "finished":
        error = Failed("worker_died", "the worker that read it died each time (out of memory?)")
        return abandoned(unit, place, error)
    found: Result | _Trouble = future.result()
    if isinstance(found, Result):
        return found
    if found.errno is not None:
        raise OSError(found.errno, found.text)
    sentence = f"the worker could not do it ({found.name}: {found.text})"
    return abandoned(unit, place, Failed("worker_error", sentence))


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


def _check_workers(client: Client, place: Place) -> None:
    """Every worker must have this version, ask this Hub and see this folder, or its work would be lost."""
    from huggingface_hub import constants

    token = place.atlas / f".seen-{uuid4().hex}.tmp"
    token.write_text(token.name, encoding="ascii")
    try:
        told = client.run(_introduce, str(token), on_error="return")
    finally:
        token.unlink(missing_ok=True)
    for name, answer in told.items():
        if not isinstance(answer, dict):
            raise AtlasError(
                f"The Dask worker {name} cannot work: {_line(answer)}.", "Install vectors-in-the-wild on every worker."
            )
        for what, wanted, todo in (
            ("version", __version__, "Install the same version everywhere."),
            ("endpoint", constants.ENDPOINT, "Start workers with the same HF_ENDPOINT."),
            ("sees_folder", True, f"Mount the folder {place.atlas} there under the same path."),
        ):
            if answer[what] != wanted:
                raise AtlasError(
                    f"The Dask worker {name} on {answer['host']} has {what}={answer[what]!r}, not {wanted!r}.", todo
                )


def _introduce(token: str) -> dict[str, Any]:
    """Run on each worker."""
    from huggingface_hub import constants

    path = Path(token)
    return {
        "host": socket.gethostname(),
        "version": __version__,
        "endpoint": constants.ENDPOINT,
        "sees_folder": path.is_file() and os.access(path.parent, os.W_OK),
    }


def _line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
