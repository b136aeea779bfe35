"""What the database says of the vectors of one (base, representation), and those vectors opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from indexer.vectors.choice import IndexChoice
from indexer.vectors.files import HINT, VectorFile, open_index
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import OpenSegment, Segment

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection

_PARAMETERS = re.compile("|(?:nprobe|efSearch)=[1-9][0-9]{0,6}")


@dataclass(frozen=True)
class PublishedBase:
    """A base of an atlas: its matrices on disk, and the rank its published vectors were made with."""

    base: str
    commit: str
    file: Path
    rank: int


@dataclass(frozen=True)
class StoredIndex:
    """The compressed index as the database names it; without a file it did not keep its promise."""

    factory: str
    parameters: str
    candidates: int
    trained_on: int
    recall: float
    queries: int
    file: VectorFile | None


@dataclass(frozen=True)
class Published:
    """The vectors of one (base, representation): ``count`` of them, of ``length`` numbers, in ``segments``.

    ``per_delta``: a vector is a concatenation of equally long blocks in the order of the base's deltas.
    """

    base: str
    representation: str
    version: int
    rank: int
    length: int
    count: int
    per_delta: bool
    choice: IndexChoice
    segments: tuple[Segment, ...]
    compressed: StoredIndex | None

    @property
    def files(self) -> list[VectorFile]:
        """Every FAISS file that belongs to them."""
        found = [one.file for one in self.segments]
        return found + ([self.compressed.file] if self.compressed and self.compressed.file else [])

    def opened(self, root: Path) -> VectorIndex:
        """Ready for search. Raises AtlasError where a file is missing, damaged, or not what the database says."""
        try:
            return self._opened(root)
        except (RuntimeError, AttributeError) as error:  # FAISS: of another kind, or parameters that it does not know
            parameters = self.compressed.parameters if self.compressed else ""
            raise AtlasError(
                f"The vectors of {self.base}, {self.representation}, cannot be opened"
                f"{f' (with {parameters[:60]!r})' if parameters else ''}.",
                HINT,
            ) from error

    def _opened(self, root: Path) -> VectorIndex:
        search = None
        if self.compressed is not None and not _PARAMETERS.fullmatch(self.compressed.parameters):
            raise AttributeError(self.compressed.parameters)  # FAISS would set any field of an index
        if self.compressed is not None and self.compressed.file is not None:
            from indexer.vectors.compressed import CompressedSearch

            search = CompressedSearch(
                open_index(root, self.compressed.file), self.compressed.parameters, self.compressed.candidates
            )
        return VectorIndex([OpenSegment(root, one) for one in self.segments], self.length, search)


def read_published(
    connection: duckdb.DuckDBPyConnection | Connection, base: str, representation: str
) -> Published | None:
    """The vectors of a base as published; None where this representation is not."""
    key = [base, representation]
    row = connection.execute(
        "SELECT version, rank, length, vectors, per_delta, index_choice, index_memory, promised_recall "
        "FROM representations WHERE base = ? AND representation = ?",
        key,
    ).fetchall()
    if not row:
        return None
    version, rank, length, count, per_delta, *choice = row[0]
    segments = connection.execute(
        "SELECT in_compressed, faiss_file, faiss_sha256, faiss_bytes, vectors, "
        "(SELECT coalesce(list(model_id), []) FROM removed_vectors AS removed "
        "WHERE removed.base = segments.base AND removed.representation = segments.representation "
        "AND removed.segment = segments.segment) "
        "FROM segments WHERE base = ? AND representation = ? ORDER BY segment",
        key,
    ).fetchall()
    compressed = connection.execute(
        "SELECT factory, parameters, candidates, trained_on, recall_at_10, queries, faiss_file, faiss_sha256, "
        "faiss_bytes, vectors FROM compressed_indexes WHERE base = ? AND representation = ?",
        key,
    ).fetchall()
    return Published(
        base=base,
        representation=representation,
        version=version,
        rank=rank,
        length=length,
        count=count,
        per_delta=per_delta,
        choice=IndexChoice(*choice),
        segments=tuple(
            Segment(
                VectorFile(name, sha256, size, stored, length),
                np.unique(np.array(removed, dtype=np.int64)),
                in_compressed,
            )
            for in_compressed, name, sha256, size, stored, removed in segments
        ),
        compressed=_stored(compressed[0], length) if compressed else None,
    )


def _stored(row: tuple[Any, ...], length: int) -> StoredIndex:
    factory, parameters, candidates, trained_on, recall, queries, name, sha256, size, stored = row
    file = VectorFile(name, sha256, size, stored, length, factory) if name is not None else None
    return StoredIndex(factory, parameters, candidates, trained_on, recall, queries, file)
