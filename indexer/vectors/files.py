"""FAISS files: written once under the hash of their content, checked before they are loaded.

FAISS can crash on a damaged file, so no file is loaded whose checksum was not verified. The check is remembered
by size, modification time and inode, so that a large file is hashed once and not by every query.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.atlas import file_name
from indexer.errors import AtlasError
from indexer.regular_files import open_regular, regular_status
from indexer.untrusted import printable
from indexer.vectors.usercache import user_cache

HINT = "Run `index rebuild` to make it again from the records."


@dataclass(frozen=True)
class VectorFile:
    """A published FAISS file, as the database names it: its size in bytes, its vectors, and their length.

    ``factory``: of a compressed index; empty for a segment.
    """

    name: str
    sha256: str
    size: int
    count: int
    length: int
    factory: str = ""


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
        raise AtlasError(f"The FAISS file {file.name} cannot be read by FAISS.", HINT) from error
    if (index.ntotal, index.d) != (file.count, file.length):
        raise AtlasError(
            f"The FAISS file {file.name} holds {index.ntotal} vectors of {index.d} numbers; "
            f"the database says {file.count} of {file.length}.",
            HINT,
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
        raise AtlasError(f"The FAISS file {file.name} is missing.", HINT) from error
    except OSError as error:
        raise AtlasError(f"The FAISS file {file.name} cannot be read: {error.strerror}.", HINT) from error
    if status.st_size != file.size:
        raise AtlasError(f"The FAISS file {file.name} is damaged: {status.st_size} bytes instead of {file.size}.", HINT)
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino, file.sha256, file.count, file.length, file.factory]
    remembered = _remembered()
    if afresh or remembered.get(str(path)) != stamp:
        try:
            _check_content(path, file)
        except AtlasError:
            if remembered.pop(str(path), None) is not None:
                _remember(remembered)
            raise
        _remember(remembered | {str(path): stamp})
    return path


def _plain_name(name: str) -> str:
    """The name of a file beside the database: a stranger's may lead out of the folder. Raises AtlasError."""
    if Path(name).name != name or "\0" in name or not name.endswith(".faiss"):
        raise AtlasError(f"The database names {printable(name, 100)!r} as a FAISS file.", HINT)
    return name


def _check_content(path: Path, file: VectorFile) -> None:
    """The checksum first; as a stranger's database names that, too, then the form."""
    if file_sha256(path) != file.sha256:
        raise AtlasError(f"The FAISS file {file.name} is damaged: its checksum does not fit.", HINT)
    from indexer.vectors.form import Malformed, check_form

    try:
        check_form(path, file.factory, file.count, file.length)
    except Malformed as error:
        raise AtlasError(
            f"The FAISS file {file.name} is not what the database says of it "
            f"({file.count} vectors of {file.length} numbers): it holds {error}.",
            HINT,
        ) from error


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _memory() -> Path:
    return user_cache() / "checked.json"


def _remembered() -> dict[str, Any]:
    try:
        found = json.loads(_memory().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RuntimeError):
        return {}


def _remember(checked: dict[str, Any]) -> None:
    """Best effort: without a place to write, the next query hashes again."""
    try:
        memory = _memory()
        memory.parent.mkdir(parents=True, exist_ok=True)
        kept = {path: stamp for path, stamp in checked.items() if Path(path).exists()}
        temporary = memory.with_name(f".{memory.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        temporary.replace(memory)
    except (OSError, RuntimeError):
        return
