"""A loopback Hub for the bench, and one model read from it by a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.measure import NotMeasuredError
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import PROJECT


@contextmanager
def served(store: Path) -> Iterator[LoopbackHub]:
    """A Hub that serves ``store``; processes started meanwhile take it for the Hub."""
    before = os.environ.get("HF_ENDPOINT")
    with LoopbackHub(store) as hub:
        hub.prepare()
        os.environ["HF_ENDPOINT"] = hub.endpoint
        try:
            yield hub
        finally:
            if before is None:
                del os.environ["HF_ENDPOINT"]
            else:
                os.environ["HF_ENDPOINT"] = before


@dataclass(frozen=True)
class Usage:
    """What reading one model took, in bytes.

    ``rise``: of the peak resident size over idle. ``base``: the base's block matrices. ``kept``: the singular
    triplets that are kept. Raises NotMeasuredError where one of them is nothing: no model takes that.
    """

    rise: int
    base: int
    kept: int

    def __post_init__(self) -> None:
        nothing = [name for name, value in vars(self).items() if value <= 0]
        if nothing:
            raise NotMeasuredError(f"a model cannot be read in {getattr(self, nothing[0])} bytes ({nothing[0]})")


def read_model(model: str, base_file: Path, *, resident: bool, relation: str = "finetune") -> Usage:
    """Let ``scripts.bench.one_model`` vectorise ``model``. Raises NotMeasuredError where it cannot."""
    held = "resident" if resident else "on disk"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench.one_model", model, str(base_file), held, relation],
        cwd=PROJECT,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotMeasuredError(f"{model} was not read: {done.stderr.strip().rpartition(chr(10))[2]}")
    return Usage(**json.loads(done.stdout))
