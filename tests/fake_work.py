"""Work that needs no model: it ends its process, or lasts, as the unit's name says.

As a command it runs a pool over units of these names, for a test that stops it: FOLDER HOW NAME…
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.builds import executor
from indexer.builds.report import Result
from indexer.errors import ModelError
from indexer.records.identity import Spec, Unit
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef

LONG = 3600.0  # seconds; no test waits that long


def unit(name: str) -> Unit:
    return Unit(ModelRef(f"org/{name}"), "c", "org/base", "b", "finetune", Spec())


@dataclass(frozen=True)
class FakeWorker:
    """Deadly units kill their process, unlucky ones the first time, slow ones last.

    It is not a RecordWorker, so that a process of the pool need not load torch to know it.
    """

    atlas: Path

    def __call__(self, unit: Unit) -> Result[Unit]:
        name = unit.model.id.removeprefix("org/")
        met = self.atlas / f"{name}.met"
        if name.startswith("deadly") or (name.startswith("unlucky") and not met.exists()):
            met.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        met.touch()
        path = AtlasFolder(self.atlas).record(unit.identity.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if name.startswith("slow"):
            time.sleep(LONG)
        return Result(unit, None)

    def give_up(self, unit: Unit, error: ModelError) -> Result[Unit]:
        RecordStore(AtlasFolder(self.atlas)).write_failure(unit.identity, error)
        return Result(unit, error)


def die(*_: object) -> None:
    """End this process, as one whose imports fail."""
    os._exit(3)


def fake_worker(folder: Path) -> FakeWorker:
    """As another process knows the class: not as that of ``__main__``."""
    from tests import fake_work

    return fake_work.FakeWorker(folder)


def main() -> None:
    folder, how, *names = sys.argv[1:]
    units, worker = [unit(name) for name in names], fake_worker(Path(folder))
    try:
        together = executor.in_processes(units, worker, 2)
        for _ in together if how == "together" else executor.one_by_one(units, worker):
            pass
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
