"""FAISS files: one for each (base, representation), under the hash of its content, and checked before FAISS loads it.

A publish that changes vectors writes a new file, some rows at a time; readers of the former generation keep theirs.

FAISS trusts the sizes in a file and crashes if they are wrong. So a file is loaded only if its checksum is that in the
database and, because the database may come from anybody, if its format is one that this program writes: an id map over
flat vectors. Checks are remembered (``indexer.storage.checksums``).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import copied_hint, file_name, mending
from indexer.errors import AtlasError, system_errors
from indexer.regular_files import regular_status
from indexer.storage.atomic_files import sync_file
from indexer.storage.checksums import check_once, file_sha256, stamp_of
from indexer.untrusted import printable

HINT = "Run `index rebuild` to rebuild it from the records."

# Formats: vectors of 32-bit and of 16-bit numbers. Centred vectors are stored in 16 bits: that changes similarities by
# about 1e-5 and halves the file.
SINGLE = ""
HALF = "fp16"

MOST_NUMBERS = 1 << 24  # of a vector

# Values of fields in FAISS files.
_INNER_PRODUCT = 0
_UNUSED = 1 << 20
_FP16 = 4  # ScalarQuantizer::QT_fp16


@dataclass(frozen=True)
class VectorFile:
    """A published FAISS file as described by the database: its size in bytes, its vectors, and their length.

    ``factory``: SINGLE or HALF.
    """

    name: str
    sha256: str
    size: int
    count: int
    length: int
    factory: str = SINGLE

    @property
    def bytes_of_vectors(self) -> int:
        """Bytes of all numbers."""
        return _number_bytes(self.factory) * self.count * self.length


def _number_bytes(factory: str) -> int:
    return 2 if factory == HALF else 4


def write_index(
    root: Path,
    base: str,
    representation: str,
    ids: NDArray[np.int64],
    length: int,
    blocks: Iterable[NDArray[np.floating[Any]]],
    factory: str = SINGLE,
) -> VectorFile:
    """Write a FAISS index of inner products under a name that contains the hash of its content.

    ``ids`` (n,): ascending. ``blocks``: their n vectors of ``length`` numbers in the same order, some rows at a time,
    so that memory stays bounded. An intact file of the same content is not replaced, so that readers need not check it
    again.
    """
    digest, size = hashlib.sha256(), 0
    temporary = root / f".{file_name(base)}.{representation}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            before, between = _fields(factory, len(ids), length)
            vectors = (stored_form(rows, factory) for rows in blocks if len(rows))
            parts: Iterable[Any] = itertools.chain([before], vectors, [between, np.ascontiguousarray(ids, "<i8")])
            for part in parts:
                digest.update(part)
                size += file.write(part)
            file.flush()
            sync_file(file.fileno())
        sha256 = digest.hexdigest()
        vector_file = VectorFile(
            f"{file_name(base)}.{representation}.{sha256[:16]}.faiss", sha256, size, len(ids), length, factory
        )
        check_format(temporary, factory, len(ids), length)
        target = root / vector_file.name
        try:
            is_there = file_sha256(target) == sha256
        except OSError:
            is_there = False
        if not is_there:
            temporary.replace(target)
        # The next reader need not hash a file that was just written.
        check_once(target, _stamp(target.stat(), vector_file), lambda: True, recheck=True)
    finally:
        temporary.unlink(missing_ok=True)
    return vector_file


def stored_form(rows: NDArray[np.floating[Any]], factory: str = HALF) -> NDArray[np.floating[Any]]:
    """Vectors (n, length) in the numbers in which a file stores them; FAISS rounds to 16 bits in its own way."""
    import faiss

    if factory != HALF or rows.dtype == np.float16:
        return np.ascontiguousarray(rows, dtype="<f2" if factory == HALF else "<f4")
    codes = faiss.ScalarQuantizer(rows.shape[1], _FP16).compute_codes(np.ascontiguousarray(rows, dtype=np.float32))
    return np.asarray(codes.view("<f2"))


def _stamp(status: os.stat_result, file: VectorFile) -> list[int | str]:
    return stamp_of(status, file.sha256, file.count, file.length, file.factory)


def open_index(root: Path, file: VectorFile) -> Any:
    """Open a FAISS file after checking it, mapped into memory read-only.

    Raises AtlasError if it is missing, damaged, or not what the database says.
    """
    import faiss

    path = check_file(root, file)
    try:
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError:  # perhaps of a file system without shared memory maps
            index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise AtlasError(f"The FAISS file {file.name} cannot be read by FAISS.", mending(root, HINT)) from error
    if (index.ntotal, index.d) != (file.count, file.length):
        raise AtlasError(
            f"The FAISS file {file.name} holds {index.ntotal} vectors of {index.d} numbers; "
            f"the database says {file.count} of {file.length}.",
            mending(root, HINT),
        )
    return index


def check_file(root: Path, file: VectorFile, *, recheck: bool = False) -> Path:
    """The path of a FAISS file whose size, checksum and format are right; raises AtlasError otherwise.

    ``recheck``: check it even if an earlier check is remembered.
    """
    # The name may come from somebody else's database and lead out of the folder.
    if Path(file.name).name != file.name or "\0" in file.name or not file.name.endswith(".faiss"):
        raise AtlasError(f"The database names {printable(file.name, 100)!r} as a FAISS file.", HINT)
    path, hint = root / file.name, mending(root, HINT)

    def unreadable(why: str) -> AtlasError:
        advice = copied_hint(root) if path.is_symlink() else hint
        return AtlasError(f"The FAISS file {file.name} cannot be read: {why}.", advice)

    with system_errors(unreadable):
        try:
            status = regular_status(path)
        except FileNotFoundError as error:
            raise AtlasError(f"The FAISS file {file.name} is missing.", hint) from error
    if status.st_size != file.size:
        raise AtlasError(f"The FAISS file {file.name} is damaged: {status.st_size} bytes instead of {file.size}.", hint)

    def check() -> None:
        if file_sha256(path) != file.sha256:
            raise AtlasError(f"The FAISS file {file.name} is damaged: its checksum does not match.", hint)

    def check_fields() -> None:
        try:
            check_format(path, file.factory, file.count, file.length)
        except (MalformedIndex, OSError) as error:
            raise AtlasError(
                f"The FAISS file {file.name} does not match the database "
                f"({file.count} vectors of {file.length} numbers): it holds {error}.",
                hint,
            ) from error

    check_once(path, _stamp(status, file), check, recheck=recheck)
    # Each time, though the checksum is remembered: whoever writes a file can set its times, and FAISS must not crash.
    check_fields()
    return path


class MalformedIndex(ValueError):
    """A FAISS file does not have the expected format."""


def check_format(path: Path, factory: str, count: int, length: int) -> None:
    """Check that a file is a FAISS index of ``count`` vectors of ``length`` numbers.

    Everything in it but vectors and ids follows from ``factory`` (as in VectorFile), length and count. The
    format is described only by FAISS's index_write.cpp and index_read.cpp; integers are little-endian.

    Raises MalformedIndex if it is not, or OSError.
    """
    if count < 0 or not 0 < length <= MOST_NUMBERS:
        raise MalformedIndex(f"{count} vectors of {length} numbers")
    # The fields of the file in order: the bytes a field must have, or only its size.
    before, between = _fields(factory, count, length)
    fields: list[bytes | int] = [before, _number_bytes(factory) * count * length, between, 8 * count]
    sizes = [number if isinstance(number, int) else len(number) for number in fields]
    if path.stat().st_size != sum(sizes):
        raise MalformedIndex(f"{path.stat().st_size} bytes instead of {sum(sizes)}")
    try:
        content = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except OSError:  # a file system without shared memory maps
        content = np.fromfile(path, dtype=np.uint8)
    at = 0
    for field, size in zip(fields, sizes, strict=True):
        if isinstance(field, bytes) and content[at : at + size].tobytes() != field:
            raise MalformedIndex(f"other fields at byte {at}")
        at += size
    ids = content[at - 8 * count :].view("<i8")
    if len(ids) and ids.min() < 0:
        raise MalformedIndex("a negative id")
    if not (ids[1:] > ids[:-1]).all():
        raise MalformedIndex("ids that do not ascend")


def numbers_begin(file: VectorFile) -> int:
    """The byte of a file at which the numbers of its vectors begin."""
    return len(_fields(file.factory, file.count, file.length)[0])


def _fields(factory: str, count: int, length: int) -> tuple[bytes, bytes]:
    """All fields of a FAISS index before its vectors, and those between vectors and ids; arrays follow their length."""
    header = struct.pack("<iqqqBi", length, count, _UNUSED, _UNUSED, 1, _INNER_PRODUCT)
    if factory == SINGLE:
        numbers = b"IxFI" + header + struct.pack("<Q", count * length)
    else:
        quantizer = struct.pack("<iifQQQ", _FP16, 0, 0.0, length, 2 * length, 0)
        numbers = b"IxSQ" + header + quantizer + struct.pack("<Q", count * 2 * length)
    return b"IxMp" + header + numbers, struct.pack("<Q", count)
