"""Files that are there whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from indexer.atlas import AtlasFolder

# A temporary file that nobody has written to for so long is nobody's: its writer was killed.
LEFT_SECONDS = 24 * 3600.0


def beside(path: Path, kind: str = "tmp") -> Path:
    """A name for a temporary file beside ``path`` that no process of any machine has taken."""
    host = re.sub(r"[^\w-]", "", socket.gethostname().partition(".")[0], flags=re.ASCII)[:20]
    return path.with_name(f".{path.name}.{host}.{secrets.token_hex(6)}.{kind}")


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A new file beside ``path``, to be written to; it takes the place of ``path`` where the block ends without error.

    ``sync``: only once it is on the disk. Raises OSError, which names ``path`` where it names no file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say where it is
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, payload: bytes) -> None:
    """Write ``payload`` beside ``path``, sync it, and rename it into place."""
    with replacing(path) as file:
        file.write(payload)


def remove_leftovers(folder: AtlasFolder) -> None:
    """Remove what killed writers left among records, profiles, bases, listings, lineages and predictions.

    Others may be at work on records meanwhile, lock or no lock: only what is old goes.
    """
    now = time.time()
    for entry in _entries(folder):
        if entry.name.startswith(".") and entry.name.endswith((".tmp", ".data")):
            with suppress(OSError):
                # One that was written long from now was written before the clock was set back.
                if abs(now - entry.stat(follow_symlinks=False).st_mtime) > LEFT_SECONDS:
                    Path(entry.path).unlink()


def _entries(folder: AtlasFolder) -> Iterator[os.DirEntry[str]]:
    """What lies in the folders of an atlas, records and profiles by their first two letters."""
    for flat in (folder.bases, folder.listings, folder.lineages, folder.predicted):
        yield from _listed(flat)
    for part in [*_listed(folder.records), *_listed(folder.profiles)]:
        if part.is_dir(follow_symlinks=False):
            yield from _listed(Path(part.path))


def _listed(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
