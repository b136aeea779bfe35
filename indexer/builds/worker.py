"""Vectorises one model at a time, in whatever process it is called, and writes the record or the failure."""

from __future__ import annotations

import errno
import re
import time
import traceback
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from indexer.atlas import AtlasFolder
from indexer.builds.report import Result
from indexer.builds.resources import Resources
from indexer.deltas.base import BaseMatrices
from indexer.deltas.starts.search import Search, in_usual_seeds
from indexer.deltas.vectorise import vectorise, with_start
from indexer.errors import AtlasError, Failed, ModelError
from indexer.network.hub_errors import as_model_error
from indexer.network.rate_limit import limit_bandwidth, share_limits
from indexer.network.session import install_session
from indexer.records.identity import ModelVersion, Traffic, Unit
from indexer.records.record import Record
from indexer.records.store import RecordStore
from indexer.untrusted import printable, tidy

# Errors of the machine that is written to, not of the model that is read.
_OWN_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE}
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory|bad_?alloc", re.IGNORECASE)


@dataclass(frozen=True)
class RecordWorker:
    """Makes the record of a model in the folder ``atlas``; ``base_file`` holds the base's matrices."""

    atlas: Path
    base_file: Path
    resources: Resources = field(default_factory=Resources)

    def __call__(self, unit: Unit) -> Result[Unit]:
        """Vectorise one model and write its record, or the failure in its place. Never raises for a bad model."""
        # One thread per unit: two thread counts give different last bits, and units are what runs in parallel.
        torch.set_num_threads(1)
        install_session()
        share_limits(self.atlas)
        limit_bandwidth(str(self.atlas), self.resources.bandwidth)
        store = RecordStore(AtlasFolder(self.atlas))
        started, traffic, record, problem = time.perf_counter(), Traffic(), None, None
        try:
            inode = self.base_file.stat().st_ino if self.base_file.is_file() else 0
            record = self.record_of(unit, _base_matrices(self.base_file, self.resources.resident, inode), traffic)
            if record is not None:
                store.write(record)
        except AtlasError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OWN_TROUBLE:
                raise
            problem = classify_error(error)
            problem = type(problem)(problem.reason, unit.model.source.without_private(unit.model, problem.detail))
            self.note_failure(unit, problem)
        seconds = time.perf_counter() - started
        return Result(unit, problem, traffic.read, traffic.total, seconds, is_unchanged=problem is None and not record)

    def record_of(self, unit: Unit, base: BaseMatrices, traffic: Traffic) -> Record | None:
        """The record of a model; None if what is there needs no other. Raises Skipped and Failed as ``vectorise``."""
        store = RecordStore(AtlasFolder(self.atlas))

        def record_of_parent(parent: ModelVersion) -> Record | None:
            """The stored record of an adapter's base at that commit. Raises Failed if it is damaged."""
            versions = (parent.model.id, parent.commit, unit.base, unit.base_commit)
            damaged = None
            for header in store.headers():
                identity = header.identity
                if (identity.model, identity.commit, identity.base, identity.base_commit) == versions:
                    try:
                        return store.read(header.digest)
                    except AtlasError as error:
                        damaged = error
            if damaged is not None:
                below = printable(parent.model.id, 100)
                raise Failed("parent_damaged", f"the record of {below}, the model below it, cannot be used: {damaged}")
            return None

        return vectorise(
            unit,
            base,
            lambda: unit.model.source.conversion(unit.model),
            ahead_bytes=self.resources.ahead_bytes,
            connections=self.resources.connections,
            traffic=traffic,
            parent_record=record_of_parent,
        )

    def note_failure(self, unit: Unit, error: ModelError) -> None:
        """Write why there is no record."""
        RecordStore(AtlasFolder(self.atlas)).write_failure(unit.identity, error)

    def give_up(self, unit: Unit, error: ModelError) -> Result[Unit]:
        """Write the failure of a unit whose worker could not write it."""
        self.note_failure(unit, error)
        return Result(unit, error)


@dataclass(frozen=True)
class StartWorker(RecordWorker):
    """Looks for the start of an adapter that has a record, and writes that again with the start."""

    search: Search = in_usual_seeds

    def record_of(self, unit: Unit, base: BaseMatrices, traffic: Traffic) -> Record | None:
        """The record with the start, None if that is not found."""
        record = RecordStore(AtlasFolder(self.atlas)).read(unit.identity.digest)
        return with_start(record, unit, base, self.search, traffic=traffic)

    def note_failure(self, unit: Unit, error: ModelError) -> None:
        """Nothing: the record that is there stays as it is."""


@lru_cache(maxsize=2)
def _base_matrices(path: Path, resident: bool, inode: int) -> BaseMatrices:
    """The base's matrices; ``inode`` changes when all of a base replaces a sample of it."""
    matrices = BaseMatrices(path, resident)
    matrices.check()
    return matrices


def classify_error(error: Exception) -> ModelError:
    """What ``error`` means for the model that was being read. An unknown error counts as worth another try."""
    # By type if possible; PyTorch reports a lack of CPU memory only in words.
    if isinstance(error, OSError):
        is_lack_of_memory = error.errno == errno.ENOMEM
    else:
        says_so = isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
        is_lack_of_memory = says_so or isinstance(error, MemoryError | torch.OutOfMemoryError)
    if is_lack_of_memory:
        return Failed("out_of_memory", "reading it needed more memory than was available")
    try:
        return as_model_error(error)
    except Exception:  # raised again: it came neither from the network nor from the Hub
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
        text = tidy(str(error), 200)
        return Failed("worker_error", f"the worker could not do it ({type(error).__name__}{at}: {text})")
