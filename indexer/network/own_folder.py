"""A folder of this user on this machine, among everybody's temporary files."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path


def own_folder() -> Path:
    """Where it lies; it need not exist.

    Not ``tempfile.gettempdir()``: that takes the current folder, perhaps a network's, where it finds nothing better.
    """
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"vectors-in-the-wild-{os.getuid()}"


def open_own_folder() -> int:
    """A handle of the folder, made where it is not there. To be closed by the caller.

    Everybody may write beside it, and may have been there first: a link, another user's folder and one that others
    may write to are not taken. Raises OSError that says so.
    """
    folder = own_folder()
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owner(handle, folder)
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o022:
            raise OSError(errno.EPERM, "others may write to it", str(folder))
    except OSError:
        os.close(handle)
        raise
    return handle


def check_owner(handle: int, name: Path) -> None:
    """Raises OSError where an open file or folder is another user's."""
    if os.fstat(handle).st_uid != os.getuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(name))
