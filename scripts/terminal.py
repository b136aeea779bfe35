"""Runs the project's own commands as processes and shows them as a terminal would."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from scripts.child import PROJECT
from scripts.loopback_hub import LoopbackHub, StoreError

MODULES = {"index": "indexer", "query": "query"}


def hub_environment(endpoint: str, caches: Path) -> dict[str, str]:
    """The variables with which a process uses the Hub at ``endpoint`` and keeps its caches in ``caches``."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(caches),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",  # this process may be offline, to train
    }


def exit_status(what: str, work: Callable[[], int | None]) -> int:
    """The exit status of ``work`` (None is 0); an expected error is one line on stderr.

    ``what``: the subject of "… stopped".
    """
    try:
        return work() or 0
    except CommandFailed as failure:
        print(f"{what} stopped: {failure}. Run the same command again to continue.", file=sys.stderr)
        return 1
    except (AtlasError, StoreError, RuntimeError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the same command again to continue.", file=sys.stderr)
        return 130


class CommandFailed(Exception):
    """A command ended with another exit code than 0; ``said`` is the last line it wrote to stderr, where known."""

    def __init__(self, command: str, code: int, said: str = "") -> None:
        super().__init__(f"{command!r} ended with exit code {code}" + (f": {said}" if said else ""))
        self.said = said


class Terminal:
    """Runs commands in ``folder``, with ``environment`` added to this process's own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(PROJECT)} | environment
        self.environment.pop("VECTORS_ATLAS", None)

    @classmethod
    def of_hub(cls, folder: Path, endpoint: str) -> Terminal:
        """A terminal whose commands use the Hub at ``endpoint`` and caches below ``folder``."""
        return cls(folder, **hub_environment(endpoint, folder / "huggingface"))

    def __call__(self, command: str, *, show: bool = True, progress: bool = True) -> str:
        """Run ``command`` and return what it printed.

        Args:
            command: as typed, beginning with ``index`` or ``query``.
            show: print the command and what it printed.
            progress: leave stderr to it; otherwise only the last line is kept, for the error.

        Raises:
            CommandFailed: it ended with another exit code than 0.
        """
        if show:
            print(f"\n$ {command}", flush=True)
        printed, said, code = self._run(command, stderr=None if progress else subprocess.PIPE)
        if show:
            print(printed, end="", flush=True)
        if code:
            raise CommandFailed(command, code, said.strip().rpartition("\n")[2])
        return printed

    def ask(self, command: str) -> Any:
        """Run ``command`` and return its JSON; show the command and, when it ends, its stderr.

        Raises:
            CommandFailed: it ended with another exit code than 0; the error holds its last line.
        """
        print(f"\n$ {command}", flush=True)
        printed, said, code = self._run(command, stderr=subprocess.PIPE)
        print(said, end="", file=sys.stderr, flush=True)
        if code:
            raise CommandFailed(command, code, said.strip().rpartition("\n")[2])
        return json.loads(printed)

    def _run(self, command: str, stderr: int | None) -> tuple[str, str, int]:
        """Stdout, stderr and exit code of a command; on Ctrl-C it gets the time to save its work."""
        program, *rest = shlex.split(command)
        process = subprocess.Popen(
            [sys.executable, "-m", MODULES[program], *rest],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            printed, said = process.communicate()
        except KeyboardInterrupt:
            process.communicate()
            raise
        return printed, said or "", process.returncode


def indexed(models: Path, folder: Path, base: str, fingerprint: str, options: str = "") -> Path:
    """The atlas in ``folder`` of the repositories in ``models``, built by `index build` unless it is there.

    A file that is called ``fingerprint`` says that it is. Raises CommandFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / fingerprint).exists():
        with LoopbackHub(models) as hub:
            Terminal.of_hub(folder, hub.endpoint)(f"index build --base {base} {options}".strip())
        (folder / fingerprint).touch()
    return folder / "atlas"
