"""What a worker does with one unit: the work itself, and the file that keeps its result."""

from __future__ import annotations

import errno
import re
import time
import traceback
from functools import lru_cache
from pathlib import Path

import torch

from indexer.atlas import AtlasFolder
from indexer.builds.result import Place, Result
from indexer.deltas.base import BaseMatrices
from indexer.deltas.vectorise import vectorise
from indexer.errors import AtlasError, Failed, ModelError
from indexer.network.hub import conversion_revision
from indexer.network.rate_limit import limit_bandwidth
from indexer.network.session import as_model_error, install_session
from indexer.records.parent import Parent
from indexer.records.record import Record
from indexer.records.store import RecordStore
from indexer.records.unit import Traffic, Unit
from indexer.untrusted import tidy

# Trouble of the place that is written to, not of the model that is read.
_OWN_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE}
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory|bad_?alloc", re.IGNORECASE)


def work(unit: Unit, place: Place) -> Result:
    """Vectorise one model and write its record, or the outcome in its place. Never raises for a bad model."""
    # One thread per unit: two thread counts give different last bits, and units are what runs in parallel.
    torch.set_num_threads(1)
    install_session()
    limit_bandwidth(str(place.atlas), place.resources.bandwidth)
    store = RecordStore(AtlasFolder(place.atlas))
    started, traffic, problem = time.perf_counter(), Traffic(), None
    try:
        record = vectorise(
            unit,
            _base(place.base_file, place.resources.resident),
            lambda: conversion_revision(unit.model.id),
            ahead_bytes=place.resources.ahead_bytes,
            traffic=traffic,
            parent_record=lambda parent: _record_of(parent, unit, store),
        )
        store.write(record)
    except AtlasError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OWN_TROUBLE:
            raise
        problem = _without_path(what_it_means(error), unit.model.folder)
        store.write_outcome(unit.identity, problem)
    return Result(unit, problem, traffic.read, traffic.total, time.perf_counter() - started)


def _without_path(problem: ModelError, folder: Path | None) -> ModelError:
    """The atlas keeps what went wrong, and not where a folder lies."""
    if folder is None:
        return problem
    return type(problem)(problem.reason, problem.detail.replace(str(folder), folder.name))


def _record_of(parent: Parent, unit: Unit, store: RecordStore) -> Record | None:
    """What the atlas keeps of a model that an adapter stands on, at that commit; None where it keeps nothing."""
    wanted = (parent.model, parent.commit, unit.base, unit.base_commit)
    for kept in store.kept():
        identity = kept.identity
        if (identity.model, identity.commit, identity.base, identity.base_commit) == wanted:
            return store.read(kept.digest)
    return None


def what_it_means(error: Exception) -> ModelError:
    """What ``error`` means for the model that was read when it was raised. What nobody foresaw is worth another try."""
    if _is_lack_of_memory(error):
        return Failed("out_of_memory", "reading it needed more memory than there is")
    try:
        return as_model_error(error)
    except Exception:  # that one again: neither the network nor the Hub
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
        text = tidy(str(error), 200)
        return Failed("worker_error", f"the worker could not do it ({type(error).__name__}{at}: {text})")


def _is_lack_of_memory(error: Exception) -> bool:
    """By type where there is one; PyTorch says it of a processor's memory in words alone."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )


def abandoned(unit: Unit, place: Place, error: ModelError) -> Result:
    """What stands in place of a record where no worker lived to say what went wrong."""
    RecordStore(AtlasFolder(place.atlas)).write_outcome(unit.identity, error)
    return Result(unit, error)


@lru_cache(maxsize=2)
def _base(path: Path, resident: bool) -> BaseMatrices:
    matrices = BaseMatrices(path, resident)
    matrices.check()
    return matrices
