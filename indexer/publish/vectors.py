"""How a publish changes the vectors of one base and representation: its segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import file_name
from indexer.publish.tables import Tables
from indexer.records.representation import DEFAULT, Representation
from indexer.vectors.centre import unit_norm
from indexer.vectors.masks import Masks
from indexer.vectors.published import read_published
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import (
    OpenSegment,
    Segment,
    Vectors,
    joined,
    normalised,
    rows_of_block,
    to_merge,
    write_segment,
)

Ids = NDArray[np.int64]

# Bytes of vectors that are collected in memory before they are written as a segment.
_MOST_HELD = 256 << 20


class UncentredVectors:
    """Vectors with unit blocks in a temporary file, until the centre that is subtracted from them is known.

    ``blocks``: blocks of a vector. If a publish is killed, the next one removes the file.
    """

    def __init__(self, root: Path, base: str, representation: str, blocks: int) -> None:
        self._path = root / f".{file_name(base)}.{representation}.{os.getpid()}.uncentred.tmp"
        self.ids: list[int] = []
        self.changed: list[NDArray[np.bool_]] = []  # the blocks that each model changed
        self.length = 0
        self.blocks = blocks

    def __enter__(self) -> Self:
        self._file = self._path.open("w+b")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, model_id: int, vector: NDArray[np.float32]) -> None:
        """Add the vector (d,) of a model; zero vectors are skipped."""
        self.length = len(vector)
        if vector.any():
            self._file.write(np.ascontiguousarray(vector, dtype="<f4").data)
            self.ids.append(model_id)
            self.changed.append(np.asarray(vector.reshape(self.blocks, -1).any(axis=1)))

    def chunks(self) -> Iterator[tuple[Ids, NDArray[np.float32]]]:
        """Ids and vectors, some at a time, in the order in which they were added."""
        self._file.flush()
        self._file.seek(0)
        step = rows_of_block(self.length)
        for start in range(0, len(self.ids), step):
            ids = np.array(self.ids[start : start + step], dtype=np.int64)
            read = self._file.read(4 * self.length * len(ids))
            vectors = np.frombuffer(read, dtype="<f4").reshape(len(ids), self.length)
            yield ids, with_unit_blocks(vectors, self.blocks)


def with_unit_blocks(vectors: NDArray[np.float32], blocks: int) -> NDArray[np.float32]:
    """(n, d) vectors with every block scaled to norm 1, or 0 if it is zero; a record may come from elsewhere."""
    shaped = unit_norm(vectors.astype(np.float64).reshape(len(vectors), blocks, -1))
    return shaped.reshape(len(vectors), -1).astype(np.float32)


class VectorWriter:
    """Writes new vectors into segments; holds only ``_MOST_HELD`` bytes at a time.

    ``centre``: version of the centre that was subtracted. ``blocks``: blocks of unit norm, or 0 if the whole vector has
    unit norm.
    """

    def __init__(
        self, root: Path, base: str, representation: Representation, centre: str | None = None, blocks: int = 0
    ) -> None:
        self.root, self.base, self.representation = root, base, representation
        self.centre, self.blocks = centre, blocks
        self.segments: list[Segment] = []
        self.ids: list[int] = []
        self.length: int | None = None
        self.kinds: dict[bytes, list[int]] = {}  # models that lack blocks, see Masks
        self._held: dict[int, NDArray[np.float32]] = {}

    def add(self, model_id: int, vector: NDArray[np.float32]) -> None:
        """Add the vector (d,) of a model; zero vectors are skipped. Without blocks it is scaled to unit norm."""
        self.length = len(vector)
        unit = normalised(vector)
        if unit is None:
            return
        if self.blocks:
            unit = np.asarray(vector, dtype=np.float32)
            changed = unit.reshape(self.blocks, -1).any(axis=1)
            if not changed.all():
                self.kinds.setdefault(changed.astype(np.uint8).tobytes(), []).append(model_id)
        self._held[model_id] = unit
        self.ids.append(model_id)
        if len(self._held) * unit.nbytes >= _MOST_HELD:
            self.flush()

    def add_all(self, ids: Ids, vectors: NDArray[np.float32]) -> None:
        """Add several vectors (n, d)."""
        for model_id, vector in zip(ids.tolist(), vectors, strict=True):
            self.add(model_id, vector)

    def flush(self) -> None:
        """Write the vectors in memory as a segment."""
        if self._held:
            ids = sorted(self._held)
            vectors = Vectors(np.array(ids, dtype=np.int64), np.stack([self._held[model_id] for model_id in ids]))
            self.segments.append(write_segment(self.root, self.base, self.representation.name, vectors, self.centre))
            self._held.clear()


# The tables that describe the vectors.
_TABLES = (
    "representations", "internal.segments", "internal.removed_vectors", "internal.vector_masks",
)  # fmt: skip


class PublishedVectors:
    """The published vectors of one (base, representation), and how a publish changes them.

    ``writer``: collects the new vectors. ``vector_length``: the length asked for, approximately;
    None leaves it unchanged.
    """

    def __init__(
        self,
        root: Path,
        tables: Tables,
        base: str,
        representation: Representation,
        rank: int,
        say: Callable[[str], None],
        vector_length: int | None = None,
    ) -> None:
        self.root, self.tables, self.base, self.rank, self.say = root, tables, base, rank, say
        self.name = representation.name
        found = read_published(tables.connection, base, self.name)
        # A representation that is added later has vectors of the length asked for before.
        like = found or read_published(tables.connection, base, DEFAULT)
        self.budget_before = like.budget if like is not None else None
        self.budget = vector_length or self.budget_before
        self.representation = representation.of_length(self.budget)
        # Vectors of different versions, ranks or lengths cannot be compared: recompute all of them from the records.
        kept = found
        if found is not None:
            before = (found.version, found.rank, representation.of_length(found.budget))
            if before != (representation.version, rank, self.representation):
                kept = None
        self.is_new = kept is None
        self.length = kept.length if kept else None
        self.segments = list(kept.segments) if kept else []
        self.masks = kept.masks if kept else Masks.none()
        self.centre = kept.centre if kept else None
        self.writer: VectorWriter | UncentredVectors = VectorWriter(root, base, self.representation)

    def ids(self) -> Ids:
        """Ids of all models that have a vector, ascending."""
        return np.unique(np.concatenate([_no_ids(), *(OpenSegment(self.root, one).ids for one in self.segments)]))

    def change(
        self, writer: VectorWriter, stale: Iterable[int], *, replaces_all: bool = False, purged: bool = False
    ) -> tuple[VectorIndex, Ids, Ids] | None:
        """Add the vectors of ``writer``. Former vectors of the ``stale`` ids are removed, or all with ``replaces_all``.

        ``purged``: also rewrite the segments that contain removed vectors.

        Returns all vectors, the ids with a new vector, and the ids whose former vector is no longer valid; None if
        nothing changes.
        """
        added = np.unique(np.array(writer.ids, dtype=np.int64))
        wanted = self.ids() if replaces_all else np.unique(np.array(list(stale), dtype=np.int64))
        removed = [_no_ids()]
        for position, segment in enumerate(self.segments if len(wanted) else ()):
            there = np.intersect1d(OpenSegment(self.root, segment).ids, wanted)
            if len(there):
                self.segments[position] = replace(segment, removed=np.union1d(segment.removed, there))
                removed.append(there)
        former = np.unique(np.concatenate(removed))
        if not (self.is_new or self.budget != self.budget_before or len(added) or len(former)):
            return None
        writer.flush()
        if replaces_all:
            self.segments = []
        blocks = writer.blocks or self.masks.blocks
        changed = np.union1d(former, added)
        kinds = self.masks.members() if self.masks.blocks == blocks else {}
        kinds = {kind: np.setdiff1d(ids, changed) for kind, ids in kinds.items()}
        for kind, models in writer.kinds.items():
            kinds[kind] = np.union1d(kinds.get(kind, _no_ids()), np.array(models, dtype=np.int64))
        self.masks = Masks.of(blocks, kinds)
        self.centre = writer.centre or self.centre
        # The length is known only once there are vectors.
        self.length = (self.length if self.segments else None) or writer.length or self.length or 1
        self.segments += writer.segments
        # Merge segments of similar size.
        while chosen := [self.segments[position] for position in to_merge(self.segments)]:
            place = self.segments.index(chosen[0])
            self.segments = [one for one in self.segments if one not in chosen]
            self.segments[place:place] = self._rewritten(chosen)
        if purged:
            parts = [self._rewritten([one]) if len(one.removed) else [one] for one in self.segments]
            self.segments = [one for part in parts for one in part]
        self._write()
        opened = [OpenSegment(self.root, one, self.masks) for one in self.segments]
        return VectorIndex(opened, self.length, masks=self.masks), added, former

    def _rewritten(self, segments: Sequence[Segment]) -> list[Segment]:
        """One new segment with the valid vectors of several; none if there are none."""
        vectors = joined([OpenSegment(self.root, one).vectors() for one in segments], self.length or 1)
        if not len(vectors):
            return []
        return [write_segment(self.root, self.base, self.name, vectors, segments[0].centre)]

    def _write(self) -> None:
        key = {"base": self.base, "representation": self.name}
        for table in _TABLES:
            self.tables.run(f"DELETE FROM {table} WHERE base = $base AND representation = $representation", key)
        row = {
            "version": self.representation.version,
            "rank": self.rank,
            "length": self.length,
            "vectors": sum(one.count for one in self.segments),
            "per_delta": self.representation.per_delta,
            "blocks": self.masks.blocks,
            "budget": self.budget,
            "centre": self.centre,
        }
        self.tables.insert("representations", [key | row])
        for number, one in enumerate(self.segments):
            row = {
                "segment": number,
                "vectors": one.file.count,
                "centre": one.centre,
                "faiss_file": one.file.name,
                "faiss_sha256": one.file.sha256,
                "faiss_bytes": one.file.size,
            }
            self.tables.insert("internal.segments", [key | row])
            removed = [key | {"segment": number, "model_id": int(model_id)} for model_id in one.removed]
            self.tables.insert("internal.removed_vectors", removed)
        masks = [
            key | {"changed": "".join(map(str, kind)), "model_ids": ids.tolist()}
            for kind, ids in self.masks.members().items()
        ]
        self.tables.insert("internal.vector_masks", masks)


def _no_ids() -> Ids:
    return np.zeros(0, dtype=np.int64)
