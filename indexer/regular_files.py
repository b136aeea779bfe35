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
_MOST_LINKS = 40  # on the way to a file, as Linux counts them

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def descriptor_of(
    path: Path,
    flags: int = os.O_RDONLY,
    *,
    through_links: bool = False,
    folder: int | None = None,
    beneath: Path | None = None,
) -> int:
    """A descriptor of a regular file. Raises OSError, which names the kind, for anything else.

    It never blocks. ``through_links``: the name itself may be a link. ``folder``: a descriptor that ``path`` is
    relative to. ``beneath``: a folder that nothing is opened outside of; links are followed inside it.
    """
    if beneath is not None:
        descriptor = _opened_beneath(beneath, path, flags)
        if stat.S_ISREG(kind_of := os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise _refused(path, _KINDS.get(stat.S_IFMT(kind_of), "not a file"))
    guard = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if through_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags | guard, 0o644, dir_fd=folder)
    except OSError as error:
        kind = _kind(path, through_links, folder)
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


def _opened_beneath(root: Path, path: Path, flags: int) -> int:
    """A descriptor of anything in the folder ``root``. Raises OSError if ``path`` or a link on the way leads out of it.

    Each component is opened in the folder before it and never through a link, so that it does not help to put a link
    there meanwhile. Links are read and followed here.
    """
    guard = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
    waiting = list(reversed(_parts_in(root, path)))
    folders = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    try:
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if len(folders) == 1:
                    raise _leads_out(root, path)
                os.close(folders.pop())
                continue
            if stat.S_ISLNK(os.stat(name, dir_fd=folders[-1], follow_symlinks=False).st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = os.readlink(name, dir_fd=folders[-1])
                if target.startswith("/"):
                    while len(folders) > 1:
                        os.close(folders.pop())
                    waiting += reversed(_parts_in(root, Path(target)))
                else:
                    waiting += reversed(target.split("/"))
            elif any(part not in ("", ".") for part in waiting):
                folders.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | guard, dir_fd=folders[-1]))
            else:
                return os.open(name, flags | guard, 0o644, dir_fd=folders[-1])
        return os.dup(folders[-1])
    finally:
        for descriptor in folders:
            os.close(descriptor)


def _parts_in(root: Path, path: Path) -> list[str]:
    """The components of a path after ``root``. Raises OSError if it does not begin with it."""
    if not path.is_relative_to(root):
        raise _leads_out(root, path)
    return list(path.relative_to(root).parts)


def _leads_out(root: Path, path: Path) -> OSError:
    return OSError(errno.EXDEV, f"it leads out of {root}", str(path))


def files_below(folder: Path, beneath: Path | None = None) -> list[str]:
    """The files of a checkpoint's folder and of folders up to two levels down, as sorted paths with ``/``.

    Hidden files and folders and folders that may not be read are left out. What lies deeper is not a part of a
    checkpoint: to name a home folder must not read a whole disk. Raises OSError if ``folder`` itself cannot
    be listed, or there are more than 10,000 files.

    ``beneath``: a folder that nothing is looked at outside of. A link that leads out of it is listed: whoever opens it
    with ``descriptor_of`` is told so.
    """
    files: list[str] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = _entries(folder / below, beneath)
        except OSError:
            if not below:
                raise
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            kind = _kind_of_entry(entry, folder / below / entry.name, beneath)
            if kind == stat.S_IFREG or kind == stat.S_IFLNK:
                files.append(below + entry.name)
            elif below.count("/") < MOST_DEPTH and kind == stat.S_IFDIR:
                waiting.append(f"{below}{entry.name}/")
        if len(files) > MOST_FILES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_FILES:,} files, so it is no checkpoint", str(folder))
    return sorted(files)


def _entries(folder: Path, beneath: Path | None) -> list[os.DirEntry[str]]:
    if beneath is None:
        return list(os.scandir(folder))
    descriptor = _opened_beneath(beneath, folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return list(os.scandir(descriptor))
    finally:
        os.close(descriptor)


def _kind_of_entry(entry: os.DirEntry[str], path: Path, beneath: Path | None) -> int:
    """What an entry is, or what its link leads to: S_IFREG, S_IFDIR …; 0 for a link that is broken or goes in circles.

    S_IFLNK: a link that leads out of ``beneath``.
    """
    try:
        if beneath is None:
            return stat.S_IFMT(entry.stat().st_mode)
        descriptor = _opened_beneath(beneath, path, os.O_RDONLY)
    except OSError as error:
        return stat.S_IFLNK if error.errno == errno.EXDEV else 0
    try:
        return stat.S_IFMT(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _kind(path: Path, through_links: bool, folder: int | None) -> str | None:
    """What kind of thing is there instead of a regular file; None if that is not the problem."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=through_links)
    except OSError:
        return None
    return None if stat.S_ISREG(status.st_mode) else _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")


def _refused(path: Path, kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
