"""The models that slow tests use, really trained, once, and kept in .demo/.

Run as a module it makes them all, so that they are there when the first test asks: other tests run meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = ROOT / ".demo"


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """The folder of that name, for one process at a time: one trains, the others wait."""
    MADE.mkdir(exist_ok=True)
    with (MADE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield MADE / name


def small_family() -> Path:
    """A base and its fine-tunes, adapters and oddities."""
    from scripts.family import make_family

    with alone("family-small") as folder:
        return make_family(folder, "small")


def small_forest() -> Path:
    """Trees of fine-tunes of fine-tunes, merges and casts."""
    from studies.lineage.forest import TRUTH, fingerprint, read_truth

    with alone("forest-small") as folder:
        if (folder / TRUTH).exists() and read_truth(folder).get("fingerprint") == fingerprint("bert", "small", 1):
            return folder
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                       "OMP_WAIT_POLICY": "PASSIVE"}  # fmt: skip
        words = [sys.executable, "-m", "studies.lineage.forest", str(folder), "bert", "small", "1"]
        subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
        return folder


if __name__ == "__main__":
    small_family()
    small_forest()
