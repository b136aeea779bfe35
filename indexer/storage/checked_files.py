"""Checksums of large files, and which were found to fit: remembered by size, modification time and inode.

So a large file is hashed once and not by every command that opens it. What is remembered lies in the user's cache,
outside every atlas, and is believed where nobody else can have written it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from indexer.regular_files import open_regular


def user_cache() -> Path:
    """The user's own folder for it; it need not exist. Raises RuntimeError where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "vectors-in-the-wild"


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(status: os.stat_result, sha256: str) -> list[int | str]:
    """What a check is remembered by: whoever changes the file changes this, but for a disk that fails."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, sha256]


def is_checked(path: Path, stamp: list[int | str]) -> bool:
    """Whether the file was found to fit when it was as ``stamp`` says."""
    return _remembered().get(str(path)) == stamp


def note_checked(path: Path, stamp: list[int | str]) -> None:
    """Remember that it fits. Best effort: without a place to write, the next command hashes again."""
    _remember(_remembered() | {str(path): stamp})


def forget(path: Path) -> None:
    """It does not fit: whatever is remembered of it is wrong."""
    remembered = _remembered()
    if remembered.pop(str(path), None) is not None:
        _remember(remembered)


def _memory() -> Path:
    return user_cache() / "checked.json"


def _remembered() -> dict[str, Any]:
    try:
        with open_regular(_memory()) as file:
            found = json.loads(file.read()) if _is_ours(os.fstat(file.fileno())) else {}
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RuntimeError):
        return {}


def _is_ours(status: os.stat_result) -> bool:
    """Written by this user, and writable by no other."""
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH


def _remember(checked: dict[str, Any]) -> None:
    try:
        memory = _memory()
        memory.parent.mkdir(parents=True, exist_ok=True)
        kept = {path: stamp for path, stamp in checked.items() if Path(path).exists()}
        temporary = memory.with_name(f".{memory.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        temporary.replace(memory)
    except (OSError, RuntimeError):
        return
