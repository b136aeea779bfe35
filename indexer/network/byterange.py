"""The interface for reading ranges of a file, and files on this machine.

Files are not mapped into memory: a map counts towards the resident size of the process, and a file that is cut short
while it is read would crash it.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from indexer.errors import Failed, Skipped, system_errors
from indexer.regular_files import descriptor_of
from indexer.untrusted import LFS_PULL, SHA256, is_lfs_pointer, shown


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


def refuse_pointer(source: ByteSource, front: bytes) -> None:
    """Raise Skipped("corrupt_file") if the file begins as a Git LFS pointer."""
    if is_lfs_pointer(front):
        raise corrupt(source, f"is a Git LFS pointer, not the weights it points to{LFS_PULL}")


def corrupt(source: ByteSource, problem: str) -> Skipped:
    """The error for a weight file that is damaged, or contradicts itself."""
    return Skipped("corrupt_file", f"{shown(source.name)} {problem}")


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
            status = self._status()
        if not stat.S_ISREG(status.st_mode):
            raise Failed("not_found", f"{self.name} is not a file")
        self._identity = _identity(status)
        self.size = status.st_size
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
        received = 0
        while received < len(buffer):
            count = os.preadv(self._descriptor, [buffer[received:]], start + received)
            if count == 0:
                raise Failed("file_changed", f"{self.name} became shorter while being read")
            received += count
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


# Of a run of bytes at most so many are asked for at once.
_BLOCK = 8 << 20


class RangedFile:
    """A file of ``size`` bytes of which ``fetch(start, stop)`` gets a range by one request; see ``ByteSource``."""

    is_remote = True

    def __init__(self, name: str, size: int, fetch: Callable[[int, int], bytes], sha256: str | None = None) -> None:
        self.name, self.size, self.bytes_read, self.sha256 = name, size, 0, sha256
        self._fetch = fetch
        self._lock = threading.Lock()
        self._kept: list[tuple[int, bytes]] = []

    def read(self, start: int, stop: int, keep: bool = False) -> bytes:
        """Exactly the bytes [start, stop)."""
        check_range(self, start, stop)
        for first, content in self._kept:
            if first <= start and stop <= first + len(content):
                return content[start - first : stop - first]
        content = self._fetch(start, stop) if stop > start else b""
        with self._lock:
            self.bytes_read += len(content)
            if keep:
                self._kept.append((start, content))
        return content

    def run(self, start: int, stop: int) -> Run:
        """The range [start, stop), fetched in blocks."""
        check_range(self, start, stop)
        block, first = b"", start

        def read_at(position: int, buffer: memoryview) -> None:
            nonlocal block, first
            copied = 0
            while copied < len(buffer):
                at = position + copied - first
                if not 0 <= at < len(block):
                    first = position + copied
                    block = self.read(first, min(stop, first + _BLOCK))
                    at = 0
                piece = block[at : at + len(buffer) - copied]
                buffer[copied : copied + len(piece)] = piece
                copied += len(piece)

        return Run(start, stop, read_at)

    def close(self) -> None:
        """Drop the kept bytes."""
        self._kept.clear()


def check_range(source: ByteSource, start: int, stop: int) -> None:
    """Raise ValueError unless [start, stop) lies inside the file."""
    if not 0 <= start <= stop <= source.size:
        raise ValueError(f"[{start}, {stop}) is not a part of {source.name}, which has {source.size} bytes")


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
