"""How much of this machine a build may use: how many workers, what each may hold, how fast they may read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.machine import available_memory, processors
from indexer.quantities import size_in_words

if TYPE_CHECKING:
    from indexer.builds.options import WorkOptions
    from indexer.deltas.stored_base import StoredBase
    from indexer.records.identity import Unit

# Memory of a process before it has read anything (torch and the Hub's client, measured: 230 MiB), with a margin.
PROCESS_BYTES = 300 << 20
# Additional memory of one unit, in float32 matrices of the largest size: the weight, the base's, the Krylov blocks and
# the work space of the exact decomposition of a small matrix.
_MATRICES_AT_WORK = 6
# Enough to keep the connection busy through the slowest decomposition of a layer; more would only cost memory.
AHEAD_BYTES = 64 << 20
# A base larger than this is read from disk for every model, however much memory there is.
_RESIDENT_BYTES = 2 << 30


@dataclass(frozen=True)
class Resources:
    """What a build may use.

    ``resident``: every worker holds the base's matrices in memory. ``connections``: of each worker. ``bandwidth``:
    bytes a second for all workers together, None for no limit. ``database_bytes``: what is left for the database of a
    publish, None for no limit.
    """

    workers: int = 1
    resident: bool = True
    connections: int = 1
    ahead_bytes: int = AHEAD_BYTES
    bandwidth: float | None = None
    database_bytes: int | None = None


def resources_for(
    units: Sequence[Unit],
    base: StoredBase,
    options: WorkOptions,
    is_sampled: bool,
    say: Callable[[str], None],
    at_work: int = 0,
) -> Resources:
    """The resources of one build; ``say`` is called if they are less than was asked for.

    ``at_work``: bytes that one unit holds besides matrices. Reading a sample is mostly waiting, so it takes two workers
    for each processor. Every worker has a connection, and all together have no more than are allowed. Raises AtlasError
    as ``share_out``.
    """
    most = options.workers or processors() * (1 + is_sampled)
    if any(unit.model.place is not None and unit.model.place.is_of_process for unit in units):
        most = 1
    remote = {source.title for unit in units if (source := unit.model.source).is_remote and not source.offline}
    if remote and most > options.connections:
        if options.workers:
            allowed = f"{options.connections} connection{'s' if options.connections > 1 else ''}"
            say(f"{options.connections} of {most} workers: `connections` allows {allowed} to {min(remote)}")
        most = options.connections
    workers = workers_for(most, len(units))
    largest = max(4 * matrix.shape[0] * matrix.shape[1] for matrix in base.layout.matrices)
    base_bytes = base.shape.sample_bytes(base.item_bytes) if is_sampled else base.block_bytes
    shares = share_out(workers, base_bytes, largest, options.memory_bytes, at_work)
    if shares.workers < workers:
        say(f"memory for {shares.workers} of {workers} workers")
    return replace(
        shares,
        resident=shares.resident and not is_sampled,
        connections=max(1, options.connections // shares.workers),
        bandwidth=options.bytes_per_second,
    )


def workers_for(workers: int, units: int) -> int:
    """As many of ``workers`` as have two units to do: a new process costs seconds to start."""
    return max(1, min(workers, (units + 1) // 2))


def share_out(
    workers: int, base_bytes: int, largest_bytes: int, memory: int | None = None, at_work: int = 0
) -> Resources:
    """Spend ``memory`` bytes on as many of ``workers`` as fit, then on reading ahead, then on the base in memory.

    In this order because the page cache holds the base for all workers, while only reading ahead keeps the connection
    busy as they compute. ``base_bytes``: all block matrices of the base; ``largest_bytes``: the largest of them as
    float32; ``at_work``: what a unit holds besides. Without ``memory`` half of what is free may be used. Raises
    AtlasError if not even one worker fits into the given ``memory``.
    """
    budget = memory if memory is not None else available_memory() // 2
    worker_bytes = PROCESS_BYTES + _MATRICES_AT_WORK * largest_bytes + at_work
    fitting = max((count for count in range(1, workers + 1) if _needed(count, worker_bytes) <= budget), default=0)
    if not fitting:
        if memory is not None:
            raise AtlasError(
                f"`memory` {_in_mb(memory)} is too little for this base: "
                f"one worker needs about {_in_mb(worker_bytes)}.",
                "Allow more, or leave `memory` out.",
            )
        fitting = 1
    free_bytes = max(0, budget - _needed(fitting, worker_bytes))
    ahead = min(AHEAD_BYTES, free_bytes // fitting)
    resident = base_bytes <= min(_RESIDENT_BYTES, free_bytes // fitting - ahead)
    free_bytes -= fitting * (ahead + resident * base_bytes)
    return Resources(
        workers=fitting,
        resident=resident,
        ahead_bytes=ahead,
        database_bytes=free_bytes if memory is not None else None,
    )


def _needed(workers: int, worker_bytes: int) -> int:
    """A single worker is this process; several are new processes in addition to it."""
    return workers * worker_bytes + (PROCESS_BYTES if workers > 1 else 0)


def _in_mb(size: int) -> str:
    """In MB, so that two close sizes look different; small sizes in a smaller unit."""
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else size_in_words(size)
