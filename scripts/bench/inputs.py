"""Large inputs: made once, kept in the bench's working folder, and never found half made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from scripts.bench.measure import say


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``make`` if it is not there yet; it takes its name only when all of it is there."""
    if not folder.is_dir():
        say(f"making {folder.name} in {folder.parent} (once)")
        unfinished = folder.with_name(f"unfinished-{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder


def warm(path: Path) -> None:
    """Read a file once, so that it lies in memory."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
