"""``python -m scripts.scale.child FILE MODULE [ARGUMENT…]``: run a module as a command, and note what memory it took.

The peak is VmHWM, the largest resident size, in which pages of mapped files count as far as they were looked at.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """A whole process: wall seconds from start to end, peak resident bytes, and the JSON that it printed."""

    seconds: float
    peak_bytes: int
    output: Any


def run_module(module: str, *arguments: str, offline: bool = True) -> Ran:
    """Run ``python -m module`` to its end. Raises RuntimeError with what it said where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"
        seconds, output = _run(["-m", _HERE, str(note), module, *arguments], offline)
        peak = json.loads(note.read_text())["peak_bytes"]
    return Ran(seconds, peak, json.loads(output) if output.strip() else None)


def time_module(module: str, *arguments: str) -> float:
    """Seconds of the whole process, with nothing between it and the clock."""
    return _run(["-m", module, *arguments])[0]


_HERE = "scripts.scale.child"


def _run(words: list[str], offline: bool = True) -> tuple[float, str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": str(int(offline))}
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status names no VmHWM")


def main() -> None:
    note, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(note).write_text(json.dumps({"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
