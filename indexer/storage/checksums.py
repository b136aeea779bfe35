"""Checksums of files, and checks that are run once and then remembered.

A large file is hashed once and not by every command that opens it. The results are remembered in the user's cache,
outside every atlas, and are used only if no other user can have written them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from indexer.regular_files import open_regular
from indexer.storage.own_files import read_own, write_own

_Memory = dict[str, list[int | str]]
_MOST_MEMORY = 64 << 20


def user_cache() -> Path:
    """The user's cache folder, which need not exist. Raises RuntimeError if the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "vectors-in-the-wild"


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(status: os.stat_result, *expected: int | str) -> list[int | str]:
    """Size, time and inode of a file, and the ``expected`` values. Only a failing disk changes a file and not these."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, *expected]


def check_once(path: Path, stamp: list[int | str], check: Callable[[], bool | None], *, recheck: bool = False) -> None:
    """Run ``check`` unless it has succeeded for this file with the same ``stamp``; ``recheck``: run it in any case.

    ``check`` raises an exception if the file is wrong. If it returns False, its success is not remembered. If the
    memory cannot be written, the next command checks the file again.
    """
    key = str(path)
    if not recheck and _read_memory().get(key) == stamp:
        return
    remembered = None
    try:
        if check() is not False:
            remembered = stamp
    finally:
        memory = _read_memory()  # again, because other processes write it
        if memory.get(key) != remembered:
            memory.pop(key, None)
            _write_memory(memory if remembered is None else memory | {key: remembered})


def _memory_file() -> Path:
    return user_cache() / "checked.json"


def _read_memory() -> _Memory:
    try:
        memory = json.loads(read_own(_memory_file(), _MOST_MEMORY))
        return memory if isinstance(memory, dict) else {}
    except (OSError, ValueError, RuntimeError):  # also a RecursionError
        return {}


def _write_memory(memory: _Memory) -> None:
    try:
        existing = {path: stamp for path, stamp in memory.items() if Path(path).exists()}
        write_own(_memory_file(), json.dumps(existing).encode(), sync=False)
    except (OSError, RuntimeError):
        return
