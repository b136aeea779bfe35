"""Large inputs: made once, kept in the bench's working folder, never found half made and never those of older code."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.bench.measure import say


def made_once(folder: Path, make: Callable[[Path], None], code: Sequence[Path]) -> Path:
    """A folder called as ``folder`` and the state of ``code``, filled by ``make`` if it is not there yet.

    ``code``: the files, and folders of files, that decide what ``make`` makes. It takes its name only when all of it
    is there; then what other states of the code made under that name is removed.
    """
    stem = folder.name
    folder = folder.with_name(f"{stem}-{state_of(code)}")
    if not folder.is_dir():
        say(f"making {folder.name} in {folder.parent} (once)")
        unfinished = folder.with_name(f"unfinished-{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        unfinished.rename(folder)
        for other in folder.parent.glob(f"{stem}-{'[0-9a-f]' * _DIGITS}"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def state_of(code: Sequence[Path]) -> str:
    """A few hexadecimal digits of what the files say; of a folder, those of code and its tables below it."""
    digest = hashlib.sha256()
    for given in code:
        below = sorted(path for path in given.rglob("*") if path.suffix in _CODE) if given.is_dir() else [given]
        for path in below:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


_DIGITS = 10
_CODE = (".py", ".sql", ".toml")


def warm(path: Path) -> None:
    """Read a file once, so that it lies in memory."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
