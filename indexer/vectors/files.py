"""FAISS files: written once under the hash of their content, checked before they are loaded, searched exactly.

FAISS can crash on a damaged file, so no file is loaded whose checksum was not verified. The check is remembered
by size, modification time and inode, so that a large file is hashed once and not by every query.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import file_name
from indexer.errors import AtlasError
from indexer.usercache import user_cache

FACTORY = "IDMap2,Flat"

# More results than asked for, among which ties at the cut are settled by id.
TIES = 64

# Digits to which float32 similarities are told apart.
TIE_DIGITS = 6


@dataclass(frozen=True)
class VectorFile:
    """A published FAISS file, as the database names it."""

    name: str
    sha256: str
    size: int
    count: int
    length: int


@dataclass(frozen=True)
class Vectors:
    """Unit vectors (n, d) float32 with their model ids (n,) int64, ids ascending."""

    ids: NDArray[np.int64]
    matrix: NDArray[np.float32]

    def row(self, model_id: int) -> NDArray[np.float32] | None:
        """The vector of one model, None where it has none (a zero delta)."""
        position = int(np.searchsorted(self.ids, model_id))
        found = position < len(self.ids) and self.ids[position] == model_id
        return self.matrix[position] if found else None


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The vector with unit norm; None for an all-zero or non-finite one, which stays out of FAISS."""
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / norm).astype(np.float32) if np.isfinite(norm) and norm > 0 else None


def write_vectors(root: Path, base: str, representation: str, vectors: Vectors) -> VectorFile:
    """Write an exact index beside the others; its name holds the hash of its content.

    A file of the same content is already the right one and is left alone.
    """
    import faiss

    index = faiss.index_factory(max(vectors.matrix.shape[1], 1), FACTORY, faiss.METRIC_INNER_PRODUCT)
    if len(vectors.ids):
        index.add_with_ids(vectors.matrix, vectors.ids)
    temporary = root / f".{file_name(base)}.{representation}.{os.getpid()}.tmp"
    try:
        faiss.write_index(index, str(temporary))
        sha256 = file_sha256(temporary)
        size = temporary.stat().st_size
        name = f"{file_name(base)}.{representation}.{sha256[:16]}.faiss"
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(root / name)
    finally:
        temporary.unlink(missing_ok=True)
    return VectorFile(name, sha256, size, len(vectors.ids), vectors.matrix.shape[1])


def open_index(root: Path, file: VectorFile) -> Any:
    """Map a checked FAISS file into memory, read-only.

    Raises AtlasError where it is missing or damaged.
    """
    import faiss

    path = check_file(root, file)
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def read_vectors(root: Path, file: VectorFile) -> Vectors:
    """All vectors of a checked file, ids ascending."""
    import faiss

    index = open_index(root, file)
    ids = faiss.vector_to_array(index.id_map).astype(np.int64)
    if not len(ids):
        return Vectors(ids, np.zeros((0, file.length), dtype=np.float32))
    flat: Any = faiss.downcast_index(index.index)
    matrix = faiss.rev_swig_ptr(flat.get_xb(), len(ids) * file.length).reshape(len(ids), file.length)
    order = np.argsort(ids, kind="stable")
    # A copy: what the pointer shows goes with the index.
    return Vectors(ids[order], matrix[order].copy())


def search(
    index: Any, query: NDArray[np.float32], k: int, allowed: Sequence[int] | NDArray[np.int64] | None = None
) -> list[tuple[int, float]]:
    """The k nearest (id, cosine) of one unit vector, ties by id; ``allowed`` restricts to these ids."""
    import faiss

    if not index.ntotal or k < 1 or (allowed is not None and not len(allowed)):
        return []
    parameters: Any = None
    if allowed is not None:
        selector = faiss.IDSelectorBatch(np.asarray(allowed, dtype=np.int64))
        parameters = faiss.SearchParameters(sel=selector)  # type: ignore[call-arg]
    # A few more than asked for, so that among equal similarities at the cut the smallest ids are kept.
    wanted = min(k + TIES, index.ntotal)
    similarities, ids = index.search(query[None, :], wanted, params=parameters)
    found = [
        (int(model_id), float(similarity))
        for model_id, similarity in zip(ids[0], similarities[0], strict=True)
        if model_id >= 0
    ]
    return sorted(found, key=lambda pair: (-round(pair[1], TIE_DIGITS), pair[0]))[:k]


def check_file(root: Path, file: VectorFile) -> Path:
    """The path of a FAISS file whose size and checksum fit; AtlasError otherwise."""
    path = root / Path(file.name).name
    hint = "Run `index rebuild` to make it again from the records."
    try:
        status = path.stat()
    except OSError as error:
        raise AtlasError(f"The FAISS file {file.name} is missing.", hint) from error
    if status.st_size != file.size:
        raise AtlasError(
            f"The FAISS file {file.name} is damaged: {status.st_size} bytes instead of {file.size}.", hint
        )
    stamp = [status.st_size, status.st_mtime_ns, status.st_ino, file.sha256]
    remembered = _remembered()
    if remembered.get(str(path)) != stamp:
        if file_sha256(path) != file.sha256:
            raise AtlasError(f"The FAISS file {file.name} is damaged: its checksum does not fit.", hint)
        _remember(remembered | {str(path): stamp})
    return path


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
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
