"""Files of the user's caches, which are read only if no other user can have written them.

A cache may lie where others can write: in a shared home, or in a folder that HF_HOME or XDG_CACHE_HOME names. A file
that others put there could make an answer wrong, or make a check of another file be skipped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from indexer.regular_files import descriptor_of
from indexer.storage.atomic_files import replacing

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_reported_folders: set[Path] = set()


def read_own(path: Path, most: int, say: Callable[[str], None] | None = None) -> bytes:
    """All bytes of a regular file of at most ``most`` bytes that belongs, with its folder, to this user or to root.

    Raises OSError if there is none, or if others own it or its folder, or may write to them; ``say`` is then called
    with a sentence, once for each folder.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Relative to the open folder, because its path may name another folder meanwhile.
        descriptor = descriptor_of(Path(path.name), folder=folder)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not (_is_own(os.fstat(folder)) and _is_own(status)):
                if say is not None and path.parent not in _reported_folders:
                    _reported_folders.add(path.parent)
                    say(
                        f"{path} is not used: other users own it or its folder, or may write there; "
                        "it is computed again each time"
                    )
                raise OSError(errno.EPERM, "other users may have written it", str(path))
            if status.st_size > most:
                raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
            return file.read(most)
    finally:
        os.close(folder)


def write_own(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Atomically write a file for ``read_own``: others can write neither to it nor to its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.parent.stat()
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS_MAY_WRITE:
        path.parent.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_MAY_WRITE)
    with replacing(path, sync=sync) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def make_own(*paths: Path) -> None:
    """Remove the right of others to write to files and folders of this user; other users' stay. Raises OSError."""
    for path in paths:
        status = path.lstat()
        is_ours = status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)
        if is_ours and status.st_mode & _OTHERS_MAY_WRITE:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_MAY_WRITE)


def not_own(folder: Path) -> Path | None:
    """The first path, of a folder and everything in it, that others own or may write to, or that is no file or folder.

    None if there is no such path. Raises OSError if a path cannot be examined.
    """
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        status = path.lstat()
        is_folder = stat.S_ISDIR(status.st_mode)
        if not (is_folder or stat.S_ISREG(status.st_mode)) or not _is_own(status):
            return path
        if is_folder:
            waiting += sorted(path.iterdir(), reverse=True)
    return None


def is_own(path: Path) -> bool:
    """Whether a file or folder, not a link to one, belongs to this user or to root, and nobody else may write to it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(status.st_mode) and _is_own(status)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & _OTHERS_MAY_WRITE
