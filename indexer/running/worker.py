"""What a worker does with one unit: the work itself, and the file that keeps its result."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from indexer.atlas import AtlasFolder
from indexer.base import BaseMatrices
from indexer.errors import Failed, ModelError
from indexer.hub import conversion_revision
from indexer.network.bandwidth import limit_bandwidth
from indexer.network.session import as_model_error, install_session
from indexer.records import RecordStore
from indexer.running.resources import Resources
from indexer.unit import Unit, vectorise

# Trouble of the place that is written to, not of the model that is read.
_OWN_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE}


@dataclass(frozen=True)
class Place:
    """Where results go, where the base lies, what may be used: all that a worker needs besides the unit."""

    atlas: Path
    base_file: Path
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Result:
    """What became of one unit; ``error`` is None where a record was written."""

    unit: Unit
    error: ModelError | None
    bytes_read: int = 0
    bytes_total: int = 0
    seconds: float = 0.0


def work(unit: Unit, place: Place) -> Result:
    """Vectorise one model and write its record, or the outcome in its place. Never raises for a bad model."""
    # One thread per unit: two thread counts give different last bits, and units are what runs in parallel.
    torch.set_num_threads(1)
    install_session()
    limit_bandwidth(str(place.atlas), place.resources.bandwidth)
    store = RecordStore(AtlasFolder(place.atlas))
    started = time.perf_counter()
    try:
        record = vectorise(
            unit,
            _base(place.base_file, place.resources.resident),
            lambda: conversion_revision(unit.model.id),
            ahead_bytes=place.resources.ahead_bytes,
        )
        store.write(record)
    except ModelError as error:
        return _outcome(store, unit, error, started)
    except MemoryError:
        return _outcome(store, unit, Failed("out_of_memory", "reading it needed more memory than there is"), started)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OWN_TROUBLE:
            raise
        return _outcome(store, unit, as_model_error(error), started)
    return Result(
        unit,
        None,
        bytes_read=record.bytes_read,
        bytes_total=sum(stored.size for stored in record.files),
        seconds=time.perf_counter() - started,
    )


def abandoned(unit: Unit, place: Place, error: ModelError) -> Result:
    """What stands in place of a record where no worker lived to say what went wrong."""
    return _outcome(RecordStore(AtlasFolder(place.atlas)), unit, error, time.perf_counter())


def _outcome(store: RecordStore, unit: Unit, error: ModelError, started: float) -> Result:
    store.write_outcome(unit.identity, error)
    return Result(unit, error, seconds=time.perf_counter() - started)


@lru_cache(maxsize=2)
def _base(path: Path, resident: bool) -> BaseMatrices:
    return BaseMatrices(path, resident)
