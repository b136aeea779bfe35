"""Runs Python in a process of its own and measures what it takes: seconds and memory.

``python -m scripts.child FILE MODULE [ARGUMENT…]`` runs a module as a command and notes its peak memory in FILE. The
peak is VmHWM, the largest resident size, which includes the pages of mapped files that were read. (``ru_maxrss`` would
start with what the parent process used.)
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]


class Ran(NamedTuple):
    """A whole process: wall seconds from start to end, peak resident bytes, and the JSON that it printed."""

    seconds: float
    peak_bytes: int
    output: Any


def run_python(*words: str) -> tuple[float, str]:
    """Run ``python WORDS``: wall seconds of the whole process, and its stdout. Raises RuntimeError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled, and so are the rivals
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, done.stdout


def run_shown(*words: str, **environment: str) -> None:
    """Run ``python -m WORDS`` with these variables; what it prints is shown. Raises RuntimeError if it fails."""
    variables = {**os.environ, "PYTHONPATH": str(PROJECT), **environment}
    if subprocess.run([sys.executable, "-m", *words], cwd=PROJECT, env=variables, check=False).returncode:
        raise RuntimeError(f"{' '.join(words)} failed; its own message is above")


def run_module(module: str, *arguments: str) -> Ran:
    """Run ``python -m module`` and note its memory, too. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"
        seconds, output = run_python("-m", "scripts.child", str(note), module, *arguments)
        peak = json.loads(note.read_text())["peak_bytes"]
    return Ran(seconds, peak, json.loads(output) if output.strip() else None)


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    note, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(note).write_text(json.dumps({"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
