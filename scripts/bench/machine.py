"""Where and when a bench ran: what a figure in seconds means nothing without."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from indexer.machine import processors

PACKAGES = ("torch", "transformers", "numpy", "faiss-cpu", "duckdb", "scikit-learn", "weightwatcher")


@dataclass(frozen=True)
class Machine:
    """The machine at the start of a run.

    ``memory`` is in bytes; ``load`` the mean number of processes that wanted to run in the last 1, 5 and 15
    minutes; ``versions`` None for a package that is not installed.
    """

    started: str
    processor: str
    cores: int
    memory: int
    load: tuple[float, float, float]
    system: str
    python: str
    versions: dict[str, str | None]

    def text(self) -> str:
        """Three lines for people."""
        load = ", ".join(f"{value:.2f}" for value in self.load)
        packages = ", ".join(f"{name} {found or '(not installed)'}" for name, found in self.versions.items())
        return (
            f"{self.started}, {self.processor}, {self.cores} cores, {self.memory / 2**30:.0f} GiB, {self.system}\n"
            f"load average at the start: {load}\nPython {self.python}, {packages}"
        )

    def as_json(self) -> dict[str, object]:
        """The same for programs."""
        return asdict(self)


def this_machine() -> Machine:
    """What is known of the machine now."""
    return Machine(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=_processor(),
        cores=processors(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        load=os.getloadavg(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
