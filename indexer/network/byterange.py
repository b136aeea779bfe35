"""The interface for reading ranges of a file, and files on this machine.

Files are not mapped into memory: a map counts towards the resident size of the process, and a file that is cut short
while it is read would crash it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from indexer.errors import Failed, system_errors
from indexer.regular_files import descriptor_of
from indexer.untrusted import SHA256


class Run:
    """A range of one file, read once from front to back; ``read_at(position, buffer)`` reads the file.

    Here skipping costs nothing and there is nothing to release; a run over a response body does both differently.
    """

    def __init__(self, start: int, stop: int, read_at: Callable[[int, memoryview], None]) -> None:
        self.position = start  # offset of the next byte in the file
        self._stop = stop
        self._read_at = read_at

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""
        self._check_step(self.position + len(buffer))
        self._read_at(self.position, buffer)
        self.position += len(buffer)

    def read(self, count: int) -> bytearray:
        """The next ``count`` bytes."""
        self._check_step(self.position + count)
        buffer = bytearray(count)
        self.read_into(memoryview(buffer))
        return buffer

    def skip_to(self, position: int) -> None:
        """Go on to ``position``, which must not lie before the current one."""
        self._check_step(position)
        self.position = position

    def close(self) -> None:
        """End the run; unread bytes are dropped."""

    def _check_step(self, to: int) -> None:
        """Raise ValueError unless the run can go on to ``to``."""
        if not self.position <= to <= self._stop:
            raise ValueError(f"a run at {self.position} that ends at {self._stop} cannot go on to {to}")


class ByteSource(Protocol):
    """One file. ``bytes_read`` counts bytes from the disk or in response bodies.

    ``sha256`` is the LFS id if it is known without reading the file. Offsets outside the file raise ValueError. Reading
    raises Failed, and never returns too few bytes.
    """

    name: str
    size: int
    bytes_read: int
    sha256: str | None

    def read(self, start: int, stop: int, keep: bool = False) -> bytes | bytearray:
        """Exactly the bytes [start, stop). With ``keep`` this source does not fetch them again."""
        ...

    def run(self, start: int, stop: int) -> Run:
        """The range [start, stop), to be read piece by piece."""
        ...

    def close(self) -> None:
        """Release descriptors and connections; reading again opens them again."""
        ...


class LocalFile:
    """A file on this machine.

    Raises Failed("not_found") if there is no regular file, Failed("file_changed") if it is replaced or cut short while
    being read.
    """

    def __init__(self, path: Path | str, name: str | None = None, beneath: Path | None = None) -> None:
        """``beneath``: a folder that no link may lead out of."""
        self._path, self._beneath = Path(path), beneath
        self.name = name or self._path.name
        self.bytes_read = 0
        self._descriptor: int | None = None
        with system_errors(self._not_opened):
            found = self._status()
        if not stat.S_ISREG(found.st_mode):
            raise Failed("not_found", f"{self.name} is not a file")
        self._identity = _identity(found)
        self.size = found.st_size
        # In a Hugging Face cache the file is a link to a blob that is named after its LFS id.
        target = self._path.resolve()
        self.sha256 = target.name if target.parent.name == "blobs" and SHA256.fullmatch(target.name) else None

    def _not_opened(self, why: str) -> Failed:
        return Failed("not_found", f"{self.name} cannot be opened: {why}")

    def _status(self) -> os.stat_result:
        if self._beneath is None:
            return self._path.stat()
        descriptor = descriptor_of(self._path, through_links=True, beneath=self._beneath)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def read(self, start: int, stop: int, keep: bool = False) -> bytearray:
        """Exactly the bytes [start, stop). ``keep`` has no effect: the page cache keeps them."""
        check_range(self, start, stop)
        buffer = bytearray(stop - start)
        self.read_into(start, memoryview(buffer))
        return buffer

    def run(self, start: int, stop: int) -> Run:
        """The range [start, stop); only the requested bytes are read."""
        check_range(self, start, stop)
        return Run(start, stop, self.read_into)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on."""
        if self._descriptor is None:
            with system_errors(self._not_opened):
                descriptor = descriptor_of(self._path, through_links=True, beneath=self._beneath)
            if _identity(os.fstat(descriptor)) != self._identity:
                os.close(descriptor)
                raise Failed("file_changed", f"{self.name} was replaced while being read")
            self._descriptor = descriptor
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor, [buffer[done:]], start + done)
            if count == 0:
                raise Failed("file_changed", f"{self.name} became shorter while being read")
            done += count
            self.bytes_read += count

    def close(self) -> None:
        """Close the file; reading again opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        # A descriptor outlives its last reference, and a process has 1,024 of them.
        if getattr(self, "_descriptor", None) is not None:
            self.close()


def check_range(source: ByteSource, start: int, stop: int) -> None:
    """Raise ValueError unless [start, stop) lies inside the file."""
    if not 0 <= start <= stop <= source.size:
        raise ValueError(f"[{start}, {stop}) is not a part of {source.name}, which has {source.size} bytes")


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
