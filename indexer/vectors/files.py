"""FAISS files: written once under the hash of their content, checked before they are loaded.

FAISS can crash on a damaged file, so no file is loaded whose checksum was not verified; the check is remembered
(``indexer.storage.checksums``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.atlas import file_name, mending
from indexer.errors import AtlasError
from indexer.regular_files import regular_status
from indexer.storage.checksums import file_sha256, forget, is_checked, note_checked, stamp_of
from indexer.untrusted import printable

HINT = "Run `index rebuild` to make it again from the records."


@dataclass(frozen=True)
class VectorFile:
    """A published FAISS file, as the database names it: its size in bytes, its vectors, and their length.

    ``factory``: of a compressed index; empty for a segment, "fp16" for one of 16-bit numbers.
    """

    name: str
    sha256: str
    size: int
    count: int
    length: int
    factory: str = ""

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of an exact vector."""
        return 2 if self.factory == "fp16" else 4


def write_index(root: Path, base: str, representation: str, index: Any, factory: str = "") -> VectorFile:
    """Write a FAISS index beside the others; its name holds the hash of its content.

    A whole file of the same content is left alone, so that readers need not check it again.
    """
    import faiss

    temporary = root / f".{file_name(base)}.{representation}.{os.getpid()}.tmp"
    try:
        faiss.write_index(index, str(temporary))
        sha256 = file_sha256(temporary)
        size = temporary.stat().st_size
        name = f"{file_name(base)}.{representation}.{sha256[:16]}.faiss"
        if not _is_there(root / name, sha256):
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(root / name)
    finally:
        temporary.unlink(missing_ok=True)
    return VectorFile(name, sha256, size, int(index.ntotal), int(index.d), factory)


def _is_there(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(path) == sha256
    except OSError:
        return False


def open_index(root: Path, file: VectorFile, *, is_mapped: bool = True) -> Any:
    """A checked FAISS file: mapped into memory read-only, or read, to be changed.

    Raises AtlasError where it is missing or damaged, or not what the database says.
    """
    import faiss

    path = check_file(root, file)
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if is_mapped else 0)
    except RuntimeError as error:
        raise AtlasError(f"The FAISS file {file.name} cannot be read by FAISS.", mending(root, HINT)) from error
    if (index.ntotal, index.d) != (file.count, file.length):
        raise AtlasError(
            f"The FAISS file {file.name} holds {index.ntotal} vectors of {index.d} numbers; "
            f"the database says {file.count} of {file.length}.",
            mending(root, HINT),
        )
    return index


def check_file(root: Path, file: VectorFile, *, afresh: bool = False) -> Path:
    """The path of a FAISS file whose size, checksum and form fit; AtlasError otherwise.

    ``afresh``: whatever is remembered of it; a file that does not fit is then forgotten.
    """
    path = root / _plain_name(file.name)
    try:
        status = regular_status(path)
    except FileNotFoundError as error:
        raise AtlasError(f"The FAISS file {file.name} is missing.", mending(root, HINT)) from error
    except OSError as error:
        raise AtlasError(
            f"The FAISS file {file.name} cannot be read: {error.strerror}.", mending(root, HINT)
        ) from error
    if status.st_size != file.size:
        raise AtlasError(
            f"The FAISS file {file.name} is damaged: {status.st_size} bytes instead of {file.size}.",
            mending(root, HINT),
        )
    stamp = [*stamp_of(status, file.sha256), file.count, file.length, file.factory]
    if afresh or not is_checked(path, stamp):
        try:
            _check_content(path, file)
        except AtlasError:
            forget(path)
            raise
        note_checked(path, stamp)
    return path


def _plain_name(name: str) -> str:
    """The name of a file beside the database: a stranger's may lead out of the folder. Raises AtlasError."""
    if Path(name).name != name or "\0" in name or not name.endswith(".faiss"):
        raise AtlasError(f"The database names {printable(name, 100)!r} as a FAISS file.", HINT)
    return name


def _check_content(path: Path, file: VectorFile) -> None:
    """The checksum first; as a stranger's database names that, too, then the form."""
    if file_sha256(path) != file.sha256:
        raise AtlasError(
            f"The FAISS file {file.name} is damaged: its checksum does not fit.", mending(path.parent, HINT)
        )
    from indexer.vectors.form import Malformed, check_form

    try:
        check_form(path, file.factory, file.count, file.length)
    except Malformed as error:
        raise AtlasError(
            f"The FAISS file {file.name} is not what the database says of it "
            f"({file.count} vectors of {file.length} numbers): it holds {error}.",
            mending(path.parent, HINT),
        ) from error
