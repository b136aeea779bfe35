"""Checksums of files, and a record of the verified ones by size, modification time and inode.

A large file is therefore hashed once and not by every command that opens it. The memory lies in the user's cache,
outside every atlas, and is used only if no other user can have written it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from indexer.regular_files import open_regular
from indexer.storage.atomic_files import replacing


def user_cache() -> Path:
    """The user's cache folder, which need not exist. Raises RuntimeError if the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "vectors-in-the-wild"


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(status: os.stat_result, sha256: str) -> list[int | str]:
    """What a verified file is remembered by; it changes whenever the file is changed, except by a failing disk."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, sha256]


def is_checked(path: Path, stamp: list[int | str]) -> bool:
    """Whether the file was verified when it had this stamp."""
    return _remembered().get(str(path)) == stamp


def note_checked(path: Path, stamp: list[int | str]) -> None:
    """Remember that the file was verified. If that cannot be written, the next command hashes the file again."""
    _remember(_remembered() | {str(path): stamp})


def forget(path: Path) -> None:
    """Forget that a file was verified."""
    remembered = _remembered()
    if remembered.pop(str(path), None) is not None:
        _remember(remembered)


def _memory() -> Path:
    return user_cache() / "checked.json"


def _remembered() -> dict[str, Any]:
    try:
        with open_regular(_memory()) as file:
            status = os.fstat(file.fileno())
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH
            found = json.loads(file.read()) if is_ours else {}
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RuntimeError):
        return {}


def _remember(checked: dict[str, Any]) -> None:
    try:
        memory = _memory()
        kept = {path: stamp for path, stamp in checked.items() if Path(path).exists()}
        with replacing(memory, sync=False) as file:
            file.write(json.dumps(kept).encode())
    except (OSError, RuntimeError):
        return
