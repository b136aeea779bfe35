"""Uncentred vectors on their way into an atlas: put aside until the centre that is subtracted from them is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import file_name
from indexer.vectors.segments import rows_of_block

Floats = NDArray[np.float32]


class Uncentred:
    """Vectors of unit blocks (float32) in a temporary file beside the FAISS files, in the order in which they came.

    ``groups``: of each model; ``blocks``: of a vector. What a killed publish leaves of the file, the next one removes.
    """

    def __init__(self, root: Path, base: str, representation: str) -> None:
        self._path = root / f".{file_name(base)}.{representation}.{os.getpid()}.uncentred.tmp"
        self.ids: list[int] = []
        self.groups: list[str] = []
        self.changed: list[NDArray[np.bool_]] = []  # blocks that each model changed
        self.length = 0
        self.blocks = 0

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, model_id: int, vector: Floats, group: str, blocks: int) -> None:
        """Take a model's vector (d,) as its record gives it; zeros are none, and only their length is noted."""
        self.length, self.blocks = len(vector), blocks
        if vector.any():
            self._file.write(np.ascontiguousarray(vector, dtype="<f4").data)
            self.ids.append(model_id)
            self.groups.append(group)
            self.changed.append(np.asarray(vector.reshape(blocks, -1).any(axis=1)))

    def stretches(self) -> Iterator[tuple[NDArray[np.int64], list[str], Floats]]:
        """Ids, groups and vectors, a block at a time."""
        self._file.flush()
        self._file.seek(0)
        step = rows_of_block(self.length)
        for start in range(0, len(self.ids), step):
            ids = np.array(self.ids[start : start + step], dtype=np.int64)
            read = self._file.read(4 * self.length * len(ids))
            vectors = np.frombuffer(read, dtype="<f4").reshape(len(ids), self.length)
            yield ids, self.groups[start : start + step], of_unit_blocks(vectors, self.blocks)


def of_unit_blocks(vectors: Floats, blocks: int) -> Floats:
    """(n, d) vectors with every block of norm 1 or 0, whoever made the record."""
    shaped = vectors.astype(np.float64).reshape(len(vectors), blocks, -1)
    norms = np.linalg.norm(shaped, axis=2, keepdims=True)
    unit = np.divide(shaped, norms, out=np.zeros_like(shaped), where=norms > 0)
    return unit.reshape(len(vectors), -1).astype(np.float32)
