"""Bytes of one file, wherever it lies: the interface, and files on this machine.

Nothing is mapped into memory: a map counts towards the resident size of the process and turns a file that is
cut short while it is read into a crash.
"""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from indexer.errors import Failed
from indexer.regular_files import descriptor_of

_CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Run(ABC):
    """A stretch of one file, read once from front to back."""

    def __init__(self, start: int, stop: int) -> None:
        self.position = start  # the offset in the file of the next byte
        self._stop = stop

    @abstractmethod
    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""

    def read(self, count: int) -> bytearray:
        """The next ``count`` bytes."""
        self._check_step(self.position + count)
        buffer = bytearray(count)
        self.read_into(memoryview(buffer))
        return buffer

    @abstractmethod
    def skip_to(self, position: int) -> None:
        """Go on to ``position``, not before the present one."""

    @abstractmethod
    def close(self) -> None:
        """End the run; what was not read of it is let go."""

    def _check_step(self, to: int) -> None:
        """Raise ValueError unless the run can go on to ``to``."""
        if not self.position <= to <= self._stop:
            raise ValueError(f"a run at {self.position} that ends at {self._stop} cannot go on to {to}")


class ByteSource(Protocol):
    """One file. ``bytes_read`` counts what came from the disk or as response bodies.

    ``sha256`` is the LFS id where it is known without reading the file. Offsets outside the file raise
    ValueError: they are for the caller to check. Reading raises Failed, and never gives too few bytes.
    """

    name: str
    size: int
    bytes_read: int
    sha256: str | None

    def read(self, start: int, stop: int, keep: bool = False) -> bytes | bytearray:
        """Exactly the bytes [start, stop). With ``keep`` they are not fetched again by this source."""
        ...

    def stream(self, start: int, stop: int) -> Iterator[bytes | bytearray]:
        """The bytes [start, stop) in chunks of at most a few MiB."""
        ...

    def run(self, start: int, stop: int) -> Run:
        """The stretch [start, stop), to be read piece by piece."""
        ...

    def close(self) -> None:
        """Let go of descriptors and connections; reading again opens them again."""
        ...


class LocalFile:
    """A file on this machine.

    Raises Failed("not_found") where there is no regular file, Failed("file_changed") where it is replaced or
    cut short while it is read.
    """

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        self._path = Path(path)
        self.name = name or self._path.name
        self.bytes_read = 0
        self._descriptor: int | None = None
        try:
            found = self._path.stat()
        except OSError as error:
            raise Failed("not_found", f"{self.name} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise Failed("not_found", f"{self.name} is not a file")
        self._identity = _identity(found)
        self.size = found.st_size
        self.sha256 = _sha256_of_blob(self._path)

    def read(self, start: int, stop: int, keep: bool = False) -> bytearray:
        """Exactly the bytes [start, stop). ``keep`` changes nothing: the page cache keeps them."""
        check_range(self, start, stop)
        buffer = bytearray(stop - start)
        self.read_into(start, memoryview(buffer))
        return buffer

    def stream(self, start: int, stop: int) -> Iterator[bytes | bytearray]:
        """The bytes [start, stop) in chunks of 1 MiB."""
        check_range(self, start, stop)
        for offset in range(start, stop, _CHUNK):
            yield self.read(offset, min(offset + _CHUNK, stop))

    def run(self, start: int, stop: int) -> Run:
        """The stretch [start, stop): only what is asked of it is read."""
        check_range(self, start, stop)
        return LocalRun(self, start, stop)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on, without a copy in between."""
        descriptor = self._opened()
        done = 0
        while done < len(buffer):
            count = os.preadv(descriptor, [buffer[done:]], start + done)
            if count == 0:
                raise Failed("file_changed", f"{self.name} became shorter while it was read")
            done += count
            self.bytes_read += count

    def close(self) -> None:
        """Close the file; reading again opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        # A bare descriptor outlives whoever forgets it; a process has 1,024.
        if getattr(self, "_descriptor", None) is not None:
            self.close()

    def _opened(self) -> int:
        if self._descriptor is None:
            try:
                descriptor = descriptor_of(self._path, through_links=True)
            except OSError as error:
                raise Failed("not_found", f"{self.name} cannot be opened: {error.strerror}") from error
            if _identity(os.fstat(descriptor)) != self._identity:
                os.close(descriptor)
                raise Failed("file_changed", f"{self.name} was replaced while it was read")
            self._descriptor = descriptor
        return self._descriptor


class LocalRun(Run):
    """A run over a local file: skipping costs nothing."""

    def __init__(self, file: LocalFile, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self._file = file

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``."""
        self._check_step(self.position + len(buffer))
        self._file.read_into(self.position, buffer)
        self.position += len(buffer)

    def skip_to(self, position: int) -> None:
        """Go on to ``position``."""
        self._check_step(position)
        self.position = position

    def close(self) -> None:
        """Nothing is held."""


def check_range(source: ByteSource, start: int, stop: int) -> None:
    """Raise ValueError unless [start, stop) lies inside the file."""
    if not 0 <= start <= stop <= source.size:
        raise ValueError(f"[{start}, {stop}) is not a part of {source.name}, which has {source.size} bytes")


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _sha256_of_blob(path: Path) -> str | None:
    """The LFS id, where the file is a link into a Hugging Face cache, whose blobs are named after it."""
    target = path.resolve()
    return target.name if target.parent.name == "blobs" and _SHA256.fullmatch(target.name) else None
