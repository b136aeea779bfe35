"""Work that needs no model: it ends its process, or lasts, as the unit's name says.

As a command it runs a pool over units of these names, for a test that stops it: FOLDER HOW NAME…
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.builds import executor
from indexer.builds.report import Result
from indexer.builds.worker import RecordWorker
from indexer.names import ModelRef
from indexer.records.identity import Spec, Unit

LONG = 3600.0  # seconds; no test waits that long


def unit(name: str) -> Unit:
    return Unit(ModelRef(f"org/{name}"), "c", "org/base", "b", "finetune", Spec())


class FakeWorker(RecordWorker):
    """Deadly units kill their process, unlucky ones the first time, slow ones last."""

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


def fake_worker(folder: Path) -> FakeWorker:
    """As another process knows the class: not as that of ``__main__``."""
    from tests import fake_work

    return fake_work.FakeWorker(folder, folder / "base")


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
