"""Files that appear complete or not at all: written under a temporary name, then renamed. And cheap copies of files."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from indexer.atlas import AtlasFolder
from indexer.regular_files import open_regular, regular_status

# A temporary file that has not been written to for this long was left by a killed writer.
LEFT_SECONDS = 24 * 3600.0
_FICLONE = 0x40049409
_CHUNK = 1 << 22
# Errors of file systems that cannot sync a file or a folder, or cannot open a folder.
_NOT_SYNCED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.ENOTTY}
_NOT_OPENED = {errno.EACCES, errno.EPERM, errno.EISDIR}


def temporary_path(path: Path, kind: str = "tmp") -> Path:
    """A name for a temporary file in the folder of ``path``, unique among all processes of all machines."""
    host = re.sub(r"[^\w-]", "", socket.gethostname().partition(".")[0], flags=re.ASCII)[:20]
    return path.with_name(f".{path.name}.{host}.{secrets.token_hex(6)}.{kind}")


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``path`` if the block ends without an error.

    ``sync``: write it to the disk before. Raises OSError, which names ``path`` if it names no file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        with temporary.open("xb") as file:
            yield file
            if sync:
                file.flush()
                sync_file(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # the error of a full disk has no name
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, payload: bytes) -> None:
    """Write ``payload`` to a temporary file, sync it, and rename it to ``path``."""
    with replacing(path) as file:
        file.write(payload)


def sync_file(descriptor: int) -> None:
    """Write an open file to the disk, if the file system can do that. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, if the file system can do that (SMB and many FUSE mounts cannot)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in _NOT_SYNCED | _NOT_OPENED:
            raise
        return
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def copy_file(source: Path, target: Path, *, through_links: bool = False) -> None:
    """Copy a regular file to a new file; blocks are shared if the file system can do that (Linux: FICLONE).

    ``through_links``: ``source`` may be a symbolic link. Raises OSError.
    """
    with open_regular(source, through_links=through_links) as original:
        copy_open_file(original, target)


def copy_open_file(original: BinaryIO, target: Path) -> None:
    """``copy_file`` for an open file, which may no longer have a name. Raises OSError."""
    original.seek(0)
    with target.open("xb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
        except OSError:
            shutil.copyfileobj(original, copy, _CHUNK)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a regular file that never changes a second name: a hard link if possible, else a copy. Raises OSError."""
    regular_status(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        copy_file(source, target)


def remove_leftovers(folder: AtlasFolder) -> None:
    """Remove temporary files of killed writers from the folders of records, profiles, bases and listings.

    Other processes may be writing records meanwhile, with or without the lock, so only old files are removed.
    """
    now = time.time()
    # Records and profiles lie in subfolders by their first two letters.
    inner = [entry for parent in (folder.records, folder.profiles) for entry in _listed(parent)]
    folders = [folder.bases, folder.listings]
    folders += [Path(entry.path) for entry in inner if entry.is_dir(follow_symlinks=False)]
    for entry in (entry for path in folders for entry in _listed(path)):
        if entry.name.startswith(".") and entry.name.endswith((".tmp", ".data")):
            with suppress(OSError):
                # A file from the far future was written before the clock was set back.
                if abs(now - entry.stat(follow_symlinks=False).st_mtime) > LEFT_SECONDS:
                    Path(entry.path).unlink()


def _listed(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
