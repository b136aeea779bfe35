"""Opens regular files and nothing else: the files of an atlas may come from an untrusted source.

Opening a FIFO would hang, reading a device would not end, and appending through a link would change another file. The
folders themselves may be links: people keep atlases on larger disks.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_FILES = 10_000  # of a checkpoint's folder
MOST_DEPTH = 2  # of folders in it

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def descriptor_of(path: Path, flags: int = os.O_RDONLY, *, through_links: bool = False) -> int:
    """A descriptor of a regular file. Raises OSError, which names the kind, for anything else.

    It never blocks. ``through_links``: the name itself may be a link.
    """
    guard = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags | guard, 0o644)
    except OSError as error:
        kind = _kind(path, through_links)
        if kind is None:
            raise
        raise _refused(path, kind) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise _refused(path, _KINDS.get(stat.S_IFMT(status.st_mode), "not a file"))


def open_regular(path: Path, *, through_links: bool = False) -> BufferedReader:
    """A regular file, opened for reading. Raises OSError as ``descriptor_of`` does."""
    return os.fdopen(descriptor_of(path, through_links=through_links), "rb")


def read_regular(path: Path, *, most: int, through_links: bool = False) -> bytes:
    """All bytes of a regular file. Raises OSError as ``descriptor_of`` does, and where there are more than ``most``.

    The limit matters because a sparse file takes no room on disk, but all its size in memory.
    """
    with open_regular(path, through_links=through_links) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read(most)


def regular_status(path: Path) -> os.stat_result:
    """The status of a regular file, without opening it. Raises OSError as ``descriptor_of`` does."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, _KINDS.get(stat.S_IFMT(status.st_mode), "not a file"))
    return status


def files_below(folder: Path) -> list[str]:
    """The files of a checkpoint's folder and of folders up to two levels down, as sorted paths with ``/``.

    Hidden files and folders and folders that may not be read are left out. What lies deeper is not a part of a
    checkpoint: to name a home folder must not read a whole disk. Raises OSError if ``folder`` itself cannot
    be listed, or there are more than 10,000 files.
    """
    found: list[str] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = list(os.scandir(folder / below))
        except OSError:
            if not below:
                raise
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_file():
                found.append(below + entry.name)
            elif below.count("/") < MOST_DEPTH and entry.is_dir():
                waiting.append(f"{below}{entry.name}/")
        if len(found) > MOST_FILES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_FILES:,} files, so it is no checkpoint", str(folder))
    return sorted(found)


def _kind(path: Path, through_links: bool) -> str | None:
    """What kind of thing is there instead of a regular file; None if that is not the problem."""
    try:
        status = path.stat() if through_links else os.lstat(path)
    except OSError:
        return None
    return None if stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")


def _refused(path: Path, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
