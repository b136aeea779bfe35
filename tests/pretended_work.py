"""Work that takes no model: it ends its process, or lasts, as the unit's name says.

A Dask worker that loads this does it as well. As a command it runs a pool over units of these names, for a test that stops it: FOLDER HOW NAME…
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.builds import executor
from indexer.builds.result import Place, Result
from indexer.names import ModelRef
from indexer.records.identity import Spec
from indexer.records.unit import Unit

LONG = 3600.0  # seconds; no test waits that long


def unit(name: str) -> Unit:
    """Of a model that nobody reads."""
    return Unit(ModelRef(f"org/{name}"), "c", "org/base", "b", "finetune", Spec())


def pretend(unit: Unit, place: Place) -> Result:
    """In place of the work. Deadly units kill their process, unlucky ones the first time, slow ones last."""
    name = unit.model.id.removeprefix("org/")
    met = place.atlas / f"{name}.met"
    if name.startswith("deadly") or (name.startswith("unlucky") and not met.exists()):
        met.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    met.touch()
    path = AtlasFolder(place.atlas).record(unit.identity.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()  # nobody reads it
    if name.startswith("slow"):
        time.sleep(LONG)
    return Result(unit, None)


def dask_setup(_worker: object) -> None:
    """Called by a worker of which this is a preload."""
    from indexer.builds import dask_executor
    from tests import pretended_work

    dask_executor.work = pretended_work.pretend


def main() -> None:
    folder, how, *names = sys.argv[1:]
    executor.work = pretend
    units, place = [unit(name) for name in names], Place(Path(folder), Path(folder) / "base")
    try:
        together = executor.ProcessExecutor(2).run(units, place)
        alone = executor.one_by_one(units, partial(pretend, place=place), partial(executor._given_up, place))
        for _ in together if how == "together" else alone:
            pass
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
