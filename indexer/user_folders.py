"""Where this user's caches are, also for a user without a home that can be written (``docker run --user``)."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def private_folder() -> Path:
    """A folder for files of this user that may be lost; it need not exist, and another user may have made it."""
    # Not tempfile.gettempdir(), which falls back to the current folder, perhaps on a network drive.
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"vectors-in-the-wild-{os.getuid()}"


def open_private_folder() -> int:
    """A descriptor of the private folder, which is made if it is missing.

    Raises OSError if it is a link, belongs to another user, or others may write to it.
    """
    folder = private_folder()
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_owner(descriptor, folder)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o022:
            raise OSError(errno.EPERM, "others may write to it", str(folder))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_owner(descriptor: int, path: Path) -> None:
    """Raise OSError if an open file belongs to another user."""
    if os.fstat(descriptor).st_uid != os.getuid():
        raise OSError(errno.EPERM, "it belongs to another user", str(path))


def find_caches() -> None:
    """Let all libraries keep their caches in a private temporary folder if the user's cache folder cannot be written.

    Libraries read these variables when they are imported: huggingface_hub, matplotlib, numba (which UMAP needs).
    Variables that the user has set are kept. A token in the home is still found.
    """
    usual = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path raises without a home
    if _can_be_written(Path(usual)):
        return
    folder = _private() or _for_this_process()
    if folder is None:
        return
    if os.access(token := Path(usual, "huggingface", "token"), os.R_OK):
        os.environ.setdefault("HF_TOKEN_PATH", str(token))
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for name, subfolder in (("NUMBA_CACHE_DIR", "numba"), ("MPLCONFIGDIR", "matplotlib")):
        os.environ.setdefault(name, str(folder / "cache" / subfolder))
        if os.environ[name] == str(folder / "cache" / subfolder):
            with suppress(OSError):
                (folder / "cache" / subfolder).mkdir(mode=0o700, parents=True, exist_ok=True)


def _can_be_written(path: Path) -> bool:
    """Whether a folder can be written, or made."""
    if not path.is_absolute():
        return False
    existing = next((folder for folder in (path, *path.parents) if os.path.lexists(folder)), path)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _private() -> Path | None:
    """The private folder, made if it is missing; None if it cannot be used."""
    try:
        os.close(open_private_folder())
    except OSError:
        return None
    return private_folder()


def _for_this_process() -> Path | None:
    try:
        made = Path(tempfile.mkdtemp(prefix="vectors-in-the-wild-"))
    except OSError:
        return None
    maker = os.getpid()
    atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == maker else None)
    return made
