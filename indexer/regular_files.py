"""Regular files, and nothing else: what lies in an atlas's folder may have been put there by a stranger.

A FIFO would hang whoever opens it, a device never end, and what is appended through a link lands in somebody's file.
The folders themselves may be reached by links: people keep atlases on larger disks.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def descriptor_of(path: Path, flags: int = os.O_RDONLY, mode: int = 0o644, *, through_links: bool = False) -> int:
    """A descriptor of a regular file. Raises OSError, which says what it is, where it is something else.

    It never waits for anybody; ``through_links``: the name itself may be a link, too.
    """
    guard = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags | guard, mode)
    except OSError as error:
        kind = _kind(path, through_links)
        if kind is None:
            raise
        raise _refused(path, kind) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    raise _refused(path, _KINDS.get(stat.S_IFMT(status.st_mode), "no file"))


def open_regular(path: Path, *, through_links: bool = False) -> BufferedReader:
    """A regular file, to be read. Raises OSError as ``descriptor_of`` does."""
    return os.fdopen(descriptor_of(path, through_links=through_links), "rb")


def read_regular(path: Path, *, most: int, through_links: bool = False) -> bytes:
    """All bytes of a regular file. Raises OSError as ``descriptor_of`` does, and where there are more than ``most``.

    A file that is all holes takes no room in a folder, and in memory all that it says.
    """
    with open_regular(path, through_links=through_links) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
        return file.read(most)


def regular_status(path: Path) -> os.stat_result:
    """What the system knows of a regular file, without opening it. Raises OSError as ``descriptor_of`` does."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, _KINDS.get(stat.S_IFMT(status.st_mode), "no file"))
    return status


def _kind(path: Path, through_links: bool) -> str | None:
    """What stands in the way; None where that is not the matter."""
    try:
        status = path.stat() if through_links else os.lstat(path)
    except OSError:
        return None
    return None if stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "no file")


def _refused(path: Path, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, and a file is needed", str(path))
