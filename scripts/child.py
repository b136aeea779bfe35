"""Runs Python in a process of its own and measures what it takes: seconds and memory.

``python -m scripts.child FILE MODULE [ARGUMENT…]`` runs a module as a command and notes its peak memory in FILE;
``python -m scripts.child FILE MODULE:FUNCTION JSON`` calls a function with the arguments in JSON, and notes what it
returned, too. The peak is VmHWM, the largest resident size, which includes the pages of mapped files that were read.
(``ru_maxrss`` would start with what the parent process used.)
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parents[1]


class Ran(NamedTuple):
    """A whole process: wall seconds from start to end, peak resident bytes, and what it printed as JSON or returned."""

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
    if subprocess.run([sys.executable, "-m", *words], env=variables, check=False).returncode:
        raise RuntimeError(f"{' '.join(words)} failed; its own message is above")


def run_module(module: str, *arguments: str) -> Ran:
    """Run ``python -m module`` and note its memory, too. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"
        seconds, output = run_python("-m", "scripts.child", str(note), module, *arguments)
        peak = json.loads(note.read_text())["peak_bytes"]
    return Ran(seconds, peak, json.loads(output) if output.strip() else None)


def call(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None) -> Ran:
    """Call a function of a module in a process with these variables, too; what it prints is shown.

    Arguments and result must be plain JSON; paths arrive as text. Raises RuntimeError if it fails.
    """
    module = function.__module__
    if module == "__main__":
        module = sys.modules[module].__spec__.name  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"
        started = time.perf_counter()
        run_shown(
            "scripts.child",
            str(note),
            f"{module}:{function.__name__}",
            json.dumps(arguments, default=str),
            **environment or {},
        )
        seconds = time.perf_counter() - started
        found = json.loads(note.read_text())
    return Ran(seconds, found["peak_bytes"], found["returned"])


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    note, module, *arguments = sys.argv[1:]
    found: dict[str, Any] = {}
    name, _, function = module.partition(":")
    try:
        if function:
            found["returned"] = getattr(import_module(name), function)(*json.loads(arguments[0]))
        else:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # a command may end by SystemExit
        Path(note).write_text(json.dumps(found | {"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
